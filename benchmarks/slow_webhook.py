"""Somebody's admission webhook that is slow, as a server of this machine."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import Object

from .controllers import certificate

SLOW_S = 25.0


def _puts_back(request: Mapping[str, Any]) -> bool:
    """Whether the Job gets the attempt's annotation again, which only the controller writes."""
    both = [(request.get(key) or {}).get("metadata") or {} for key in ("object", "oldObject")]
    new, old = (meta.get("annotations") or {} for meta in both)
    return job_names.ANN_ATTEMPT in new and job_names.ANN_ATTEMPT not in old


class SlowWebhook:
    """Somebody's webhook that thinks for 25 s when the controller puts back what was taken from a Job, and agrees."""

    def __init__(self, folder: Path) -> None:
        self.asked = 0
        outer = self
        self.slow: set[str] = set()
        self._enough = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                request = review["request"]
                if request["name"] in outer.slow and _puts_back(request):
                    outer.asked += 1
                    outer._enough.wait(SLOW_S)
                answer = {"uid": request["uid"], "allowed": True}
                body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer})
                with contextlib.suppress(OSError):  # whoever asked has given up
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.end_headers()
                    self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        keys = certificate(folder)
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(keys / "tls.crt", keys / "tls.key")
        self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self._bundle = (keys / "tls.crt").read_bytes()
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def configuration(self) -> Object:
        url = f"https://127.0.0.1:{self.http.server_port}/"
        rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["jobs"]}
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "slow.example.com"},
            "webhooks": [
                {
                    "name": "slow.example.com",
                    "clientConfig": {"url": url, "caBundle": base64.b64encode(self._bundle).decode()},
                    "rules": [rule],
                    "timeoutSeconds": 30,
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }
            ],
        }

    def close(self) -> None:
        self._enough.set()
        self.http.shutdown()
