"""What doctor says of the Secret with the keys of encrypted checkpoints."""

from __future__ import annotations

import base64
import os
from dataclasses import replace

import pytest
from kueue_samples import PLATFORM

from kueue_integration.doctor import encryption
from kueue_integration.doctor.check import FAIL, OK
from kueue_integration.errors import Forbidden
from kueue_integration.kube.fake import FakeKube

ENCRYPTED = replace(PLATFORM, store_keys={"secret": "keys", "namespaces": ["team"]})
RAW = os.urandom(32)


@pytest.mark.parametrize(
    ("entries", "status", "said"),
    [
        (None, FAIL, "Secret team/keys is missing"),
        ({}, FAIL, "it has no entry"),
        ({"2026": b"short"}, FAIL, "entry 2026 is not 32 bytes"),
        ({"2026": RAW, "2027": base64.b64encode(RAW) + b"\n"}, OK, "with entry 2027"),
    ],
)
def test_the_secret(entries: dict[str, bytes] | None, status: str, said: str) -> None:
    kube = FakeKube()
    if entries is not None:
        data = {name: base64.b64encode(key).decode() for name, key in entries.items()}
        meta = {"name": "keys", "namespace": "team"}
        kube.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
    (found,) = encryption.keys(kube, "team", ENCRYPTED)
    assert found.status == status and said in found.message
    assert ("kubectl -n team create secret generic keys" in found.fix) == (entries is None)
    assert [*encryption.keys(kube, "other", ENCRYPTED)] == [*encryption.keys(kube, "team", PLATFORM)] == []


def test_who_may_not_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = FakeKube()

    def refuse(*_: object) -> None:
        raise Forbidden("secrets is forbidden", 403)

    monkeypatch.setattr(kube, "find", refuse)
    (found,) = encryption.keys(kube, "team", ENCRYPTED)
    assert found.status == OK and "--probe" in found.message
