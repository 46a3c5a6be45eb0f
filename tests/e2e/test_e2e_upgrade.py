"""An upgrade, its rollback, and the upgrade again, under jobs that train, wait, rest and leave: no step is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import releases
from releases import Release
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.requests import verbs
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
NAMESPACE = "upgrade"
QUEUES = {"own": {"ondemand": "150m", "spot": "150m"}, "fought": {"ondemand": "100m"}, "full": {"ondemand": "50m"}}


@pytest.fixture
def now(stage: Stage) -> Release:
    return releases.of_checkout(stage)


@pytest.fixture
def before(stage: Stage, now: Release, say: Callable[[str], None]) -> Iterator[Release]:
    """The last release; the cluster has this one again afterwards."""
    made = releases.before(stage, say)
    yield made
    now.install()


def test_no_job_notices_an_upgrade_a_rollback_and_the_upgrade_again(rows: Rows, before: Release, now: Release) -> None:
    # 0.1.0 kept no list of the images that it was configured with: for this pair the administrator names the other one.
    before.install(trusted=[now.agent])
    here = rows.submit
    rows.submit = before.submit

    running = rows.train("running", "own", workers=2)
    paused = rows.train("paused", "own")
    running.until_steps()
    paused.until_steps()
    before.ctl("pause", "paused", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))
    rows.other("in-the-way", "full")
    rows.until_admitted("in-the-way")
    queued = rows.train("queued", "full")
    evicted = rows.train("evicted", "fought", workers=2)
    evicted.until_steps()
    evicted.slow()  # it is asked to save itself, and cannot yet: the hold stands while controllers come and go
    rows.other("urgent", "fought", pods=2)
    evicted.until(lambda s: s.attempts[-1].evicted_at, "its eviction")

    now.install(trusted=[before.agent])
    rows.say("--> upgraded")
    rows.submit = here
    evicted.slow(False)
    assert evicted.until_ended().checkpoint is not None
    rows.until_admitted("urgent")
    rows.remove("urgent")
    evicted.until_attempt(2)  # pods of the release before, made under this one
    rows.remove("in-the-way")
    queued.until_steps()
    verbs.wait(rows.kube, verbs.resume(rows.kube, NAMESPACE, "paused"), TIMEOUT_S)
    paused.until_attempt(2)
    verbs.wait(rows.kube, verbs.migrate(rows.kube, NAMESPACE, "running", flavor="spot"), TIMEOUT_S)
    running.until_attempt(2)
    new = rows.train("new", "own")
    new.until_steps()
    saved = verbs.wait(rows.kube, verbs.checkpoint(rows.kube, NAMESPACE, "queued"), TIMEOUT_S)
    assert saved.state == "done", saved

    before.install(trusted=[now.agent])
    rows.say("--> rolled back")
    for job in (running, paused, queued, evicted, new):
        trains_on(job)
    before.ctl("pause", "new", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))
    before.ctl("status", "running", "-n", NAMESPACE)

    now.install(trusted=[before.agent])
    rows.say("--> upgraded again")
    verbs.wait(rows.kube, verbs.resume(rows.kube, NAMESPACE, "new"), TIMEOUT_S)
    new.until_attempt(2)
    ended = {
        running: ["Migrated", "Finished"],
        paused: ["Paused", "Finished"],
        queued: ["Finished"],
        evicted: ["Preempted", "Finished"],
        new: ["Paused", "Finished"],
    }
    for job, how in ended.items():
        trains_on(job)
        last = job.finish()
        assert [record.ended_by for record in last.attempts] == how
        job.assert_exact(last)


def trains_on(job: Training) -> None:
    """Five steps more of the attempt that runs."""
    seen = job.look()
    status = wait_for(lambda: (s := job.look()).step >= seen.step + 5 and s, f"{job.name}: 5 steps more", TIMEOUT_S)
    assert status.attempt == seen.attempt, status
