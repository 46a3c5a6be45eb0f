"""Whether checkpoints of a namespace can be encrypted: the Secret with its keys."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

from ..errors import Forbidden
from ..kube.api import Kube
from ..kube.resources import SECRET
from ..spec import store_access
from ..spec.platform_config import PlatformConfig
from .check import FAIL, OK, Check

KEY_BYTES = 32


def keys(kube: Kube, namespace: str, config: PlatformConfig) -> Iterator[Check]:
    """Nothing where checkpoints are not encrypted. Who may not read Secrets is told so, and `--probe` looks."""
    name = store_access.of(config, namespace).keys
    if not name:
        return
    entry = "--from-literal=$(date +%F)=$(openssl rand -base64 32)"
    make = f"kubectl -n {namespace} create secret generic {name} \\\n  {entry}"
    try:
        secret = kube.find(SECRET, namespace, name)
    except Forbidden:
        yield Check("encryption", OK, f"with Secret {name}, which you may not read: --probe looks whether it is there")
        return
    if secret is None:
        missing = f"checkpoints are encrypted here, and Secret {namespace}/{name} is missing: no job can start"
        yield Check("encryption", FAIL, missing, f"Make it, and keep a copy of the key apart from the store:\n{make}")
        return
    given = secret.get("data") or {}
    wrong = sorted(each for each, text in given.items() if not _is_key(str(text)))
    if wrong or not given:
        what = f"entry {wrong[0]} is not {KEY_BYTES} bytes, or their base64" if wrong else "it has no entry"
        fix = "Put the right key back, or take the entry away if no checkpoint needs it."
        yield Check("encryption", FAIL, f"Secret {namespace}/{name}: {what}: no job can start", fix)
        return
    yield Check("encryption", OK, f"with entry {max(given)} of Secret {name}")


def _is_key(text: str) -> bool:
    try:
        data = base64.b64decode(text, validate=True)
        return len(data) == KEY_BYTES or len(base64.b64decode(data.strip(), validate=True)) == KEY_BYTES
    except (binascii.Error, ValueError):
        return False
