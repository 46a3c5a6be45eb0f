"""One job through all verbs: checkpoint, a killed pod, resize, migrate, pause, resume, grow. Every loss is exact.

And one that cannot be saved: no verb and no policy stops it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pod_processes
import pytest
from rows import TIMEOUT_S, Rows, Training
from scrape import scrape

from kueue_integration.errors import RequestRefusedError
from kueue_integration.jobs.status import JobStatus
from kueue_integration.kube.resources import Object
from kueue_integration.requests import verbs
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
NAMESPACE = "verbs"
TRACED = Path(__file__).parent / "scripts" / "traced.py"


def ctl(rows: Rows, *args: str) -> subprocess.CompletedProcess[str]:
    """`singularityctl ARGS` as a user runs it."""
    env = {**os.environ, "KUBECONFIG": str(rows.stage.cluster.kubeconfig)}
    command = [str(Path(sys.executable).with_name("singularityctl")), *args, "--namespace", NAMESPACE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=2 * TIMEOUT_S)
    rows.say(f"singularityctl {' '.join(args)}: exit {done.returncode}\n{done.stdout}{done.stderr}".rstrip())
    return done


def verb(rows: Rows, *args: str) -> str:
    done = ctl(rows, *args, "--wait", "--timeout", str(TIMEOUT_S))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def places(job: Training) -> list[tuple[str, int]]:
    return [(a.flavor, a.pods) for a in job.look().attempts]


def kill_launcher(pod: Object) -> None:
    """SIGKILL to pid 1 of the pod's training container, as the kernel does when memory runs out: nothing is saved."""
    found = pod_processes.launchers([pod])
    assert found, f"no launcher of pod {pod['metadata']['name']} on this machine"
    os.kill(int(found[0].name), signal.SIGKILL)


def saved_while_it_goes_on(rows: Rows, job: Training) -> Mapping[str, Any]:
    """Same pods, same containers, same attempt; returns the checkpoint."""
    before = {p["metadata"]["uid"] for p in job.pods()}
    verb(rows, "checkpoint", "verbs")
    status = job.look()
    saved = status.checkpoints[-1]
    assert (status.attempt, status.attempts[-1].ended_by, status.attempts[-1].checkpoint) == (1, None, None)
    status = job.until(lambda s: s.step >= saved["step"] + 5, "5 steps after the checkpoint")
    assert {p["metadata"]["uid"] for p in job.pods()} == before
    restarts = [c["restartCount"] for p in job.pods() for c in p["status"]["containerStatuses"]]
    assert (status.attempt, set(restarts)) == (1, {0})
    return saved


def the_records_say_so(job: Training, last: JobStatus) -> None:
    # Run again, to the same bits: what came between checkpoint and kill (a little more than was reported).
    assert job.repeated() >= last.steps_lost > 0
    ended = [a.ended_by for a in last.attempts]
    assert ended == ["Deleted", "Resized", "Migrated", "Paused", "Resized", "Finished"]
    for one, two in zip(last.attempts[1:], last.attempts[2:], strict=False):
        assert (two.restored_from, two.first_step) == (one.checkpoint, (one.last_step or 0) + 1)


def test_one_job_through_all_verbs(rows: Rows) -> None:
    rows.queue("q", {"ondemand": "100m", "spot": "100m"})
    job = rows.train("verbs", "q", workers=2, min_workers=1, world_size=2)
    job.until_steps(5)
    refused = ctl(rows, "migrate", "verbs", "--flavor", "gold")
    assert (refused.returncode, "has: ondemand, spot" in refused.stderr) == (2, True)

    saved = saved_while_it_goes_on(rows, job)

    # A pod dies without a word: the next attempt starts from that very checkpoint.
    kill_launcher(job.pods()[0])
    status = job.until_attempt(2)
    assert (status.attempts[1].restored_from, status.attempts[1].first_step) == (saved["id"], saved["step"])

    verb(rows, "resize", "verbs", "--workers", "1")
    assert places(job)[-1] == ("ondemand", 1)
    job.until_steps(3)
    verb(rows, "migrate", "verbs", "--flavor", "spot")
    assert places(job)[-1] == ("spot", 1)
    job.until_steps(3)

    verb(rows, "pause", "verbs")
    assert job.look().phase == "Suspended"
    phases = ("Succeeded", "Failed")
    wait_for(lambda: all(p["status"].get("phase") in phases for p in job.pods()), "no pod of it at work", TIMEOUT_S)
    with pytest.raises(RequestRefusedError, match="does not run now"):
        verbs.checkpoint(rows.kube, NAMESPACE, "verbs")
    verb(rows, "resume", "verbs")
    job.until_steps(3)

    # As an Airflow task or a button would: the functions themselves. The pinned flavor holds for growth, too.
    grown = verbs.wait(rows.kube, verbs.resize(rows.kube, NAMESPACE, "verbs", workers=2), TIMEOUT_S)
    assert (grown.state, places(job)[-1]) == ("done", ("spot", 2))
    job.until_steps(3)
    last = job.finish()
    refused = ctl(rows, "resize", "verbs", "--workers", "1")
    assert (refused.returncode, "the job has finished" in refused.stderr) == (2, True)

    the_records_say_so(job, last)


# --- a program that cannot be saved ---------------------------------------------------------------------------------
def printed(job: Training) -> list[list[int]]:
    """Numbers of the lines of both ranks."""
    found = [job.output / f"rank-{rank}.lines" for rank in range(2)]
    return [[int(line) for line in path.read_text().split()] if path.exists() else [] for path in found]


def goes_on(job: Training) -> None:
    """Both ranks print ten more lines, and neither has printed its first one twice."""
    before = [len(lines) for lines in printed(job)]

    def more() -> bool:
        return all(len(now) >= then + 10 for now, then in zip(printed(job), before, strict=True))

    wait_for(more, f"{job.name} goes on", TIMEOUT_S)
    assert [lines.count(0) for lines in printed(job)] == [1, 1]
    assert job.look().attempt == 1


def refusals(rows: Rows) -> float:
    return scrape(rows.kube).get(("singularity_planner_actions_total", "regrow readmit refused"), 0.0)


def test_a_program_that_cannot_be_saved_is_not_stopped(rows: Rows) -> None:
    rows.queue("tight", {"ondemand": "100m", "spot": "50m"})
    rows.other("other", "tight", cpu="50m")
    rows.until_admitted("other")
    job = rows.train(
        "traced", "tight", script=TRACED.name, files={TRACED.name: TRACED.read_text()}, workers=2, min_workers=1,
        world_size=2, checkpoint_budget_s=60,
    )  # fmt: skip
    job.until(lambda s: s.phase == "Running", "it runs")
    goes_on(job)
    assert job.look().attempts[0].pods == 1
    for args in (
        ["checkpoint"], ["pause"], ["migrate", "--flavor", "spot"], ["resize", "--workers", "2", "--min-workers", "2"],
    ):
        done = ctl(rows, args[0], "traced", *args[1:], "--wait", "--timeout", str(TIMEOUT_S))
        assert (done.returncode, "no checkpoint: " in done.stderr) == (1, True), done.stdout + done.stderr
        assert args == ["checkpoint"] or "not stopped, it goes on" in done.stderr
        goes_on(job)
    told = job.look()
    assert (told.workers, told.attempts[0].evicted_at) == (2, None)
    assert told.saveable is not None and (told.saveable.verdict, told.saveable.cause) == ("no", "program")

    rows.say("--> quota for both pods is free, and regrowth acts: it leaves the job alone")
    before = refusals(rows)
    rows.remove("other")
    wait_for(lambda: refusals(rows) > before, "regrowth says that it leaves the job alone", TIMEOUT_S)
    goes_on(job)

    verb(rows, "pause", "traced", "--lose-work")
    assert job.look().phase == "Suspended"
    assert job.look().attempts[0].checkpoint is None
    rows.remove("traced")
