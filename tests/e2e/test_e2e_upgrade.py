"""An upgrade, its rollback, and the upgrade again, under jobs that train, wait, rest and leave: no step is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import releases
from releases import Release
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.contract import attempt_records, job_names
from kueue_integration.kube.resources import annotation
from kueue_integration.spec.platform_config import NODE
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
NAMESPACE = "upgrade"
QUEUES = {"own": {"ondemand": "150m", "spot": "150m"}, "fought": {"ondemand": "100m"}, "full": {"ondemand": "50m"}}


def test_no_job_notices_an_upgrade_a_rollback_and_the_upgrade_again(
    rows: Rows, stage: Stage, now: Release, say: Callable[[str], None]
) -> None:
    """0.1.0 kept no list of the images that it was configured with: here the administrator names the other one.

    Its guard refuses pods with a user namespace. So the level stays `node`, as with `--reuse-values`, until nobody goes
    back to it any more.
    """
    before = releases.before(stage, say)
    play(rows, before, now, older_trusts=[now.agent], newer_trusts=[before.agent], newer_level=NODE)


@pytest.mark.full
def test_nothing_of_a_release_to_come_is_lost(
    rows: Rows, stage: Stage, now: Release, say: Callable[[str], None]
) -> None:
    """It writes fields and a schema that this one does not know. Images of both are trusted by what the Lease says."""
    jobs = play(rows, now, releases.after(stage, say))
    job = jobs[0].job()
    assert attempt_records.schema(job) == releases.NEXT_SCHEMA
    first, last = attempt_records.history(job)[0], attempt_records.history(job)[-1]
    assert (first.attempt, last.ended_by) == (1, "Finished")
    assert '"weather":"fair"' in (annotation(job, job_names.ANN_HISTORY) or "")


def play(
    rows: Rows,
    older: Release,
    newer: Release,
    older_trusts: Sequence[str] = (),
    newer_trusts: Sequence[str] = (),
    newer_level: str = "",
) -> list[Training]:
    """All of it; the jobs, which have ended well. `newer_level`: the chart's `pods.privileges`; "": its default."""

    def install(release: Release) -> None:
        if release is older:
            release.install(trusted=older_trusts)
        else:
            release.install(trusted=newer_trusts, privileges=newer_level)
        rows.say(f"--> release {release.version} is installed")

    def submitted_with(release: Release) -> None:
        rows.submit = release.submit

    install(older)
    submitted_with(older)
    running = rows.train("running", "own", workers=2)
    paused = rows.train("paused", "own")
    running.until_steps()
    paused.until_steps()
    older.ctl("pause", "paused", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))
    rows.other("in-the-way", "full")
    rows.until_admitted("in-the-way")
    queued = rows.train("queued", "full")
    evicted = rows.train("evicted", "fought", workers=2)
    evicted.until_steps()
    evicted.slow()  # it is asked to save itself, and cannot yet: the hold stands while controllers come and go
    rows.other("urgent", "fought", pods=2)
    evicted.until(lambda s: s.attempts[-1].evicted_at, "its eviction")

    install(newer)
    evicted.slow(False)
    assert evicted.until_ended().checkpoint is not None
    rows.until_admitted("urgent")
    rows.remove("urgent")
    evicted.until_attempt(2)  # pods of the older release, made under the newer one
    rows.remove("in-the-way")
    queued.until_steps()
    newer.ctl("resume", "paused", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))
    paused.until_attempt(2)
    newer.ctl("migrate", "running", "--flavor", "spot", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))
    running.until_attempt(2)
    submitted_with(newer)
    new = rows.train("new", "own")
    new.until_steps()
    newer.ctl("checkpoint", "queued", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))

    install(older)
    for job in (running, paused, queued, evicted, new):
        trains_on(job)
    older.ctl("pause", "new", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))
    older.ctl("resume", "new", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))
    new.until_attempt(2)  # by the agent that wrote the checkpoint, whose format the older release cannot read
    trains_on(new)
    older.ctl("pause", "new", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))
    older.ctl("status", "running", "-n", NAMESPACE)

    install(newer)
    newer.ctl("resume", "new", "-n", NAMESPACE, "--wait", "--timeout", str(TIMEOUT_S))
    new.until_attempt(3)
    ended = {
        running: ["Migrated", "Finished"],
        paused: ["Paused", "Finished"],
        queued: ["Finished"],
        evicted: ["Preempted", "Finished"],
        new: ["Paused", "Paused", "Finished"],
    }
    for job, how in ended.items():
        trains_on(job)
        last = job.finish()
        assert [record.ended_by for record in last.attempts] == how
        job.assert_exact(last)
    return [*ended]


def trains_on(job: Training) -> None:
    """Five steps more of the attempt that runs."""
    seen = job.look()
    status = wait_for(lambda: (s := job.look()).step >= seen.step + 5 and s, f"{job.name}: 5 steps more", TIMEOUT_S)
    assert status.attempt == seen.attempt, status
