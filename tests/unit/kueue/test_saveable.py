"""Whether a job can be saved, as the outcomes of its saves show."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import get_args

import controller_scene as scene
import pytest
from controller_scene import T0

from kueue_integration.cli import tables, top_text
from kueue_integration.contract import job_names, saveable
from kueue_integration.contract.record_types import JobRequest, RequestStatus
from kueue_integration.contract.saveable import Saveable
from kueue_integration.controller import request_status
from kueue_integration.controller.forever import Skips
from kueue_integration.controller.measure import live_gauges
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.controller.snapshot import Snapshot
from kueue_integration.jobs.status import summarise
from kueue_integration.jobs.status import to_json as status_json
from kueue_integration.kube import server_time
from kueue_integration.overview.model import Cluster
from kueue_integration.overview.objects import training
from kueue_integration.overview.plain import as_json
from kueue_integration.overview.report import overview
from singularity_proxy.protocol.messages import CheckpointFailure, CommitRequest, SaveCause, TrialReport, to_json

NOW = T0 + 50
FAILED = CheckpointFailure(scene.NS, "train", 1, "saving failed: pod 0: rank 0: traced", goes_on=True, cause="program",
                           why="pod 0: rank 0: traced. ")  # fmt: skip


def job(*records, **annotations):
    return scene.job(suspend=False, annotations={**scene.history(*(records or [scene.record()])), **annotations})


def after(known, change):
    for name, value in (change or {}).items():
        known["metadata"]["annotations"][name] = value
    return known


def committed(known, attempt=1, sequence=1, goes_on=True):
    ref = scene.checkpoint(attempt=attempt, sequence=sequence)
    return after(known, reports.commit(known, CommitRequest(scene.NS, "train", attempt, ref, 1.0, 9, goes_on), NOW))


def failed(known, **changes):
    return after(known, reports.failure(known, replace(FAILED, **changes), NOW))


@pytest.mark.parametrize("text", [None, "", "{", '{"attempt":1,"verdict":"maybe"}', '{"attempt":1,"at":"x"}'])
def test_a_job_without_a_record_that_can_be_read_was_not_tried(text):
    known = job(**({} if text is None else {job_names.ANN_SAVEABLE: text}))
    assert saveable.current(known) == Saveable(1)
    assert saveable.newest(known) == Saveable(0) and saveable.barred(known) == ""
    assert saveable.current(None).verdict == "not tried"


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_committed_checkpoint_shows_that_the_job_can_be_saved(goes_on):
    assert saveable.current(committed(job(), goes_on=goes_on)) == Saveable(1, "yes", NOW, "checkpoint")


def test_a_failed_checkpoint_shows_that_it_cannot_and_the_first_reason_is_kept():
    found = saveable.current(failed(job()))
    assert found == Saveable(1, "no", NOW, "checkpoint", "program", "pod 0: rank 0: traced")
    assert saveable.barred(failed(job())) == "pod 0: rank 0: traced"


def test_the_failure_of_an_older_sidecar_counts_with_all_that_it_says():
    found = saveable.current(failed(job(), cause="", why=""))
    assert (found.verdict, found.cause, found.why) == ("no", "", "saving failed: pod 0: rank 0: traced")


@pytest.mark.parametrize("cause", get_args(get_args(SaveCause)[0]))
def test_every_kind_of_failure_counts_but_one_before_the_ranks_ran(cause):
    known = failed(committed(job()), cause=cause)
    assert saveable.current(known).verdict == ("yes" if cause == "early" else "no")


def test_the_failure_of_an_eviction_counts_as_any_other():
    known = job(
        scene.record(evicted_at=T0 + 30, ended_by="Preempted"),
        **{job_names.ANN_HOLD: "armed", job_names.ANN_HOLD_DEADLINE: server_time.to_text(T0 + 60)},
    )
    assert saveable.current(failed(known, goes_on=False)).verdict == "no"


def test_a_checkpoint_that_works_takes_a_failure_back():
    known = committed(failed(job()))
    assert saveable.current(known).verdict == "yes" and saveable.barred(known) == ""


def test_the_next_attempt_is_not_tried_yet_and_the_last_outcome_still_bars():
    known = failed(job())
    after(known, scene.history(scene.record(), scene.record(2)))
    assert saveable.current(known) == Saveable(2)
    assert saveable.barred(known) == "pod 0: rank 0: traced", "until a save of it has worked"
    assert saveable.barred(committed(known, attempt=2)) == ""


def test_an_asked_checkpoint_that_nobody_answers_counts():
    request = JobRequest("r", "checkpoint", T0, timeout_s=5)
    status = RequestStatus("r", "checkpoint", "running", "m", T0, attempt=1, deadline=T0 + 5)
    asked = {job_names.ANN_CHECKPOINT_REQUEST: to_json(request), job_names.ANN_CHECKPOINT_STATUS: to_json(status)}
    known = job(scene.record(), **asked)
    late = T0 + 5 + request_status.SILENCE_S
    answer, _ = request_status.follow(Snapshot.parse(known, scene.workload(), [scene.pod(0)]), "check", late)
    assert answer is not None
    found = saveable.current(after(known, answer.job_annotations))
    assert (found.verdict, found.cause, found.why) == ("no", "pods", "the pods gave no answer within 20 s")


def test_a_reason_without_end_is_cut():
    found = saveable.current(failed(job(), why="x" * 10_000))
    assert len(found.why) == saveable.MAX_WHY


def test_why_there_is_no_trial_does_not_replace_an_outcome_of_the_attempt():
    known = after(job(), saveable.untried(job(), 1, NOW, "it would stop the job for about 80 s"))
    assert saveable.current(known) == Saveable(1, "not tried", NOW, why="it would stop the job for about 80 s")
    assert saveable.barred(known) == ""
    assert saveable.untried(committed(job()), 1, NOW, "too large") == {}
    assert saveable.untried(failed(job()), 2, NOW, "too large") != {}, "of another attempt"


def test_the_same_again_is_not_written_again():
    known = failed(job())
    assert job_names.ANN_SAVEABLE not in (reports.failure(known, FAILED, NOW) or {})
    assert json.loads(known["metadata"]["annotations"][job_names.ANN_SAVEABLE])["attempt"] == 1


# --- where it is shown ----------------------------------------------------------------------------------------------
def trial(known, verdict, cause="", why=""):
    return after(known, reports.trial(known, TrialReport(scene.NS, "train", 1, verdict, cause, why), NOW))


SHOWN = [
    (lambda: job(), "not tried", "not tried"),
    (lambda: trial(job(), "not tried", why="it would take 80 s"), "not tried: it would take 80 s", "not tried"),
    (lambda: trial(job(), "yes"), "yes, as a trial has shown at ", "yes"),
    (lambda: committed(job()), "yes, as a checkpoint has shown at ", "yes"),
    (lambda: trial(job(), "no", "program", "pod 0: rank 0: traced"), ": pod 0: rank 0: traced", "no (program)"),
]


@pytest.mark.parametrize(("made", "line", "word"), SHOWN)
def test_status_says_whether_the_attempt_can_be_saved(made, line, word):
    found = summarise(made(), scene.workload(), [])
    shown = next(row for row in tables.detail(found).splitlines() if row.startswith("Saveable: "))
    assert line in shown
    assert tables.saveable_word(found) == word and word in tables.jobs_table([found], wide=True)
    assert json.loads(status_json(found))["saveable"]["verdict"] == word.split(" (")[0]


def test_a_job_that_has_not_started_or_has_ended_says_nothing():
    waits = summarise(scene.job(), scene.workload(), [])
    done = failed(job(scene.record(finished_at=T0 + 60, ended_by="Finished")))
    done["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    for found in (waits, summarise(done, scene.workload(), [])):
        assert "Saveable:" not in tables.detail(found) and tables.saveable_word(found) == ""


def test_top_names_live_jobs_that_cannot_be_saved():
    known = trial(job(), "no", "program", "pod 0: rank 0: traced")
    seen, _ = training(known)
    cluster = Cluster(at=NOW + 90, trainings=[seen, replace(seen, uid="done", name="done", ended=NOW)])
    shown = overview(cluster)
    assert as_json(shown)["unsaveable"] == [
        {"namespace": scene.NS, "job": "train", "attempt": 1, "at": NOW, "cause": "program",
         "why": "pod 0: rank 0: traced"}
    ]  # fmt: skip
    assert re.search(r"CANNOT BE SAVED.*\n *train +team +1 +90 s +program +pod 0: rank 0: traced", top_text.text(shown))


@pytest.mark.parametrize(("cause", "label"), [("program", "program"), ("", "unknown")])
def test_the_gauge_counts_live_jobs_by_kind_of_reason(cause, label):
    class Copies:
        def all_jobs(self):
            return [failed(job(), cause=cause), committed(job())]

        def workload_of(self, *where):
            return scene.workload()

    gauges = dict(live_gauges(Copies(), lambda: True, Skips(Metrics()), lambda: NOW))
    assert gauges["singularity_jobs_unsaveable"] == {(scene.NS, label): 1}
