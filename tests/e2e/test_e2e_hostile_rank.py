"""A rank, root in its container, that replaces programs, libraries, modules and settings: nothing of it becomes the
launcher, in place, through a preemption and in the next pod; and its training keeps every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import planted
import pod_processes
import pytest
from rows import SCRIPT, Rows, Training

from kueue_integration.requests import verbs
from kueue_integration.spec.platform_config import NODE
from localcluster.demo.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1200)]
HOSTILE = SCRIPT.with_name("hostile.py")


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "hostile", say)
    made.queue("own", {"ondemand": "100m"})
    yield made
    made.close()


def nothing_became_the_launcher(training: Training) -> None:
    found = [launcher / "root" for launcher in pod_processes.launchers(training.pods())]
    assert len(found) == 2, "both pods are looked at"
    for root in found:
        assert (root / "usr/bin/nsenter").read_bytes() == planted.program(), "it was planted"
        ran = planted.ran(root / planted.RECORD.lstrip("/"))
        assert ran, "what the rank itself ran of it is recorded: so would be what the launcher runs"
        assert not [each for each in ran if each.effective & planted.ADDED]


def saved_in_place(training: Training) -> None:
    before = len(training.look().checkpoints)
    verbs.checkpoint(training.rows.kube, training.rows.namespace, training.name)
    status = training.until(lambda s: len(s.checkpoints) > before, "a checkpoint in place")
    step = status.checkpoints[-1]["step"]
    training.until(lambda s: s.step >= step + 3, "it goes on after the checkpoint")


def test_a_hostile_rank_never_becomes_its_launcher_and_keeps_every_bit(rows: Rows) -> None:
    files = {path.name: path.read_text() for path in (SCRIPT, HOSTILE)} | planted.files()
    # A rank that replaces its own program is refused by name in a user namespace: what it plants is tried on the node.
    training = rows.train("planter", "own", workers=2, files=files, script=HOSTILE.name, privileges=NODE)
    training.until_steps(5)
    saved_in_place(training)
    nothing_became_the_launcher(training)
    rows.other("urgent", "own", pods=2)
    ended = training.until_ended(1)
    assert ended.ended_by == "Preempted" and ended.checkpoint
    rows.until_admitted("urgent")
    rows.remove("urgent")
    training.until_attempt(2)
    nothing_became_the_launcher(training)
    saved_in_place(training)
    nothing_became_the_launcher(training)
    training.assert_exact(training.finish())
