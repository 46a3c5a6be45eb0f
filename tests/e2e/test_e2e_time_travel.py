"""Rewind and fork: two jobs go on from one checkpoint, each to the bits of an uninterrupted run.

One pod with two ranks. The script writes into a folder that is called like the job it is a part of.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from other_kinds import ctl
from rows import TIMEOUT_S, Rows, Training, expected_losses

from kueue_integration.contract import attempt_records, branches
from singularity_proxy.protocol.messages import CheckpointRef, Origin

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1200)]
NAMESPACE = "branches"
QUEUES = {"q": {"ondemand": "200m"}}


def saved(rows: Rows, job: Training) -> CheckpointRef:
    """A checkpoint beside the training, which has gone on for some steps since."""
    ctl(rows, "checkpoint", job.name, "--wait")
    found = attempt_records.checkpoint(job.job())
    assert found is not None
    job.until(lambda s: s.step > found.step + 5, "steps after the checkpoint")
    return found


def exact_from(job: Training, first: int) -> int:
    """Steps that a fork has run, after checking each: none is missing, none is run twice, every loss has its bits."""
    every = [job.lines(rank) for rank in range(job.spec.ranks)]
    expected = expected_losses(max(step for lines in every for step, _ in lines) + 1, job.spec.ranks)
    for rank, lines in enumerate(every):
        assert lines[0][0] == first, f"rank {rank} of {job.name} starts with {lines[:1]}"
        assert all(step == before + 1 for (before, _), (step, _) in itertools.pairwise(lines))
        assert [loss for _, loss in lines] == [expected[rank][step] for step, _ in lines]
    return min(map(len, every))


def test_a_job_goes_back_and_a_second_one_goes_on_from_the_same_checkpoint(rows: Rows) -> None:
    job = rows.train("source", "q", world_size=2, args=["--by-job"])
    top = job.output
    job.output = top / "source"
    job.until_steps(5)
    first, second = saved(rows, job), saved(rows, job)
    pods = {pod["metadata"]["uid"] for pod in job.pods()}

    # A fork: the source goes on, in the same pods and the same attempt.
    ctl(rows, "fork", "source", "--from", first.id, "--name", "twin")
    twin = Training(rows, replace(job.spec, name="twin"), top / "twin")
    status = twin.until_attempt(first.attempt + 1, steps=10)
    assert status.origin == Origin("source", first.id)
    assert [(a.restored_from, a.first_step) for a in status.attempts] == [(first.id, first.step)]
    assert {pod["metadata"]["uid"] for pod in job.pods()} == pods and job.look().attempt == 1
    assert '"held_by": [\n      "twin"' in ctl(rows, "checkpoints", "ls", "source", "-o", "json")

    # What is not there is refused before anything happens; then back to before the second checkpoint.
    assert "is no committed checkpoint" in ctl(rows, "rewind", "source", "--to", "source-a9-g9", code=2)
    assert job.look().attempt == 1
    ctl(rows, "rewind", "source", "--to", first.id, "--wait", "--timeout", str(TIMEOUT_S))
    status = job.until_attempt(2)
    one, two = status.attempts
    assert (one.ended_by, one.checkpoint) == ("Rewound", None), "nothing was saved for it"
    assert (two.restored_from, two.first_step) == (first.id, first.step)
    assert one.last_step is not None and one.last_step + 1 > second.step
    assert status.steps_given_up == status.steps_lost == one.last_step + 1 - first.step
    assert {e["id"]: e.get("side_branch", False) for e in status.checkpoints} == {first.id: False, second.id: True}
    shown = " ".join(ctl(rows, "status", "source", "-o", "wide").split())
    assert f"to checkpoint {first.id} (step {first.step}); {status.steps_given_up} steps are given up" in shown

    # It goes on beyond where it was, saves, and the branch leads over the checkpoint that it went back to.
    job.until(lambda s: s.step > (one.last_step or 0) + 5, "all that was given up ran again")
    third = saved(rows, job)
    assert [ref.id for ref in branches.line(job.job())] == [first.id, third.id]
    last = job.finish()
    assert job.repeated() >= last.steps_lost > 0, "to the same bits; a little more than was reported"

    # The fork has saved into a folder of its own, and has never been disturbed.
    own = saved(rows, twin)
    assert own.id.startswith("twin-") and [ref.id for ref in branches.line(twin.job())] == [first.id, own.id]
    assert "all there" in ctl(rows, "checkpoints", "verify", "twin", own.id)
    assert twin.finish().attempt == first.attempt + 1
    # It begins with the line of the step at whose end the source was saved.
    assert exact_from(twin, first.step - 1) > 10
