"""`ApiKube` against a real HTTP server that answers as told: errors, broken connections, half lines."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from kueue_integration.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    PlatformError,
    Unreachable,
)
from kueue_integration.kube.client import ApiKube
from kueue_integration.kube.credentials import OfClient, connect
from kueue_integration.kube.resources import CONFIG_MAP, JOB, POD


class Server:
    """Answers every request with `status` and `chunks`; keeps what was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.chunks: list[bytes] = [b"{}"]
        self.cut = False
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answers = threading.Event()
        """Not set: requests are taken and not answered."""
        self.answers.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, dict(self.headers), body))
                outer.answers.wait(30)
                self.send_response(outer.status)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for chunk in outer.chunks:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
                if outer.cut:
                    self.close_connection = True
                else:
                    self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.answers.set()
    made.http.shutdown()
    thread.join(timeout=120)
    made.http.server_close()


MADE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": "c"}}


def kube(url: str, **told: Any) -> ApiKube:
    configuration = client.Configuration(host=url)
    configuration.api_key = {"authorization": "Bearer secret"}
    return ApiKube(OfClient(client.ApiClient(configuration)), part="a-part", **told)


def status(code: int, reason: str, message: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "error", "transient"),
    [
        (400, "BadRequest", Invalid, False),
        (401, "Unauthorized", Forbidden, False),
        (403, "Forbidden", Forbidden, False),
        (404, "NotFound", NotFound, False),
        (409, "Conflict", Conflict, False),
        (409, "AlreadyExists", AlreadyExists, False),
        (410, "Expired", Gone, False),
        (422, "Invalid", Invalid, False),
        (429, "TooManyRequests", KubeError, True),
        (500, "InternalError", KubeError, True),
        (503, "ServiceUnavailable", KubeError, True),
    ],
)
def test_each_refusal_has_its_error(server: Server, code: int, reason: str, error: type, transient: bool) -> None:
    server.status, server.chunks = code, [status(code, reason, "because of x")]
    with pytest.raises(KubeError, match="GET /apis/batch/v1/namespaces/n/jobs/j: because of x") as raised:
        kube(server.url).get_job("n", "j")
    assert type(raised.value) is error
    assert (raised.value.status, raised.value.reason, raised.value.transient) == (code, reason, transient)


@pytest.mark.parametrize(("code", "failed"), [(200, False), (404, False), (409, False), (429, True), (500, True)])
def test_each_request_is_told_with_its_verb(server: Server, code: int, failed: bool) -> None:
    heard: list[tuple[str, bool]] = []
    one = kube(server.url, told=lambda verb, seconds, failed: heard.append((verb, failed)))
    server.status, server.chunks = code, [b'{"items": [], "metadata": {}}']
    for ask in (
        lambda: one.get_job("n", "j"), lambda: one.list(JOB, "n"), lambda: list(one.watch(JOB, timeout_s=1)),
        lambda: one.patch_job("n", "j", {}), lambda: one.delete(JOB, "n", "j"), lambda: one.create(MADE),
        lambda: one.replace(MADE),
    ):  # fmt: skip
        with contextlib.suppress(KubeError, KeyError):
            ask()
    verbs = ["get", "list", "watch", "patch", "delete", "create", "update"]
    assert heard == [(verb, failed) for verb in verbs]
    assert {sent[2]["User-Agent"].partition("/")[0] for sent in server.asked} == {"a-part"}


def test_no_answer_is_a_failure() -> None:
    heard: list[bool] = []
    with pytest.raises(Unreachable):
        kube("http://127.0.0.1:1", told=lambda verb, seconds, failed: heard.append(failed)).get_job("n", "j")
    assert heard == [True]


def test_a_proxy_that_answers_html(server: Server) -> None:
    server.status, server.chunks = 502, [b"<html>Bad Gateway</html>"]
    with pytest.raises(KubeError, match="Bad Gateway"):
        kube(server.url).get_job("n", "j")


def test_nobody_there() -> None:
    with pytest.raises(Unreachable, match="no answer") as raised:
        kube("http://127.0.0.1:1").get_job("n", "j")
    assert raised.value.transient


def test_a_list_is_read_in_pages_of_one_moment(server: Server) -> None:
    def page(name: str, go_on: str) -> bytes:
        meta = {"resourceVersion": "7", "continue": go_on}
        return json.dumps({"metadata": meta, "items": [{"metadata": {"name": name}}]}).encode()

    server.chunks = [page("a", "x=&y")]
    pages = kube(server.url).pages(JOB, None, "l=1")
    first = next(pages)
    server.chunks = [page("b", "")]
    names = [item["metadata"]["name"] for items, version in (first, *pages) for item in items if version == "7"]
    assert names == ["a", "b"]
    assert [path for _, path, _, _ in server.asked] == [
        "/apis/batch/v1/jobs?labelSelector=l%3D1&limit=25",
        "/apis/batch/v1/jobs?labelSelector=l%3D1&limit=500&continue=x%3D%26y",
    ]
    assert first[0][0]["kind"] == "Job"


def test_objects_of_half_a_megabyte_come_a_few_at_a_time(server: Server) -> None:
    meta = {"resourceVersion": "7", "continue": "x"}
    server.chunks = [json.dumps({"metadata": meta, "items": [{"metadata": {"name": "a" * (1 << 19)}}]}).encode()]
    pages = kube(server.url).pages(JOB)
    next(pages)
    next(pages)
    assert [path.partition("?")[2] for _, path, _, _ in server.asked] == ["limit=25", "limit=3&continue=x"]


def test_a_list_whose_moment_is_forgotten_half_way_is_gone(server: Server) -> None:
    server.chunks = [json.dumps({"metadata": {"resourceVersion": "7", "continue": "x"}, "items": []}).encode()]
    pages = kube(server.url).pages(JOB)
    next(pages)
    server.status, server.chunks = 410, [status(410, "Expired", "too old")]
    with pytest.raises(Gone):
        next(pages)


def test_what_is_sent(server: Server) -> None:
    api = kube(server.url)
    api.patch_job("n", "j", {"metadata": {"annotations": {"a": "b"}}}, resource_version="7")
    api.delete(JOB, "n", "j", uid="u", propagation="Foreground")
    (patch, path, headers, body), (verb, _, _, options) = server.asked
    assert (patch, path) == ("PATCH", "/apis/batch/v1/namespaces/n/jobs/j")
    assert headers["Content-Type"] == "application/merge-patch+json" and headers["authorization"] == "Bearer secret"
    assert json.loads(body) == {"metadata": {"annotations": {"a": "b"}, "resourceVersion": "7"}}
    sent = json.loads(options)
    assert (verb, sent["propagationPolicy"], sent["preconditions"]) == ("DELETE", "Foreground", {"uid": "u"})


def test_a_name_cannot_leave_its_path(server: Server) -> None:
    kube(server.url).get(CONFIG_MAP, "n", "../../secrets/x")
    assert server.asked[0][1] == "/api/v1/namespaces/n/configmaps/..%2F..%2Fsecrets%2Fx"


def test_a_watch_joins_lines_that_come_in_pieces(server: Server) -> None:
    line = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "é"}}}, ensure_ascii=False).encode() + b"\n"
    server.chunks = [line[:10], line[10:30], line[30:] + line]
    events = list(kube(server.url).watch(CONFIG_MAP, "n", "a=b", "5", timeout_s=3))
    assert [(e, o["metadata"]["name"]) for e, o in events] == [("ADDED", "é")] * 2
    assert "labelSelector=a%3Db" in server.asked[0][1] and "resourceVersion=5" in server.asked[0][1]


def test_an_error_inside_a_watch(server: Server) -> None:
    server.chunks = [b'{"type": "ERROR", "object": ' + status(410, "Expired", "too old resource version") + b"}\n"]
    with pytest.raises(Gone, match="too old"):
        list(kube(server.url).watch(CONFIG_MAP, "n"))


def test_a_stream_that_breaks_off(server: Server) -> None:
    server.chunks, server.cut = [b"line 1\nline 2\n"], True
    lines = kube(server.url).pod_logs("n", "p", "train", follow=True)
    assert [next(lines), next(lines)] == ["line 1", "line 2"]
    with pytest.raises(Unreachable, match="broke off"):
        next(lines)


def test_an_answer_that_never_comes_is_given_up_in_the_clients_own_time(server: Server, tmp_path: Path) -> None:
    clusters = [{"name": "c", "cluster": {"server": server.url}}]
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    found = {"clusters": clusters, "contexts": contexts, "current-context": "c", "users": [{"name": "u", "user": {}}]}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(found))
    quick = connect(str(path), timeout_s=0.2)
    server.answers.clear()
    with pytest.raises(Unreachable, match="no answer"):
        quick.get_lease("a", "b")
    server.answers.set()
    assert quick.get_lease("a", "b") == {}


def test_no_kubeconfig_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="export KUBECONFIG"):
        connect(str(tmp_path / "nothing"))


def test_an_access_review_asks_for_the_caller_and_believes_the_answer(server: Server) -> None:
    server.chunks = [b'{"status": {"allowed": true}}']
    assert kube(server.url).allowed("get", POD, "a", "log")
    method, path, _, body = server.asked[-1]
    assert (method, path) == ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
    wanted = {"verb": "get", "group": "", "resource": "pods", "subresource": "log", "namespace": "a"}
    assert json.loads(body)["spec"] == {"resourceAttributes": wanted}
    server.chunks = [b'{"status": {"allowed": false, "reason": "no"}}']
    assert not kube(server.url).allowed("create", JOB, None)


def test_a_path_that_is_no_object(server: Server) -> None:
    server.chunks = [b'{"major": "1", "minor": "36"}']
    assert kube(server.url).get_path("/version") == {"major": "1", "minor": "36"}
    assert server.asked[-1][:2] == ("GET", "/version")


@pytest.fixture
def no_finalizers() -> Iterator[None]:
    """The collector runs finalizers of earlier tests at any depth, and at the deepest one pytest's hook fails."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_finalizers")
@pytest.mark.parametrize("depth", [3000, 100_000])
def test_what_somebody_has_nested_too_deep_hides_nothing_of_the_others(server: Server, depth: int) -> None:
    """An API server stores metadata.managedFields of thousands of levels; the parser raises RecursionError at them."""
    deep = b'{"f:a":' * depth + b"{}" + b"}" * depth
    fields = b'{"metadata":{"name":"hostile","managedFields":[{"fieldsV1":' + deep + b'}]},"spec":{"a":"[[\\"{"}}'
    server.chunks = [b'{"metadata":{"resourceVersion":"7"},"items":[' + fields + b',{"metadata":{"name":"other"}}]}']
    listed = kube(server.url).list(JOB)
    assert [job["metadata"]["name"] for job in listed] == ["hostile", "other"]
    assert listed[0]["spec"] == {"a": '[["{'}
    server.chunks = [b'{"type":"MODIFIED","object":' + fields + b"}\n", b'{"type":"ADDED","object":{"metadata":{}}}\n']
    assert [event for event, _ in kube(server.url).watch(JOB)] == ["MODIFIED", "ADDED"]


def test_an_answer_that_is_no_json_is_a_failure_of_the_server(server: Server) -> None:
    server.chunks = [b"<html>"]
    with pytest.raises(Unreachable, match="no JSON"):
        kube(server.url).list(JOB)
