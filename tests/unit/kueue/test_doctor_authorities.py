"""What `doctor` says about the authorities that pods trust."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kueue_samples import AUTHORITY, PLATFORM, spec

from kueue_integration.controller import certificates
from kueue_integration.doctor import authorities
from kueue_integration.doctor.check import FAIL, OK, WARN
from kueue_integration.manifests.job_manifests import render

DAY = 86400.0
NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("days", "status", "words"),
    [(3650, OK, "1, the first ends in 3650 days"), (60, WARN, "one of 1 ends in 60 days"),
     (-2, FAIL, "one of 1 has ended 2 days ago")],
)  # fmt: skip
def test_authorities_that_end(days: int, status: str, words: str) -> None:
    made, _ = certificates.authority(NOW - 400 * DAY, 400 + days)
    (found,) = authorities.published(replace(PLATFORM, controller_ca=made), NOW)
    assert (found.status, found.message) == (status, words)
    assert bool(found.fix) == (status != OK)


def test_the_first_of_several_counts() -> None:
    made, _ = certificates.authority(NOW, 10)
    (found,) = authorities.published(replace(PLATFORM, controller_ca=AUTHORITY + made), NOW)
    assert (found.status, found.message) == (WARN, "one of 2 ends in 10 days")


@pytest.mark.parametrize("text", ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate(text: str) -> None:
    (found,) = authorities.published(replace(PLATFORM, controller_ca=text), NOW)
    assert found.status == FAIL and "no certificate" in found.message


def test_jobs_that_trust_none_of_them_are_named() -> None:
    other, _ = certificates.authority(NOW, 10)
    known = next(obj for obj in render(spec(), PLATFORM) if obj["kind"] == "Job")
    mine = {"metadata": {"name": "plain"}, "spec": {"template": {"spec": {}}}}
    later = replace(PLATFORM, controller_ca=other)
    assert not [*authorities.strangers(replace(PLATFORM, controller_ca=other + AUTHORITY), [known, mine])]
    (found,) = authorities.strangers(later, [known, mine])
    assert found.status == FAIL and known["metadata"]["name"] in found.message and "plain" not in found.message
