"""Who was preempted lately, out of the records of attempts."""

from __future__ import annotations

import json

from overview_scene import NOW, cluster_queue, local_queue, record, training, workload

from kueue_integration.contract.record_types import AttemptRecord, Preemptor
from kueue_integration.kube.fake import FakeKube
from kueue_integration.overview import moves
from kueue_integration.overview.look import look
from kueue_integration.overview.model import Training
from kueue_integration.overview.plain import as_json
from kueue_integration.overview.report import overview

URGENT = Preemptor("job-urgent", "team-b", "Job", "urgent", "training", 1000)
GONE = record(1, pods=4, evicted_at=NOW - 50, ended_by="Preempted", preempted_by="job-urgent", preemptor=URGENT,
              checkpoint="c1")  # fmt: skip
MOVED = record(2, evicted_at=NOW - 20, ended_by="Regrown", readmitted_for="regrow", note="quota is free again: 1 -> 4")


def job(*attempts: AttemptRecord, name: str = "digits") -> Training:
    return Training("default", name, f"uid-{name}", "training", 1, attempts)


def test_a_preemption_has_both_sides_and_what_was_saved() -> None:
    (found,) = moves.preemptions([job(GONE, MOVED)], NOW)
    assert (found.namespace, found.job, found.uid, found.attempt) == ("default", "digits", "uid-digits", 1)
    assert (found.time, found.flavor, found.pods, found.checkpoint) == (NOW - 50, "ondemand", 4, "c1")
    assert not found.released, "its checkpoint may be under way"
    assert (found.by, found.preemptor) == ("job-urgent", URGENT)


def test_the_newest_come_first_and_yesterday_is_left_out() -> None:
    later = record(1, evicted_at=NOW - 10, ended_by="Preempted")
    old = record(1, evicted_at=NOW - moves.LATELY_S - 1, ended_by="Preempted")
    jobs = [job(GONE, name="a"), job(later, name="b"), job(old, name="c")]
    assert [found.job for found in moves.preemptions(jobs, NOW)] == ["b", "a"]
    many = [job(record(1, evicted_at=NOW - n, ended_by="Preempted"), name=str(n)) for n in range(moves.MOST + 5)]
    assert [found.job for found in moves.preemptions(many, NOW)] == [str(n) for n in range(moves.MOST)]


def test_the_report_has_them_with_the_attempt_of_each_holder_and_the_annotations_asked_for() -> None:
    kube = FakeKube(
        cluster_queue("a", {("ondemand", "cpu"): "2"}), local_queue("training", "a"),
        cluster_queue("b", {("ondemand", "cpu"): "2"}),
        training("digits", [GONE, record(2)], annotations={"x.dev/mine": "1", "x.dev/other": "2"}),
        workload("digits", holds=("a", {("ondemand", "cpu"): "1"})),
    )  # fmt: skip
    cluster = look(kube, NOW, keep=("x.dev/mine", "x.dev/none"))
    assert [dict(one.kept) for one in cluster.trainings or ()] == [{"x.dev/mine": "1"}]
    report = overview(cluster)
    assert [holder.attempt for holder in report.holders] == [2]
    assert [found.job for found in report.preemptions] == ["digits"]
    assert overview(cluster, "b").preemptions == [], "of the chosen queue only"
    told = json.loads(json.dumps(as_json(report)))
    assert told["preemptions"][0]["preemptor"]["job"] == "urgent" and told["holders"][0]["attempt"] == 2
