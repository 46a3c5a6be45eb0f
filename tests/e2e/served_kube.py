"""A FakeKube behind real HTTP, for parts that run in processes of their own. It answers lists and paths only."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kueue_integration.errors import NotFound
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CLUSTER_QUEUE, COHORT, EVENT, JOB, JOBSET, LOCAL_QUEUE, TRAINJOB, WORKLOAD

KINDS = {kind.path(): kind for kind in (CLUSTER_QUEUE, COHORT, LOCAL_QUEUE, WORKLOAD, JOB, JOBSET, TRAINJOB, EVENT)}


class Server(ThreadingHTTPServer):
    """`forbidden` has the plurals that nobody may list; a server that is `down` cuts every connection."""

    daemon_threads = True

    def __init__(self, kube: FakeKube) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kube = kube
        self.forbidden: set[str] = set()
        self.down = False

    def write_kubeconfig(self, path: Path) -> None:
        url = f"http://127.0.0.1:{self.server_address[1]}"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        path.write_text(json.dumps(config))


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if self.server.down:
            self.close_connection = True
            return
        kind = KINDS.get(parts.path)
        if kind is not None and kind.plural in self.server.forbidden:
            self._send(403, {"kind": "Status", "code": 403, "message": f"{kind.plural} is forbidden: User airflow"})
        elif kind is not None:
            chosen = parse_qs(parts.query).get("labelSelector", [None])[0]
            items, version = self.server.kube.list_versioned(kind, None, chosen)
            self._send(200, {"items": items, "metadata": {"resourceVersion": version}})
        else:
            try:
                self._send(200, self.server.kube.get_path(self.path))
            except NotFound as error:
                self._send(404, {"kind": "Status", "code": 404, "message": str(error)})

    def _send(self, code: int, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def served(kube: FakeKube) -> Iterator[Server]:
    server = Server(kube)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
