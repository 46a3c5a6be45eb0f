// fake-gcs-server with the part of Google Cloud Storage's XML API that it lacks, in memory. Clients of the JSON API
// (gcsfs) and of the XML API (obstore) see the same objects.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

func main() {
	host := flag.String("host", "127.0.0.1", "address to listen on")
	port := flag.Uint("port", 4443, "port to listen on")
	certificate := flag.String("cert-location", "", "certificate for TLS; without it the server speaks http")
	key := flag.String("private-key-location", "", "its key")
	flag.Parse()

	scheme := "http"
	if *certificate != "" {
		scheme = "https"
	}
	address := fmt.Sprintf("%s:%d", *host, *port)
	options := fakestorage.Options{NoListener: true, Scheme: scheme, ExternalURL: scheme + "://" + address}
	server, err := fakestorage.NewServerWithOptions(options)
	if err != nil {
		log.Fatal(err)
	}
	handler := newXML(server.HTTPHandler())
	if scheme == "https" {
		log.Fatal(http.ListenAndServeTLS(address, *certificate, *key, handler))
	}
	log.Fatal(http.ListenAndServe(address, handler))
}
