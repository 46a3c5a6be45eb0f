"""The state engine on a cluster: pods without any privilege, another flavor, another number of workers, the same bits.

The namespace enforces Pod Security `restricted`, so that a pod which asks for more is never made.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import state_rows
from other_kinds import ctl
from rows import SCRIPT as PLAIN
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.contract import attempt_records
from kueue_integration.jobs import start_point
from kueue_integration.jobs.preflight import POD_SECURITY
from kueue_integration.kube.resources import NAMESPACE
from localcluster.addons import restricted
from localcluster.demo import state
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from singularity_proxy.protocol.messages import CheckpointRef, Origin

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

SCRIPT = Path(__file__).parent / "scripts" / "train_state.py"
STEPS = 1500


@pytest.fixture
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = state_rows.restricted(stage, "restricted", say, {"ondemand": "200m", "spot": "100m"})
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def others(stage: Stage, rows: Rows, say: Callable[[str], None]) -> Iterator[Rows]:
    """Jobs of anybody, in the same queue."""
    made = Rows(stage, "restricted-others", say)
    made.local_queue("q", rows.cluster_queue("q"))
    try:
        yield made
    finally:
        made.close()


def train(
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    args: Sequence[str] = (),
    script: Path = SCRIPT,
    **spec: Any,
) -> Training:
    more = args if script is not SCRIPT else ["--steps", str(STEPS), *args]
    return state_rows.train(rows, monkeypatch, name, script, more, **spec)


@pytest.fixture
def alone(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[int, float]]:
    """The losses of one worker that nobody disturbs."""

    def made(*args: str) -> dict[int, float]:
        job = train(rows, monkeypatch, f"alone-{len(args)}", args=args, workers=1, pace=0)
        job.finish()
        losses = dict(job.lines())
        assert list(losses) == list(range(STEPS))
        return losses

    return made


def test_four_workers_two_four_three_without_a_privilege(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch, alone: Callable[..., dict[int, float]]
) -> None:
    job = train(rows, monkeypatch, "elastic", workers=4, min_workers=2, pace=0.5)
    job.until_steps(5)
    others.other("urgent", "q", pods=4)
    job.until_attempt(2)
    (pod,) = [pod for pod in job.pods() if pod["metadata"]["name"].startswith("elastic-0-")][-1:]
    assert pod["spec"]["securityContext"]["runAsNonRoot"], "admitted by `restricted`"

    # The quota is free again: it goes back. Three workers do not divide four virtual ranks evenly.
    others.remove("urgent")
    job.until_attempt(3)
    ctl(rows, "resize", job.name, "--workers", "3", "--wait")
    job.until_attempt(4)
    last = job.finish()
    seen = [(a.flavor, a.pods, a.ranks) for a in last.attempts]
    assert seen == [("ondemand", 4, 4), ("spot", 2, 2), ("ondemand", 4, 4), ("ondemand", 3, 3)]
    assert last.steps_lost == 0
    assert [a.first_step for a in last.attempts[1:]] == [(a.last_step or 0) + 1 for a in last.attempts[:-1]]
    assert all(a.restored_from == b.checkpoint for b, a in zip(last.attempts, last.attempts[1:], strict=False))
    assert job.lines() == [*alone().items()], "every step once, and every loss with the bits of one worker's"


def saved(rows: Rows, monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[Training, Path, CheckpointRef]:
    """A job of two workers that trains, the folder of all jobs' output, and a checkpoint that it took on the side."""
    job = train(rows, monkeypatch, name, args=["--by-job"], workers=2, pace=0.5)
    top = job.output
    job.output = top / name
    job.until_steps(3)
    ctl(rows, "checkpoint", name, "--wait")
    ref = attempt_records.checkpoint(job.job())
    assert ref is not None
    return job, top, ref


@pytest.mark.full
def test_a_job_goes_back_and_another_goes_on_from_the_same_state(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, alone: Callable[..., dict[int, float]]
) -> None:
    job, top, ref = saved(rows, monkeypatch, "source")
    assert (ref.engine, ref.world_size, ref.needs) == ("state", 2, None)
    job.until(lambda s: s.attempt == 1 and s.step > ref.step + 3, "it goes on in place")
    ctl(rows, "fork", "source", "--from", ref.id, "--name", "twin")
    twin = Training(rows, replace(job.spec, name="twin"), top / "twin")
    twin.until_attempt(ref.attempt + 1, steps=3)
    ctl(rows, "rewind", "source", "--to", ref.id, "--wait")
    assert job.until_attempt(2).attempts[1].first_step == ref.step
    job.finish()
    twin.finish()
    expected = alone()
    assert dict(job.lines()) == expected, "what it did again has the same bits"
    assert twin.lines() == [item for item in expected.items() if item[0] >= ref.step]


@pytest.mark.full
def test_another_job_begins_with_the_state_and_has_another_learning_rate(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, alone: Callable[..., dict[int, float]]
) -> None:
    """Population-based training: the best one's state, other arguments, other workers."""
    job, top, ref = saved(rows, monkeypatch, "best")
    bold = replace(job.spec, name="bold", workers=1, command=[*job.spec.command, "--learning-rate", "0.01"])
    volumes = restricted.claimed(rows.namespace, rows.stage.platform.volumes)
    platform = replace(rows.stage.platform, volumes=volumes)
    _, start = start_point.submit(rows.kube, bold, platform, f"best/{ref.id}")
    assert start is not None and start.ref.id == ref.id
    other = Training(rows, bold, top / "bold")
    assert other.until_attempt(ref.attempt + 1).origin == Origin("best", ref.id)
    other.finish()
    job.finish()
    plain, changed = alone(), alone("--learning-rate", "0.01", "--since", str(ref.step))
    assert dict(job.lines()) == plain
    assert other.lines() == [item for item in changed.items() if item[0] >= ref.step]
    assert changed[STEPS - 1] != plain[STEPS - 1], "the new rate counts"


@pytest.mark.full
def test_a_script_without_the_library_is_told_so_and_is_not_held(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = train(rows, monkeypatch, "plain", workers=1, script=PLAIN)
    wait_for(lambda: len(job.lines()) > 3, "it trains", TIMEOUT_S)
    said = ctl(rows, "checkpoint", "plain", "--wait", code=1)
    assert "no rank has called singularity_train.attach so far" in said
    others.other("urgent", "q", pods=4)
    first = job.until_ended(1)
    assert first.checkpoint is None and first.ended_by == "Preempted"
    assert (first.released_at or 0) - (first.evicted_at or 0) < 60, "the hold ends at once, not with its budget"


@pytest.mark.full
def test_the_command_of_the_demonstration_plays_it(stage: Stage, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("singularityctl")
    command = [program, "demo", "--engine", "state", "--name", stage.name, "--output", tmp_path]
    assert subprocess.run(command, timeout=1400).returncode == 0
    written = json.loads((tmp_path / "report.json").read_text())
    assert (written["verdict"], written["steps_lost"], written["bit_identical"]) == ("pass", 0, True)
    assert written["steps_total"] == state.STEPS and "airflow" not in written
    seen = [(a["flavor"], a["pods"], a["ranks"]) for a in written["attempts"]]
    assert seen == [("ondemand", 4, 4), ("spot", 2, 2), ("ondemand", 4, 4), ("ondemand", 3, 3)]
    assert {"every step once", "every sample once", "resized"} <= {check["name"] for check in written["checks"]}
    assert "preempted by" in (tmp_path / "timeline.svg").read_text()
    # A cluster that was up stays up, and its pods were admitted by the level.
    labels = stage.kube.get(NAMESPACE, None, state.RESTRICTED)["metadata"]["labels"]
    assert labels[POD_SECURITY] == "restricted"
