"""A new Job names a checkpoint of another one: what the controller believes, and what it lets start."""

from __future__ import annotations

import json
from dataclasses import replace

import controller_scene as scene
import pytest
from controller_scene import NS, T0

from kueue_integration.contract import attempt_records, branches, job_names
from kueue_integration.controller import origins
from kueue_integration.controller.actions import AnswerReady, BeginFrom, Wait
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.look import Looks
from kueue_integration.controller.machines import unknown
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.controller.snapshot import Job
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, WORKLOAD, merge_patch
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Hello, HelloReply, Origin, from_json, to_json

C1, C2 = scene.checkpoint(3, 1, step=100), scene.checkpoint(3, 2, step=200)
SOURCE_NOTES = {job_names.ANN_CHECKPOINTS: to_json([C1, C2]), names.ANN_CHECKPOINT: to_json(C2)}


def source(name="train", **notes):
    return scene.job(name, annotations={**SOURCE_NOTES, **notes}, suspend=False)


def new(start=None, name="twin", **notes):
    text = to_json(start) if isinstance(start, Origin) else start
    base = {job_names.ANN_WORLD_SIZE: "2", job_names.ANN_STORE: C1.url, job_names.ANN_HOLD: "armed"}
    given = {} if text is None else {job_names.ANN_START_FROM: text}
    return scene.job(name, annotations={**base, **given, **notes}, uid="uid-of-twin")


FROM_C1 = Origin("train", C1.id)


def due(the_job, *jobs):
    return origins.due(Job.parse(the_job), lambda name: next((j for j in jobs if j["metadata"]["name"] == name), None))


def begun(the_job, found):
    return merge_patch(the_job, {"metadata": {"annotations": dict(found.job_annotations)}})


def test_a_fork_begins_with_what_the_other_job_has_committed():
    found = due(new(FROM_C1), source())
    assert isinstance(found, BeginFrom)
    twin = begun(new(FROM_C1), found)
    assert attempt_records.checkpoint(twin) == C1 and attempt_records.checkpoints(twin) == [C1]
    assert branches.origin(twin) == FROM_C1 and branches.maker(twin, "twin", C1.id) == "train"
    assert branches.maker(twin, "twin", "twin-a4-g1") == "twin"
    assert due(twin, source()) is None, "once"
    answer = scene.decide(twin, scene.workload(owner="twin"), (), T0 + 20).action
    assert isinstance(answer, AnswerReady)
    # Its checkpoints have higher numbers than the one that it began with.
    assert (answer.attempt, answer.pod_annotations[names.ANN_CHECKPOINT]) == (4, C1.id)


def test_its_pods_are_told_where_the_checkpoint_lies():
    twin = begun(new(FROM_C1), due(new(FROM_C1), source()))
    record = scene.record(4, restored_from=C1.id)
    twin = merge_patch(twin, {"metadata": {"annotations": scene.history(record)}})
    pods = [scene.pod(0, attempt=4, job_name="twin", ip="10.0.0.1"), scene.pod(1, attempt=4, job_name="twin")]
    reply = reports.hello(twin, pods, Hello(NS, "twin", 4, 0, "twin-0", "10.0.0.1"), b"secret")
    assert reply is not None
    assert (reply.checkpoint, reply.committed, reply.origin) == (C1, [C1], FROM_C1)
    assert from_json(HelloReply, to_json(reply)) == reply
    plain = json.loads(to_json(replace(reply, origin=None)))
    assert "origin" not in plain, "an older sidecar knows no such field"


def test_a_fork_of_a_fork_at_the_same_checkpoint_reads_it_where_it_was_made():
    twin = begun(new(FROM_C1), due(new(FROM_C1), source()))
    third = new(Origin("twin", C1.id), "third")
    assert branches.origin(begun(third, due(third, twin))) == FROM_C1


@pytest.mark.parametrize(
    ("the_job", "jobs", "words"),
    [
        (new("{"), (), "cannot be read"),
        (new(FROM_C1), (), "there is no training job 'train' here"),
        (new(FROM_C1), (scene.job("train", annotations=SOURCE_NOTES, managed=False),), "there is no training job"),
        (new(Origin("train", "train-a9-g9")), (source(),), "checkpoint = 'train-a9-g9': is no committed checkpoint"),
        (new(FROM_C1), (source(**{job_names.ANN_CHECKPOINTS: to_json([replace(C1, unusable="gone"), C2])}),), "gone"),
        (new(FROM_C1, **{job_names.ANN_WORLD_SIZE: "4"}), (source(),), "has 2 ranks, the job has 4"),
        (new(FROM_C1, **{job_names.ANN_ENGINE: "state"}), (source(),), "with engine 'process', the job has 'state'"),
        (new(FROM_C1, **{job_names.ANN_STORE: "gs://mine"}), (source(),), "the store of the job is gs://mine"),
    ],
)  # fmt: skip
def test_what_cannot_be_begun_with_starts_nothing(the_job, jobs, words):
    found = due(the_job, *jobs)
    assert isinstance(found, Wait) and words in found.message and "delete the Job" in found.message
    # Whoever decides without looking there starts nothing either: least of all from the beginning.
    said = scene.decide(the_job, scene.workload(owner="twin"), (), T0 + 20).action
    assert isinstance(said, Wait) and job_names.ANN_START_FROM in said.message


def test_with_the_state_engine_the_number_of_ranks_may_be_another_one():
    ref = replace(C1, engine="state", world_size=8)
    wishes = {"metadata": {"annotations": {job_names.ANN_STORE: C1.url, job_names.ANN_ENGINE: "state"}}}
    assert branches.unfit(wishes, ref) == ""
    assert "made with engine 'state', the job has 'process'" in branches.unfit(new(FROM_C1), ref)


@pytest.mark.parametrize(
    ("engine", "of", "ranks", "words"),
    [
        ("both", "both", "4", ""),
        ("both", "state", "4", ""),
        ("state", "both", "4", ""),
        ("both", "process", "2", ""),
        ("process", "both", "2", ""),
        ("both", "process", "4", "has 2 ranks, the job has 4"),
        ("process", "both", "4", "has 2 ranks, the job has 4"),
        ("process", "state", "2", "give the same engine, or 'both' for a script that uses singularity_train"),
    ],
)
def test_with_both_engines_it_begins_with_a_checkpoint_of_either(engine, of, ranks, words):
    notes = {job_names.ANN_STORE: C1.url, job_names.ANN_ENGINE: engine, job_names.ANN_WORLD_SIZE: ranks}
    found = branches.unfit({"metadata": {"annotations": notes}}, replace(C1, engine=of))
    assert bool(found) == bool(words) and words in found


def test_a_job_that_names_nothing_or_has_run_already_is_left_alone():
    assert due(new(), source()) is None
    assert due(new(FROM_C1, **scene.history(scene.record(1))), source()) is None
    copied = new(FROM_C1)
    copied["metadata"]["labels"][job_names.MULTIKUEUE_ORIGIN_LABEL] = "manager"
    assert due(copied, source()) is None


def test_a_look_writes_it_down_before_anything_else():
    kube = FakeKube()
    for obj in (source(), new(FROM_C1), scene.workload(owner="twin", job_uid="uid-of-twin")):
        kube.put(obj)
    workload = kube.get(WORKLOAD, NS, "job-train-1")

    class Copies:
        """What a controller sees that has both."""

        def job(self, namespace, name):
            return kube.find(JOB, namespace, name) if name == "twin" else None

        def workload_of(self, namespace, name):
            return kube.get(WORKLOAD, NS, "job-train-1") if name == "twin" else None

        def pods_of(self, namespace, name):
            return []

        lost_of = pods_of

        def preemptor(self, uid):
            return None

        flavors_of = preemptor

    class NoHold:
        def seen_at(self, job, workload):
            return None

    looks = Looks(kube, Settings(), Copies(), NoHold(), unknown, Metrics(), lambda: T0 + 20)
    looks.job(NS, "twin", again=lambda seconds: None)
    assert branches.origin(kube.get_job(NS, "twin")) == FROM_C1
    assert kube.get(WORKLOAD, NS, "job-train-1") == workload, "answered on the next look"
    # Where there is nothing to begin with, that is said once, and nothing starts.
    kube.put(new(Origin("nobody", C1.id)))
    for _ in range(2):
        looks.job(NS, "twin", again=lambda seconds: None)
    (check,) = kube.get(WORKLOAD, NS, "job-train-1")["status"]["admissionChecks"]
    assert check["state"] == "Pending" and "there is no training job 'nobody' here" in check["message"]
    assert len([verb for verb, kind, _ in kube.requests if (verb, kind) == ("patch", "Workload")]) == 1
