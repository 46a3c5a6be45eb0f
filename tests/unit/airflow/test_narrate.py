"""What a user reads in the task log: nothing twice, nothing missed, plain words."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from airflow_fakes import ADMITTED, WAITING, make_attempt, make_job, make_workload

from airflow_provider.lineage import MAX_BYTES, document, headline
from airflow_provider.narrate import narrate, progress
from kueue_integration.contract.record_types import AttemptRecord, Skipped
from kueue_integration.contract.saveable import By, Saveable
from kueue_integration.jobs.status import JobStatus, summarise
from singularity_proxy.protocol.messages import Verdict


def status(*attempts: AttemptRecord, waiting: bool = False, **job: Any) -> JobStatus:
    made = make_job(attempts=list(attempts), **job)
    return summarise(made, make_workload(made, *(WAITING if waiting else ADMITTED)), ())


def test_nothing_new_says_nothing() -> None:
    looks = [status(make_attempt(1, first_step=0, first_step_at=1001.0), step=step) for step in (1, 2)]
    assert narrate(looks[0], looks[0]) == []
    assert narrate(looks[0], looks[1]) == []


def test_a_watcher_that_starts_late_tells_the_same_as_one_that_saw_it_all() -> None:
    looks = [
        status(make_attempt(1)),
        status(make_attempt(1, first_step=0, first_step_at=1001.0)),
        status(make_attempt(1, first_step=0, first_step_at=1001.0, evicted_at=1005.0, ended_by="Preempted")),
        status(
            make_attempt(1, first_step=0, first_step_at=1001.0, evicted_at=1005.0, ended_by="Preempted", last_step=9),
            make_attempt(2, admitted_at=1010.0),
        ),
    ]
    live: list[str] = []
    for before, now in zip([None, *looks], looks, strict=False):
        live += [line for line in narrate(before, now) if line.startswith("Attempt")]
    late = [line for line in narrate(None, looks[-1]) if line.startswith("Attempt")]
    assert late == live
    assert len(live) == 4


@pytest.mark.parametrize(
    ("first_step", "words"), [(10, "no step lost"), (8, "2 steps lost and run again"), (9, "1 step lost and run again")]
)
def test_lost_steps_are_counted(first_step: int, words: str) -> None:
    before = make_attempt(1, first_step=0, last_step=9, evicted_at=1005.0, ended_by="Preempted")
    again = make_attempt(2, restored_from="c1", first_step=first_step, first_step_at=1020.0)
    assert words in " ".join(narrate(status(before), status(before, again)))


@pytest.mark.parametrize(
    ("start", "words"), [("c1", "goes on from checkpoint c1"), (None, "starts from the beginning")]
)
def test_a_checkpoint_that_was_skipped_is_named_with_the_reason(start: str | None, words: str) -> None:
    again = make_attempt(2, restored_from=start, skipped=[Skipped("c2", 90, "pack 00ff is missing")])
    told = " ".join(narrate(status(make_attempt(1)), status(make_attempt(1), again)))
    assert f"{words}; checkpoint c2 cannot be restored: pack 00ff is missing" in told


def looked(verdict: Verdict, by: By = "trial", why: str = "") -> JobStatus:
    found = Saveable(1, verdict, 1002.0, by, "program" if verdict == "no" else "", why)
    return dataclasses.replace(status(make_attempt(1, first_step=0, first_step_at=1001.0)), saveable=found)


def test_a_job_that_cannot_be_saved_says_so_once_with_the_reason() -> None:
    unknown, first = looked("not tried"), looked("no", why="pod 0: rank 0: (0.1) traced")
    assert narrate(unknown, unknown) == []
    assert narrate(unknown, first) == [
        "Attempt 1: cannot be saved, as a trial has shown: pod 0: rank 0: (0.1) traced"
    ]
    assert narrate(first, looked("no", "checkpoint", "pod 0: rank 0: (0.2) traced")) == []
    assert narrate(first, looked("yes", "checkpoint")) == ["Attempt 1: can be saved, as a checkpoint has shown"]
    assert narrate(unknown, looked("yes", "checkpoint")) == [], "the attempt tells it"
    assert narrate(unknown, looked("yes")) == ["Attempt 1: can be saved, as a trial has shown"]


def test_why_there_is_no_trial_is_told() -> None:
    (line,) = narrate(looked("not tried"), looked("not tried", "", "it would take 80 s"))
    assert line == "Attempt 1: not tried whether it can be saved: it would take 80 s"


def test_time_that_is_lost_is_told_where_no_step_tells_it() -> None:
    before = make_attempt(1, running_at=1001.0, evicted_at=1080.0, released_at=1081.0, ended_by="Paused")
    lines = narrate(status(before), status(before, make_attempt(2, admitted_at=1100.0)))
    assert any(line.endswith("; starts from the beginning; 80 s of training is lost") for line in lines), lines


def test_waiting_says_why() -> None:
    (line,) = narrate(None, status(waiting=True, suspend=True))
    assert line.startswith("Queued: waits for quota")
    assert "insufficient quota" in line


def test_an_eviction_that_is_no_preemption_names_kueues_reason() -> None:
    line = " ".join(
        narrate(status(make_attempt(1)), status(make_attempt(1, evicted_at=1005.0, ended_by="NodeFailures")))
    )
    assert "evicted by Kueue (NodeFailures)" in line


def test_the_document_is_json_and_counts() -> None:
    found = document(status(make_attempt(1, evicted_at=1.0), make_attempt(2)))
    assert json.loads(json.dumps(found)) == found
    assert headline(found) == "2 attempts, 1 evictions, 0 steps lost, 0 checkpoints"


def test_the_document_is_bounded_and_keeps_the_newest() -> None:
    attempts = [make_attempt(number, note="x" * 1800, checkpoint=f"c{number}") for number in range(1, 51)]
    found = document(status(*attempts))
    assert len(json.dumps(found)) <= MAX_BYTES
    assert found["attempts"][-1]["attempt"] == 50
    assert found["attempts_omitted"] + len(found["attempts"]) == 50


def test_progress_tells_what_the_script_prints() -> None:
    running = dataclasses.replace(status(make_attempt(1, first_step=0, first_step_at=1001.0), step=40), progress={})
    assert progress(running).startswith("Attempt 1: 40 steps done on ")
    assert "," not in progress(running)
    printed = {"step": 20, "total": 80, "loss": 0.123456, "eta_s": 600.0}
    assert progress(dataclasses.replace(running, progress=printed)).endswith(
        ", 25 % of its 80, loss 0.1235, about 10 min left"
    )
    assert progress(dataclasses.replace(running, progress={"loss": 2.0})).endswith(", loss 2")


def test_progress_tells_how_much_of_a_checkpoint_is_saved() -> None:
    saving = {"bytes_done": 312 << 20, "bytes_total": 1600 << 20}
    looked = dataclasses.replace(status(make_attempt(1, first_step=0, first_step_at=1001.0), step=40), saving=saving)
    assert progress(looked) == "Attempt 1: 312 of 1600 MiB of its checkpoint are saved"
