"""Which agent images the guard trusts: over upgrades, rollbacks, and what somebody writes on the Lease."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kueue_integration.contract import job_names
from kueue_integration.contract.agent_images import of_job, read, to_annotations
from kueue_integration.controller.agent_images import LINGER_S, RENEW_S, AgentImages, kept
from kueue_integration.errors import NotFound
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import LEASE, Object

NAME, SYSTEM = job_names.TRUSTED_IMAGES_LEASE, job_names.SYSTEM_NAMESPACE


def job(image: str, ended: str = "") -> Object:
    inits = [{"name": job_names.CONTAINER_INSTALL, "image": image}]
    conditions = [{"type": ended, "status": "True"}] if ended else []
    return {"spec": {"template": {"spec": {"initContainers": inits}}}, "status": {"conditions": conditions}}


class Release:
    """A controller, its clock and its jobs."""

    def __init__(self, kube: FakeKube) -> None:
        self.kube, self.now, self.jobs = kube, 1000.0, list[Object]()

    def keeps(self, *configured: str) -> list[str]:
        AgentImages(self.kube, SYSTEM, configured, lambda: self.jobs, lambda: self.now).keep()
        return self.trusted()

    def trusted(self) -> list[str]:
        return list(read(self.kube.get(LEASE, SYSTEM, NAME)))

    def version(self) -> str:
        return str(self.kube.get(LEASE, SYSTEM, NAME)["metadata"]["resourceVersion"])


@pytest.fixture
def release() -> Release:
    return Release(FakeKube())


def test_an_image_stays_until_its_last_job_has_ended(release: Release) -> None:
    release.keeps("a:1")
    release.jobs = [job("a:1"), job("a:1", "Complete"), job("a:2")]
    for _ in range(5):
        assert release.keeps("a:2") == ["a:2", "a:1"]
        release.now += LINGER_S
    release.jobs = [job("a:1", "Failed")]
    assert release.keeps("a:2") == ["a:2"]


def test_a_release_lingers_for_those_who_have_read_its_settings(release: Release) -> None:
    release.keeps("a:1")
    release.now += LINGER_S - 1
    assert release.keeps("a:2") == ["a:2", "a:1"]
    release.now += 1
    assert release.keeps("a:2") == ["a:2"]


def test_a_rollback_trusts_both_ways(release: Release) -> None:
    release.keeps("a:1")
    release.jobs = [job("a:1")]
    release.keeps("a:2")
    release.jobs.append(job("a:2"))
    assert release.keeps("a:1") == ["a:1", "a:2"]


def test_a_job_adds_no_image(release: Release) -> None:
    release.jobs = [job("evil:1")]
    assert release.keeps("a:1", "mirror:1") == ["a:1", "mirror:1"]


def test_it_is_written_when_something_has_changed_only(release: Release) -> None:
    release.keeps("a:1")
    first = release.version()
    release.now += RENEW_S - 1
    release.keeps("a:1")
    assert release.version() == first
    release.now += 1
    release.keeps("a:1")
    assert release.version() != first


def test_a_controller_without_a_chart_writes_nothing(release: Release) -> None:
    AgentImages(release.kube, SYSTEM, (), list, lambda: 1.0).keep()
    with pytest.raises(NotFound):
        release.trusted()


@pytest.mark.parametrize("times", ["", "no json", "[]", '{"a:1": "yesterday"}', '{"a:1": true}', '{"other": 3}'])
def test_times_that_are_spoilt_cost_no_job_its_pods(times: str) -> None:
    told = {job_names.LEASE_TRUSTED_IMAGES: "a:1 ", job_names.LEASE_IMAGES_USED: times}
    found = read({"metadata": {"annotations": told}})
    assert found == {"a:1": None}
    assert kept(found, ("a:2",), (), 5.0) == {"a:2": 5.0, "a:1": 5.0}


def test_a_time_of_the_future_ends(release: Release) -> None:
    assert kept({"a:1": 1e12}, ("a:2",), (), 5.0) == {"a:2": 5.0, "a:1": 5.0}


IMAGES = st.text("abc:/@.0", min_size=1, max_size=8)


@given(st.dictionaries(IMAGES, st.integers(0, 10**6)))
def test_what_is_written_is_read(images: dict[str, int]) -> None:
    assert read({"metadata": {"annotations": to_annotations(images)}}) == images


@given(st.dictionaries(IMAGES, st.floats(0, 10**6)), st.lists(IMAGES, max_size=3), st.sets(IMAGES), st.floats(0, 10**6))
def test_nothing_is_trusted_anew_and_nothing_in_use_is_dropped(
    before: dict[str, float], configured: list[str], in_use: set[str], now: float
) -> None:
    after = kept(before, configured, in_use, now)
    assert set(configured) | (set(before) & in_use) <= set(after) <= set(configured) | set(before)


def test_a_job_without_our_containers_has_no_agent_image() -> None:
    assert of_job({}) is None and of_job({"spec": {"template": {"spec": {"initContainers": [{"name": "x"}]}}}}) is None
    assert of_job(job("a:1")) == "a:1"
