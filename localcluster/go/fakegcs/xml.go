package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// xmlAPI turns requests of the XML API, whose paths are /BUCKET/OBJECT, into ones of the JSON API.
type xmlAPI struct {
	json    http.Handler
	lock    sync.Mutex
	uploads map[string]map[int][]byte
	drawn   int
}

func newXML(json http.Handler) *xmlAPI {
	return &xmlAPI{json: json, uploads: map[string]map[int][]byte{}}
}

func (s *xmlAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for _, prefix := range []string{"/storage/", "/upload/", "/download/", "/batch/", "/_internal/"} {
		if strings.HasPrefix(r.URL.Path, prefix) {
			s.json.ServeHTTP(w, r)
			return
		}
	}
	bucket, object, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	upload := query.Get("uploadId")
	switch {
	case object == "" && r.Method == http.MethodGet:
		s.list(w, bucket, query)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		r.URL.Path, r.URL.RawPath, r.URL.RawQuery = "/download/storage/v1/b/"+bucket+"/o/"+object, "", ""
		answer := s.ask(r)
		if answer.Code == http.StatusNotFound {
			s.missing(w, bucket)
			return
		}
		maps.Copy(w.Header(), answer.Header())
		if answer.Code >= http.StatusBadRequest { // of one that is not satisfiable it says the length of the range
			w.Header().Set("Content-Length", strconv.Itoa(answer.Body.Len()))
		}
		w.WriteHeader(answer.Code)
		if r.Method == http.MethodGet {
			_, _ = io.Copy(w, answer.Body)
		}
	case r.Method == http.MethodDelete && upload == "":
		request := httptest.NewRequest(http.MethodDelete, "/storage/v1/b/"+bucket+"/o/"+url.PathEscape(object), nil)
		if answer := s.ask(request); answer.Code == http.StatusNotFound {
			s.missing(w, bucket)
		} else {
			w.WriteHeader(http.StatusNoContent)
		}
	case r.Method == http.MethodPut && upload == "":
		s.put(w, bucket, object, r.Body, r.Header.Get("x-goog-if-generation-match"))
	case query.Has("uploads") || upload != "":
		s.multipart(w, r, bucket, object, upload)
	default:
		refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed", r.Method)
	}
}

func (s *xmlAPI) ask(r *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	s.json.ServeHTTP(answer, r)
	return answer
}

// put stores an object. `match` is the generation that must be there, "0" for none, "" for any.
func (s *xmlAPI) put(w http.ResponseWriter, bucket, object string, content io.Reader, match string) {
	name, _ := json.Marshal(map[string]string{"name": object})
	whole, err := io.ReadAll(content) // an upload that breaks off leaves nothing behind
	if err != nil {
		refuse(w, http.StatusBadRequest, "IncompleteBody", err.Error())
		return
	}
	const head = "--cut\r\nContent-Type: application/json\r\n\r\n%s\r\n--cut\r\nContent-Type: application/octet-stream\r\n\r\n"
	body := io.MultiReader(
		strings.NewReader(fmt.Sprintf(head, name)), bytes.NewReader(whole), strings.NewReader("\r\n--cut--\r\n"))
	query := url.Values{"uploadType": {"multipart"}, "name": {object}}
	if match != "" {
		query.Set("ifGenerationMatch", match)
	}
	request := httptest.NewRequest(http.MethodPost, "/upload/storage/v1/b/"+bucket+"/o?"+query.Encode(), body)
	request.Header.Set("Content-Type", "multipart/related; boundary=cut")
	answer := s.ask(request)
	var made struct{ Etag, Generation string }
	switch {
	case answer.Code == http.StatusNotFound:
		s.missing(w, bucket)
	case answer.Code == http.StatusPreconditionFailed:
		refuse(w, answer.Code, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
	case answer.Code != http.StatusOK || json.Unmarshal(answer.Body.Bytes(), &made) != nil:
		refuse(w, http.StatusInternalServerError, "InternalError", answer.Body.String())
	default:
		w.Header().Set("ETag", strconv.Quote(made.Etag))
		w.Header().Set("x-goog-generation", made.Generation)
	}
}

type initiated struct {
	XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
	UploadId string
}

type completed struct {
	XMLName xml.Name `xml:"CompleteMultipartUploadResult"`
	ETag    string
}

func (s *xmlAPI) multipart(w http.ResponseWriter, r *http.Request, bucket, object, upload string) {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		refuse(w, http.StatusBadRequest, "IncompleteBody", err.Error())
		return
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	parts, known := s.uploads[upload]
	switch {
	case upload == "":
		s.drawn++
		upload = strconv.Itoa(s.drawn)
		s.uploads[upload] = map[int][]byte{}
		answerXML(w, initiated{UploadId: upload})
	case !known:
		refuse(w, http.StatusNotFound, "NoSuchUpload", upload)
	case r.Method == http.MethodPut:
		number, err := strconv.Atoi(r.URL.Query().Get("partNumber"))
		if err != nil {
			refuse(w, http.StatusBadRequest, "InvalidArgument", err.Error())
			return
		}
		parts[number] = content
		w.Header().Set("ETag", fmt.Sprintf(`"%d"`, number))
	case r.Method == http.MethodDelete:
		delete(s.uploads, upload)
		w.WriteHeader(http.StatusNoContent)
	default:
		var whole []byte
		for _, number := range slices.Sorted(maps.Keys(parts)) {
			whole = append(whole, parts[number]...)
		}
		answer := httptest.NewRecorder()
		s.put(answer, bucket, object, bytes.NewReader(whole), r.Header.Get("x-goog-if-generation-match"))
		maps.Copy(w.Header(), answer.Header())
		if answer.Code != http.StatusOK {
			w.WriteHeader(answer.Code)
			_, _ = io.Copy(w, answer.Body)
			return
		}
		delete(s.uploads, upload)
		answerXML(w, completed{ETag: answer.Header().Get("ETag")})
	}
}

type content struct {
	Key          string
	LastModified string
	ETag         string
	Size         string
}

type listed struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	Contents              []content
	NextContinuationToken string `xml:",omitempty"`
}

func (s *xmlAPI) list(w http.ResponseWriter, bucket string, query url.Values) {
	asked := url.Values{"prefix": {query.Get("prefix")}, "maxResults": {"1000"}}
	if token := query.Get("continuation-token"); token != "" {
		asked.Set("pageToken", token)
	}
	answer := s.ask(httptest.NewRequest(http.MethodGet, "/storage/v1/b/"+bucket+"/o?"+asked.Encode(), nil))
	var found struct {
		Items         []struct{ Name, Updated, Etag, Size string }
		NextPageToken string
	}
	if answer.Code == http.StatusNotFound {
		s.missing(w, bucket)
		return
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &found); err != nil {
		refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
		return
	}
	result := listed{NextContinuationToken: found.NextPageToken}
	for _, item := range found.Items {
		result.Contents = append(result.Contents, content{item.Name, item.Updated, strconv.Quote(item.Etag), item.Size})
	}
	answerXML(w, result)
}

func (s *xmlAPI) missing(w http.ResponseWriter, bucket string) {
	if s.ask(httptest.NewRequest(http.MethodGet, "/storage/v1/b/"+bucket, nil)).Code == http.StatusOK {
		refuse(w, http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
	} else {
		refuse(w, http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist.")
	}
}

func answerXML(w http.ResponseWriter, what any) {
	w.Header().Set("Content-Type", "application/xml")
	body, _ := xml.Marshal(what)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_ = xml.NewEncoder(w).Encode(struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}{Code: code, Message: message})
}
