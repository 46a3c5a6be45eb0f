"""A certificate that somebody else has put into a Secret: `doctor` says when it ends, and how to replace it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from kueue_integration.contract import job_names
from kueue_integration.controller import certificates
from kueue_integration.doctor import release
from kueue_integration.errors import Forbidden
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import SECRET, Object

NOW, DAY = 1_800_000_000.0, 86400.0
SYSTEM = job_names.SYSTEM_NAMESPACE


def deployment(secret: str | None) -> Object:
    volumes = [{"name": "secret", "secret": {"secretName": secret}}] if secret else [{"name": "tmp", "emptyDir": {}}]
    meta = {"name": job_names.CONTROLLER_NAME, "namespace": SYSTEM}
    spec = {"template": {"spec": {"volumes": volumes, "containers": []}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def secret(data: dict[str, Any]) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ours", "namespace": SYSTEM}, "data": data}


def ends_in(seconds: float) -> Object:
    """A leaf is valid for a year from the time at which it was made."""
    made = NOW + seconds - certificates.LEAF_DAYS * DAY
    ca, key = certificates.authority(made, 3650)
    text, _ = certificates.leaf(ca, key, ["x.svc"], made)
    return secret({"tls.crt": b64encode(text.encode()).decode()})


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (ends_in(30 * DAY), "ok", "ends in 30 days"),
        (ends_in(2 * DAY), "warn", "ends in 48 hours"),
        (ends_in(-1800), "fail", "has ended 0.5 hours ago"),
        (secret({}), "fail", "has no certificate in tls.crt"),
        (secret({"tls.crt": "bm9uZQ=="}), "fail", "has no certificate in tls.crt"),
        (None, "fail", "has no certificate in tls.crt"),
    ],
)
def test_the_end_of_a_certificate(found: Object | None, status: str, words: str) -> None:
    kube = FakeKube(deployment("ours"), *([found] if found else []))
    (check,) = release.certificate(kube, NOW)
    assert (check.name, check.status) == ("certificate", status) and words in check.message
    assert ("create secret generic ours" in check.fix) == (status != "ok")


def test_without_one_or_without_the_right_to_read_it_nothing_is_said() -> None:
    assert [*release.certificate(FakeKube(deployment(None)), NOW)] == []
    kube = FakeKube(deployment("ours"), ends_in(-DAY))
    kube.fail_next("get", SECRET, Forbidden("no", 403, "Forbidden"))
    assert [*release.certificate(kube, NOW)] == []
