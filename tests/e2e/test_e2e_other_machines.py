"""Flavors whose nodes differ: the nodes of `spot` announce other machines, with fewer features of the processor.

Processes are sent back from there, a state goes on there, and a job with both leaves as processes and comes in as a
state. The announced machines are labels and a /proc/cpuinfo; the processor is one and the same. Ranks of the process
engine have a /proc of their own. Of their pods the sidecar alone sees the difference, and it is the one that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import state_rows
from other_kinds import ctl
from rows import Rows, Training

from kueue_integration.controller import checkpoint_fit
from localcluster import machines
from localcluster.addons import restricted
from localcluster.demo.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]

SCRIPT = Path(__file__).parent / "scripts" / "train_state.py"
STEPS = 300
OTHER_FEATURES = "CPU with other features"


@pytest.fixture(scope="module", autouse=True)
def lacking(stage: Stage, say: Callable[[str], None]) -> Iterator[list[str]]:
    """What the nodes of `spot` are announced to lack."""
    with machines.different(stage.name, "spot", say) as found:
        yield found


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "machines", say)
    made.queue("q", {"ondemand": "100m", "spot": "50m"})
    yield made
    made.close()


@pytest.fixture(scope="module")
def bare(stage: Stage, say: Callable[[str], None], rows: Rows) -> Iterator[Rows]:
    """A namespace that enforces Pod Security `restricted`, with the same queue."""
    made = Rows(stage, "machines-restricted", say)
    restricted.make(stage.kubectl, made.namespace, stage.platform.volumes)
    made.local_queue("q", rows.cluster_queue("q"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(bare: Rows) -> dict[int, float]:
    """The losses of one worker that nobody disturbs."""
    with pytest.MonkeyPatch.context() as patch:
        job = state_rows.train(bare, patch, "alone", SCRIPT, ["--steps", str(STEPS)], workers=1, pace=0)
    assert [a.flavor for a in job.finish().attempts] == ["ondemand"]
    return dict(job.lines())


def starts(job: Training) -> list[tuple[int, int]]:
    """Of each start of the program: ranks, and features of the processor that they were shown."""
    lines = (job.output / "starts").read_text().splitlines()
    return [(int(world), int(features)) for world, features in map(str.split, lines)]


def test_processes_are_sent_back_from_other_machines_and_wait_for_their_own(rows: Rows, lacking: list[str]) -> None:
    job = rows.train("processes", "q", engine="process")
    job.until_steps(5)
    rows.other("urgent", "q", pods=2)
    first = job.until_ended(1)
    assert first.checkpoint is not None
    machines_lack = f"flavor spot: its nodes lack {', '.join(lacking)}, which checkpoint {first.checkpoint} needs"
    why = f"{checkpoint_fit.NOTE}: {machines_lack}; next: ondemand"
    job.until(lambda s: why in (s.attempts[0].note or ""), "sent back from spot")
    assert job.look().attempt == 1, "no pod was made there"
    rows.remove("urgent")
    job.until_attempt(2)
    last = job.finish()
    assert [a.flavor for a in last.attempts] == ["ondemand", "ondemand"]
    job.assert_exact(last)


def test_a_state_goes_on_there_and_back_with_the_same_bits(
    rows: Rows, bare: Rows, monkeypatch: pytest.MonkeyPatch, alone: dict[int, float]
) -> None:
    sizes: dict[str, Any] = {"workers": 2, "min_workers": 1, "pace": 1}
    job = state_rows.train(bare, monkeypatch, "state", SCRIPT, ["--steps", str(STEPS)], **sizes)
    job.until_steps(3)
    rows.other("urgent", "q", pods=2)
    job.until_attempt(2)
    rows.remove("urgent")  # the quota is free again: it goes back
    job.until_attempt(3)
    last = job.finish()
    assert [(a.flavor, a.ranks) for a in last.attempts] == [("ondemand", 2), ("spot", 1), ("ondemand", 2)]
    assert last.steps_lost == 0
    assert job.lines() == [*alone.items()], "every step once, and every loss with the bits of one worker's"
    (_, here), (_, there), (_, back) = starts(job)
    assert there < here == back, "the pods of spot saw another machine"


def test_a_job_with_both_leaves_as_processes_comes_in_as_a_state_and_is_processes_again(
    rows: Rows, alone: dict[int, float]
) -> None:
    files = {SCRIPT.name: SCRIPT.read_text()}
    job = rows.train(
        "both", "q", workers=2, min_workers=1, world_size=2, pace=1, engine="both",
        script=SCRIPT.name, files=files, args=["--steps", str(STEPS)],
    )  # fmt: skip
    job.until_steps(3)
    rows.other("urgent", "q", pods=2)
    job.until_attempt(2)
    rows.remove("urgent")  # the quota is free again: it goes back
    job.until_attempt(3)
    assert len(starts(job)) == 3, "from a state the program starts anew"
    ctl(rows, "resize", "both", "--workers", "1", "--wait")
    job.until_attempt(4)
    last = job.finish()
    seen = [(a.flavor, a.pods, a.ranks) for a in last.attempts]
    assert seen == [("ondemand", 2, 2), ("spot", 1, 2), ("ondemand", 2, 2), ("ondemand", 1, 2)]
    assert last.steps_lost == 0
    assert [OTHER_FEATURES in (a.note or "") for a in last.attempts] == [False, True, True, False]
    assert len(starts(job)) == 3, "the last attempt went on from the processes: like machines"
    assert job.lines() == [*alone.items()], "every step once, and every loss with the bits of one worker's"
