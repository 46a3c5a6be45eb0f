"""What the controller tells of itself: Lease, copies, queue, tasks and the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from test_controller_lease import EMPTY, keeper

from kueue_integration.controller import vitals
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.reconciler import CANARY, Reconciler, Task
from kueue_integration.controller.work_queue import WorkQueue
from kueue_integration.errors import Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import LEASE


def shown(metrics: Metrics, name: str) -> dict[str, float]:
    """Every series of a metric as a scrape shows it."""
    lines = [line for line in metrics.text().splitlines() if line.startswith(name)]
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}


def test_a_leader_and_the_replica_beside_it_see_a_young_lease() -> None:
    kube, metrics = FakeKube(EMPTY), Metrics()
    leader, other = keeper(kube, "a"), keeper(kube, "b")
    for one in (leader, other):
        one.tick()
        metrics.compute(vitals.of_lease(one.age, 60.0))
        assert shown(metrics, "singularity_holds_void") == {"singularity_holds_void": 0.0}
        assert shown(metrics, "singularity_lease_age_seconds")["singularity_lease_age_seconds"] < 60


def test_holds_are_void_when_nobody_renews_and_when_it_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, metrics, now = FakeKube(EMPTY), Metrics(), [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    one = keeper(kube, "a")
    metrics.compute(vitals.of_lease(one.age, 1.0))
    one.tick()

    def away(*rest: object, **more: object) -> object:
        raise Unreachable("no answer")

    monkeypatch.setattr(kube, "get", away)
    now[0] += 0.9
    one.tick()
    assert shown(metrics, "singularity_holds_void")["singularity_holds_void"] == 0.0
    now[0] += 0.2
    one.tick()
    assert shown(metrics, "singularity_holds_void")["singularity_holds_void"] == 1.0
    monkeypatch.undo()
    assert kube.get(LEASE, "sys", EMPTY["metadata"]["name"])["spec"]["holderIdentity"] == "a"


def test_of_a_queue_only_what_is_late_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("now")
    queue.add("in a minute", 60.0)
    assert (queue.due(), len(queue)) == (1, 2)
    queue.get(0.0)
    assert queue.due() == 0


def test_a_task_is_timed_where_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    reconciler = Reconciler(FakeKube(), Settings(regrow="none"), metrics)
    done = threading.Event()
    monkeypatch.setattr(reconciler, "handle", lambda task: done.wait(0.05))
    for leads, times in ((False, 0), (True, 1)):
        reconciler.leads = (lambda answer: lambda: answer)(leads)
        reconciler.queue.add(Task("job", "n", "j"))
        reconciler._turn(reconciler.queue)
        assert metrics.value("singularity_task_seconds", "job") == times
    (total,) = (v for k, v in shown(metrics, "singularity_task_seconds_sum").items() if '"job"' in k)
    assert 0.05 <= total < 5


def test_a_scrape_shows_queues_copies_and_how_late_the_canary_is() -> None:
    metrics = Metrics()
    reconciler = Reconciler(FakeKube(), Settings(regrow="none"), metrics)
    reconciler.queue.add(CANARY)
    assert shown(metrics, "singularity_queue_depth") == {
        'singularity_queue_depth{queue="jobs"}': 1.0, 'singularity_queue_depth{queue="plans"}': 0.0,
    }  # fmt: skip
    ages = shown(metrics, "singularity_informer_age_seconds")
    assert {f'singularity_informer_age_seconds{{kind="{kind}"}}' for kind in ("jobs", "pods", "workloads")} <= set(ages)
    reconciler._canary_at -= 7
    assert shown(metrics, "singularity_canary_age_seconds")["singularity_canary_age_seconds"] >= 7
    reconciler._turn(reconciler.queue)
    assert shown(metrics, "singularity_canary_age_seconds")["singularity_canary_age_seconds"] < 7


def test_one_gauge_that_fails_hides_no_other() -> None:
    metrics = Metrics()

    def broken() -> list[tuple[str, vitals.Series]]:
        raise RuntimeError("x")

    metrics.compute(broken)
    metrics.compute(vitals.of_lease(lambda: 3.0, 2.0))
    assert shown(metrics, "singularity_holds_void")["singularity_holds_void"] == 1.0
    assert metrics.value("singularity_errors_total") == 1


def test_requests_are_counted_by_verb() -> None:
    metrics = Metrics()
    told: Callable[[str, float, bool], None] = vitals.of_requests(metrics)
    told("patch", 0.2, False)
    told("patch", 0.2, True)
    assert metrics.value("singularity_api_request_seconds", "patch") == 2
    assert metrics.value("singularity_api_errors_total", "patch") == 1
