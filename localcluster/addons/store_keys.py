"""The Secret with which checkpoints of a namespace are encrypted, as docs/administration/keys.md makes it."""

from __future__ import annotations

import base64
import os
from typing import Any

NAME = "singularity-store-key"
ENCRYPTED = ("default", "verbs")
"""Namespaces with it: that of the demonstration, and one of the end-to-end tests."""


def secret(namespace: str) -> dict[str, Any]:
    """One with a new key. Who has one already keeps it: its checkpoints cannot be read without."""
    key = base64.b64encode(os.urandom(32)).decode()
    meta = {"name": NAME, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"2026-11-27": key}}
