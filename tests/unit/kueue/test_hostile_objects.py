"""Objects of people who mean harm: whatever they write, nobody who reads it raises, and everybody else is served."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import controller_scene as scene
import garbage
import pytest
from controller_scene import NS, T0
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kueue_samples import PLATFORM

from kueue_integration.cli import tables, trace_svg, trace_text
from kueue_integration.contract import attempt_phases, attempt_records, job_names
from kueue_integration.contract.attempt_phases import AttemptPhases
from kueue_integration.contract.leaves import Leave, Shape
from kueue_integration.contract.record_types import JobRequest, NodeRequirement, Placement, RequestStatus
from kueue_integration.contract.saveable import Saveable
from kueue_integration.controller.cache import World
from kueue_integration.controller.errors import RefusedError
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.measure import Meter
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.controller.snapshot import Pod
from kueue_integration.doctor import jobs as doctor_jobs
from kueue_integration.errors import BadAnnotationError
from kueue_integration.job import records
from kueue_integration.jobs import loss_curve, move_trace, unreadable
from kueue_integration.jobs import status as library
from kueue_integration.kube.fake import FakeKube
from kueue_integration.requests import periodic_checkpoints, save_time_estimate, user_requests
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointFailure, CommitRequest, Hello, Progress, Reading, to_json
from singularity_proxy.protocol.outputs import StoredOutputs
from singularity_proxy.protocol.phases import SavePhases, StartPhases

PLACEMENT = Placement(["spot"], ["n1"], [[NodeRequirement("kubernetes.io/hostname", "NotIn", ["n1"])]])
GOOD: dict[str, str] = {
    **scene.history(scene.record(1, first_step_at=T0, first_step=0, last_step=4, ended_by="Preempted"),
                    scene.record(2, first_step_at=T0 + 11, first_step=5, last_step=9)),
    **scene.roster(scene.pod(0, attempt=2), scene.pod(1, attempt=2), attempt=2),
    job_names.ANN_HOLD: job_names.HOLD_ARMED,
    job_names.ANN_HOLD_DEADLINE: scene.at(500),
    job_names.ANN_BUDGET: "120",
    job_names.ANN_PRIVILEGES: "auto",
    job_names.ANN_PRIVILEGES_WHY: "all nodes of its flavors can (spot)",
    names.ANN_CHECKPOINT: to_json(scene.checkpoint()),
    job_names.ANN_CHECKPOINT_COPY: to_json(scene.checkpoint()),
    job_names.ANN_CHECKPOINTS: to_json([scene.checkpoint()]),
    job_names.ANN_PROGRESS: json.dumps({"attempt": 2, "step": 9, "phase": "running", "at": T0 + 20, "printed": 9}),
    job_names.ANN_CURVE: "[[1,0.5],[2,0.25]]",
    job_names.ANN_SAVEABLE: to_json(Saveable(2, "no", T0 + 20, "trial", "program", "pod 0: rank 0: CRIU")),
    job_names.ANN_RESULT: '{"value":{"loss":0.25}}',
    job_names.ANN_INPUTS: '{"data":"gs://results/team/data"}',
    job_names.ANN_OUTPUTS: "gs://results/team/run-7",
    job_names.ANN_OUTPUTS_STORED: to_json(StoredOutputs("gs://results/team/run-7", 2, 17, "0" * 64, 2, 9)),
    job_names.ANN_SCHEMA: "1",
    job_names.ANN_WORKERS: "2",
    job_names.ANN_MIN_WORKERS: "1",
    job_names.ANN_WORLD_SIZE: "2",
    job_names.ANN_RANKS_PER_WORKER: "1",
    job_names.ANN_PHASES: to_json([AttemptPhases(1, StartPhases(join=1.5), SavePhases(dump=2.0))]),
    job_names.ANN_PLACEMENT: to_json(PLACEMENT),
    job_names.ANN_REQUEST: to_json(JobRequest("r1", "migrate", T0, placement=PLACEMENT)),
    job_names.ANN_REQUEST_STATUS: to_json(RequestStatus("r1", "migrate", "running", "m", T0, 1)),
    job_names.ANN_SHAPE_BEFORE: to_json(Shape({job_names.ANN_PLACEMENT: None, job_names.ANN_WORKERS: "4"})),
    job_names.ANN_LEAVE: to_json(Leave(2, "failed", T0 + 20, T0 + 40, T0 + 30, "migrate", "r1", message="m")),
    job_names.ANN_CHECKPOINT_REQUEST: to_json(JobRequest("r2", "checkpoint", T0, timeout_s=60)),
    job_names.ANN_CHECKPOINT_STATUS: to_json(
        RequestStatus("r2", "checkpoint", "running", "m", T0, 2, deadline=T0 + 99)
    ),
    job_names.ANN_CHECKPOINT_EVERY: "60s",
    job_names.ANN_CHECKPOINT_POLICY: '{"cost_s":1.5,"failures":0}',
    job_names.ANN_INFRASTRUCTURE_RETRIES: "3",
    job_names.ANN_BROKEN: '{"attempt":1,"count":1}',
    job_names.ANN_STORE: "file:///shared/checkpoints",
    job_names.COMPLETIONS_EQUAL_PARALLELISM: "true",
    job_names.MIN_PARALLELISM: "1",
}  # fmt: skip
"""Every annotation of a Job that anything of ours reads, each as we would write it."""
HOSTILE = {job_names.ANN_HISTORY: "[" * 100_000, job_names.ANN_BUDGET: "9" * 400}
"""What brought a whole controller down once."""


STORABLE = [text for text in garbage.EXTREMES if not garbage.halved(text)]
"""What an API server can have: it replaces half a character."""


def _mostly_good() -> st.SearchStrategy[dict[str, str]]:
    """All annotations, one to three of them spoilt or gone."""

    def spoil(chosen: list[str]) -> st.SearchStrategy[dict[str, str]]:
        bad = {
            name: st.none() | (garbage.near(GOOD[name]) if _is_json(GOOD[name]) else garbage.texts()) for name in chosen
        }
        return st.fixed_dictionaries(bad).map(
            lambda spoilt: {k: v for k, v in {**GOOD, **spoilt}.items() if v is not None}
        )

    return st.lists(st.sampled_from(sorted(GOOD)), min_size=1, max_size=3, unique=True).flatmap(spoil)


def _is_json(text: str) -> bool:
    return text[:1] in "[{"


def _states() -> list[tuple[dict[str, Any], dict[str, Any] | None, list[dict[str, Any]]]]:
    """A Job in each state in which something else is asked of its annotations, with its Workload and pods."""
    pods = [scene.pod(0, attempt=2), scene.pod(1, attempt=2)]
    lost = [scene.pod(0, attempt=2, phase="Failed")]
    evicted = scene.workload(state="Ready", admitted=True, evicted=("Preempted", scene.PREEMPTED, 20))
    done = [scene.condition("Complete", True, 50)]
    return [
        (scene.job(), scene.workload(), []),
        (scene.job(), scene.workload(reserved_at=None), []),
        (scene.job(suspend=False), scene.workload(state="Ready", admitted=True), pods),
        (scene.job(suspend=False), scene.workload(state="Ready", admitted=True), lost),
        (scene.job(suspend=False), evicted, pods),
        (scene.job(suspend=False), None, pods),
        (scene.job(suspend=False, conditions=done), scene.workload(state="Ready"), []),
    ]


STATES = _states()
NOW = T0 + 30.0


def _decided(job: Any, workload: Any, pods: Any) -> None:
    for now in (NOW, NOW + 1000):
        scene.decide(job, workload, pods, now, Settings(), scene.nobody, lambda job: ["spot", "ondemand"])


def _shown(job: Any, workload: Any, pods: Any) -> None:
    shown = library.summarise(job, workload, pods)
    tables.detail(shown, True).encode()
    tables.jobs_table([shown], True).encode()
    library.to_json(shown)
    traced = move_trace.moves(shown.attempts, attempt_phases.of_job(job))
    assert all(len(line) <= tables.WIDTH for line in trace_text.chart("j", traced).splitlines() if "█" not in line)
    ElementTree.fromstring(trace_svg.picture("j", traced))


def _measured(job: Any, workload: Any, pods: Any) -> None:
    metrics = Metrics()
    meter = Meter(metrics, lambda: True)
    meter.see(scene.job(), False)
    meter.see(job, False)
    assert metrics.text()


def _told(job: Any, workload: Any, pods: Any) -> None:
    """Whatever cannot be read is named, with a reason that fits on a line, and by nothing else than its name."""
    for name, why in records.unreadable(job).items():
        assert name in GOOD and 0 < len(why) < 600
    assert all(len(sentence) < 800 for sentence in unreadable.sentences(job))


def test_good_annotations_are_all_read_and_every_one_is_known() -> None:
    job = scene.job(annotations=GOOD)
    assert records.unreadable(job) == {}
    others = {job_names.COMPLETIONS_EQUAL_PARALLELISM, job_names.MIN_PARALLELISM}
    unset = {
        job_names.ANN_ENGINE, job_names.ANN_HISTORY_ASIDE, job_names.ANN_START_FROM, job_names.ANN_ORIGIN,
        job_names.ANN_REWINDS,
    }  # fmt: skip
    assert set(records.BY_NAME) - unset == set(GOOD) - others
    spoilt = scene.job(annotations={**GOOD, **HOSTILE})
    assert set(records.unreadable(spoilt)) == set(HOSTILE)
    assert "the platform's maximum counts" in "".join(library.summarise(spoilt, None, []).warnings)


def _diagnosed(job: Any, workload: Any, pods: Any) -> None:
    kube = FakeKube(job, *([workload] if workload else []), *pods)
    assert list(doctor_jobs.running(kube, NS, NOW, PLATFORM))


def _read(job: Any, workload: Any, pods: Any) -> None:
    loss_curve.points(job), attempt_records.broken(job)
    save_time_estimate.limits_of(job, 600.0), save_time_estimate.of_job(job)
    periodic_checkpoints.plan(job), periodic_checkpoints.due(job, NOW), periodic_checkpoints.memory(job)
    for slot in user_requests.SLOTS:
        user_requests.running(job, slot)
        request = user_requests.asked(job, slot)
        if request is not None:
            user_requests.problem(job, request, ["spot"])


def _answered(job: Any, workload: Any, pods: Any) -> None:
    """What the pods of this very job hear may be a refusal, never a surprise."""
    checkpoint = scene.checkpoint(attempt=2)
    calls: list[Callable[[], object]] = [
        lambda: reports.hello(job, pods, Hello(NS, "train", 2, 0, "p", "ip"), b"secret"),
        lambda: reports.command(job, NOW),
        lambda: reports.progress(job, Progress(NS, "train", 2, "running", 9, reading=Reading(1, 2, 0.5)), NOW, pods),
        lambda: reports.Standing.of(job).is_news(job, Progress(NS, "train", 2, "running", 9), NOW),
        lambda: reports.note(job, Progress(NS, "train", 2, "running", 9, reading=Reading(1, 2, 0.5)), NOW),
        lambda: reports.commit(job, CommitRequest(NS, "train", 2, checkpoint, 1.0, 9), NOW),
        lambda: reports.commit(job, CommitRequest(NS, "train", 2, checkpoint, 1.0, 9, goes_on=True), NOW),
        lambda: reports.failure(job, CheckpointFailure(NS, "train", 2, "why"), NOW),
        lambda: reports.lifted(job, {job_names.ANN_HOLD: job_names.HOLD_RELEASED}, NOW),
    ]
    for call in calls:
        try:
            call()
        except (BadAnnotationError, RefusedError) as error:
            assert len(str(error)) < 2000


READERS = [_decided, _shown, _told, _measured, _diagnosed, _read, _answered]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(annotations=_mostly_good(), state=st.integers(0, len(STATES) - 1))
def test_no_reader_raises_whatever_an_annotation_says(
    reader: Callable[..., None], annotations: dict[str, str], state: int
) -> None:
    job, workload, pods = copy.deepcopy(STATES[state])
    job["metadata"]["annotations"] = annotations
    job["kind"] = "Job"
    reader(job, workload, pods)


COMBINATIONS = [(name, text, state) for name in sorted(GOOD) for text in STORABLE for state in (2, 4)]


def _run(name: str, text: str, state: int, reader: Callable[..., None]) -> None:
    job, workload, pods = copy.deepcopy(STATES[state])
    job["metadata"]["annotations"] = {**GOOD, name: text}
    reader(job, workload, pods)


def test_every_annotation_with_every_extreme() -> None:
    """The texts that have broken readers, in each annotation: each combination before some reader."""
    for number, combination in enumerate(COMBINATIONS):
        _run(*combination, READERS[number % len(READERS)])


@pytest.mark.full
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_every_annotation_with_every_extreme_before_every_reader(reader: Callable[..., None]) -> None:
    for combination in COMBINATIONS:
        _run(*combination, reader)


@settings(max_examples=60, deadline=None)
@given(text=garbage.texts(), where=st.sampled_from(["hold-index", "attempt", "labels"]))
def test_pods_may_carry_anything(text: str, where: str) -> None:
    job, workload, pods = copy.deepcopy(STATES[2])
    job["metadata"]["annotations"] = dict(GOOD)
    meta = pods[0]["metadata"]
    if where == "labels":
        meta["labels"] = dict.fromkeys(meta["labels"], text)
    else:
        meta["annotations"] = dict.fromkeys(meta["annotations"], text)
    for reader in READERS:
        if reader is not _diagnosed:
            reader(job, workload, pods)
    world = World(FakeKube(job, workload, *pods))
    assert list(world.pods._index(pods[0]))
    assert isinstance(Pod.parse(pods[0]).index, (int, type(None)))
