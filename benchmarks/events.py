"""Every object of a kind, and every change to it, for as long as somebody listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from kueue_integration.errors import Gone, KubeError
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import Kind, Object

AGAIN_S = 0.5


def changes(kube: Kube, kind: Kind, namespace: str | None, stop: threading.Event) -> Iterator[Object]:
    """Objects as they are now, then as they become, until `stop` is set; API errors are ridden out.

    :param namespace: None: all of them
    """
    version = ""
    while not stop.is_set():
        try:
            if not version:
                items, version = kube.list_versioned(kind, namespace)
                yield from items
            for event, found in kube.watch(kind, namespace, None, version, 30):
                version = found["metadata"]["resourceVersion"]
                if event in ("ADDED", "MODIFIED"):
                    yield found
        except Gone:
            version = ""
        except KubeError:
            stop.wait(AGAIN_S)
