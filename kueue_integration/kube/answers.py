"""What both clients ask and hear in the same words: the query of a watch, and a refusal as one of our errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from singularity_proxy.protocol import decode

from ..errors import AlreadyExists, Conflict, Forbidden, Gone, Invalid, KubeError, NotFound

LISTEN_S = 15.0
"""A client listens so much longer than its watch lasts: the server ends the watch. This only catches a connection that
died silently."""


_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def verb(method: str, query: Mapping[str, object]) -> str:
    """Return the verb of a request as Kubernetes' own metrics name it. A read with a selector is a list."""
    if query.get("watch"):
        return "watch"
    return "list" if "labelSelector" in query else _VERBS.get(method, method.lower())


def refusal(method: str, path: str, status: int, body: bytes) -> KubeError:
    """The error for an answer that is none of 200 to 299. `body` need not be JSON."""
    try:
        decoded = decode.served(body)
    except ValueError:
        decoded = None
    answer = decoded if isinstance(decoded, dict) else {}
    return _error(method, path, status, answer, body[:200].decode("utf-8", "replace"))


def broken_watch(path: str, status: Mapping[str, Any]) -> KubeError:
    """The error for an event ERROR, whose object is a Status."""
    return _error("WATCH", path, int(status.get("code", 500)), status, json.dumps(status)[:200])


def watch_query(selector: str | None, resource_version: str | None, timeout_s: float) -> dict[str, str]:
    """Parameters of a watch that the server ends after `timeout_s` seconds."""
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "labelSelector": selector,
        "resourceVersion": resource_version,
        "timeoutSeconds": str(max(1, int(timeout_s))),
    }
    return {name: value for name, value in query.items() if value is not None}


def _error(method: str, path: str, status: int, answer: Mapping[str, Any], otherwise: str) -> KubeError:
    reason = str(answer.get("reason") or "")
    text = str(answer.get("message") or otherwise)
    cls: type[KubeError] = {
        400: Invalid,
        401: Forbidden,
        403: Forbidden,
        404: NotFound,
        409: AlreadyExists if reason == "AlreadyExists" else Conflict,
        410: Gone,
        422: Invalid,
    }.get(status, KubeError)
    details = answer.get("details")
    denied = isinstance(details, Mapping) and bool(details.get("causes"))
    return cls(f"{method} {path}: {text} (HTTP {status})", status=status, reason=reason, denied=denied)
