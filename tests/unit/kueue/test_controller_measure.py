"""Metrics of the history: each transition once, whatever is restarted or repeated."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import controller_scene as scene
import pytest
from controller_scene import T0

from kueue_integration.contract import job_names
from kueue_integration.controller import measure
from kueue_integration.controller import metrics as metrics_module
from kueue_integration.controller.forever import Skips
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.measure import Meter, facts, live_gauges
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.reconciler import Reconciler
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import GpuFault, Gpus, to_json

ROOT = Path(__file__).parents[3]
QUEUED = scene.record(queued_at=T0)
STEPS = replace(QUEUED, running_at=T0 + 13, first_step=0, first_step_at=T0 + 14, last_step=99)
EVICTED = replace(STEPS, ended_by="Preempted", evicted_at=T0 + 20)
BARRIER = replace(EVICTED, barrier_at=T0 + 20.5)
COMMITTED = replace(BARRIER, committed_at=T0 + 24, checkpoint="c")
RELEASED = replace(COMMITTED, released_at=T0 + 25)
SECOND = scene.record(2, queued_at=T0 + 25, admitted_at=T0 + 65, restored_from="c")
RESUMED = replace(SECOND, running_at=T0 + 70, first_step=90, first_step_at=T0 + 72)
FINISHED = replace(RESUMED, last_step=200, ended_by="Finished", finished_at=T0 + 90)
LIFE = [
    [], [QUEUED], [STEPS], [EVICTED], [BARRIER], [COMMITTED], [RELEASED], [RELEASED, SECOND], [RELEASED, RESUMED],
    [RELEASED, FINISHED],
]  # fmt: skip
SEEN = {
    ("singularity_eviction_to_barrier_seconds", "Preempted"): (1, 0.5),
    ("singularity_eviction_to_committed_seconds", "Preempted"): (1, 4.0),
    ("singularity_eviction_to_released_seconds", "Preempted"): (1, 5.0),
    ("singularity_admission_to_running_seconds", "fresh"): (1, 3.0),
    ("singularity_admission_to_running_seconds", "restored"): (1, 5.0),
    ("singularity_admission_to_first_step_seconds", "fresh"): (1, 4.0),
    ("singularity_admission_to_first_step_seconds", "restored"): (1, 7.0),
    ("singularity_queue_wait_seconds", "first"): (1, 10.0),
    ("singularity_queue_wait_seconds", "again"): (1, 40.0),
}


def job_with(history):
    return scene.job(annotations=scene.history(*history) if history else {})


def live(stages, meter):
    for stage in stages:
        meter.see(job_with(stage), False)
        meter.see(job_with(stage), False)  # a resync


def counts(metrics):
    return {key: metrics.value(*key) for key in SEEN}


def test_a_whole_life_is_counted_once():
    metrics = Metrics()
    live(LIFE, Meter(metrics, lambda: True))
    for (name, label), (count, total) in SEEN.items():
        assert metrics.value(name, label) == count, name
        key = re.escape(f'="{label}"')
        assert re.search(rf"{name}_sum{{\w+{key}}} {total}\n", metrics.text()), (name, metrics.text())
    assert metrics.value("singularity_attempts_total", "Preempted") == 1
    assert metrics.value("singularity_attempts_total", "Finished") == 1
    assert metrics.value("singularity_steps_lost_total") == 10


@pytest.mark.parametrize("restart", range(len(LIFE)))
def test_a_restart_at_any_point_counts_nothing_twice(restart):
    before, after = Metrics(), Metrics()
    live(LIFE[: restart + 1], Meter(before, lambda: True))
    live(LIFE[restart:], Meter(after, lambda: True))  # the new one lists what the old one left, then goes on
    for key in SEEN:
        assert before.value(*key) + after.value(*key) == 1, key
    ended = sum(m.value("singularity_attempts_total", r) for m in (before, after) for r in ("Preempted", "Finished"))
    assert ended == 2
    assert before.value("singularity_steps_lost_total") + after.value("singularity_steps_lost_total") == 10


def test_a_replica_that_follows_counts_nothing_and_takes_over_where_the_leader_was():
    metrics, leads = Metrics(), [False]
    meter = Meter(metrics, lambda: leads[0])
    live(LIFE[:5], meter)
    assert sum(counts(metrics).values()) == 0
    leads[0] = True
    live(LIFE[4:], meter)
    assert metrics.value("singularity_eviction_to_barrier_seconds", "Preempted") == 0
    assert metrics.value("singularity_eviction_to_committed_seconds", "Preempted") == 1


def test_a_value_that_comes_and_goes_counts_once():
    metrics = Metrics()
    meter = Meter(metrics, lambda: True)
    live([[], [BARRIER], [EVICTED], [replace(BARRIER, barrier_at=T0 + 22)]], meter)
    assert metrics.value("singularity_eviction_to_barrier_seconds", "Preempted") == 1


def test_a_deleted_job_is_forgotten_and_one_of_the_same_name_counts_anew():
    metrics = Metrics()
    meter = Meter(metrics, lambda: True)
    live(LIFE, meter)
    meter.see(job_with(LIFE[-1]), True)
    assert meter._known == {}
    live(LIFE, meter)
    assert metrics.value("singularity_attempts_total", "Finished") == 2


def test_errors_of_gpus_are_counted_as_they_come_and_never_twice():
    """The leader may forget some of them for a moment, when it was started anew."""

    def with_gpus(*faults, ecc=0, more=0):
        found = [GpuFault("GPU-1", xid, count) for xid, count in faults]
        return [replace(STEPS, gpus=Gpus(8, 50.0, ecc_uncorrected=ecc, faults=found, faults_more=more))]

    metrics = Metrics()
    meter = Meter(metrics, lambda: True)
    stages = [
        [STEPS], with_gpus((79, 1)), with_gpus((79, 3), (31, 1), ecc=2), with_gpus(),
        with_gpus((79, 3), (31, 1), ecc=2), with_gpus((79, 4), (31, 1), (5000, 1), more=2, ecc=2),
    ]  # fmt: skip
    live(stages, meter)
    counted = {xid: metrics.value("singularity_gpu_xids_total", xid) for xid in ("79", "31", "other", "5000")}
    assert counted == {"79": 4, "31": 1, "other": 3, "5000": 0}
    assert metrics.value("singularity_gpu_ecc_errors_total", "uncorrected") == 2
    again = Metrics()
    live(stages[-1:], Meter(again, lambda: True))  # a controller that was started anew
    assert again.value("singularity_gpu_xids_total", "79") == 0


def test_steps_alone_are_no_reason_to_count_again(monkeypatch):
    """Every look at each running job sees a later step."""
    counted = []
    monkeypatch.setattr(measure, "facts", lambda history, lost: counted.append(history[-1]) or facts(history, lost))
    meter = Meter(Metrics(), lambda: True)
    failing = replace(STEPS, last_step=400, gpus=Gpus(8, 50.0, ecc_uncorrected=1))
    live([[STEPS], [replace(STEPS, last_step=250)], [replace(STEPS, last_step=399)], [failing]], meter)
    assert [record.last_step for record in counted] == [99, 400]


def test_what_stands_in_an_annotation_makes_no_series_and_no_crash():
    odd = replace(RELEASED, ended_by="x" * 300)
    assert facts([odd])[1, "singularity_attempts_total", ""].label == "Other"
    metrics = Metrics()
    meter = Meter(metrics, lambda: True)
    meter.see(scene.job(), False)
    meter.see(scene.job(annotations={job_names.ANN_HISTORY: "{nonsense"}), False)
    assert metrics.value("singularity_attempts_total", "Other") == 0


def test_a_commit_before_the_eviction_is_not_its_commit():
    told = facts([replace(EVICTED, committed_at=T0 + 10)])
    assert (1, "singularity_eviction_to_committed_seconds", "") not in told
    barrier = facts([replace(EVICTED, barrier_at=T0 + 19.5)])[1, "singularity_eviction_to_barrier_seconds", ""]
    assert barrier.value == 0


def test_gauges_of_live_jobs_go_with_their_jobs():
    now = T0 + 110
    runs = replace(STEPS, gpus=Gpus(2, 75.5, 4, 8))
    saved = {names.ANN_CHECKPOINT: to_json(scene.checkpoint()), **scene.history(runs)}
    held = {job_names.ANN_HOLD: "armed", job_names.ANN_HOLD_DEADLINE: scene.at(120)}
    kube = FakeKube(
        scene.job(annotations={**saved, **held}, suspend=False), scene.workload(state="Ready", admitted=True)
    )
    reconciler = Reconciler(kube, Settings(regrow="none"), Metrics())
    world = reconciler.world
    world.start()
    try:
        assert world.wait_synced(10)

        def gauges(leads):
            return dict(live_gauges(world, lambda: leads, Skips(Metrics()), lambda: now))

        assert gauges(True) == {
            "singularity_holds_active": {(): 1.0},
            "singularity_checkpoint_age_seconds": {(scene.NS, "train"): 60.0},
            "singularity_jobs": {("Running",): 1.0},
            "singularity_jobs_unsaveable": {},
            "singularity_gpu_utilisation_percent": {(scene.NS, "train"): 75.5},
            "singularity_gpu_memory_peak_bytes": {(scene.NS, "train"): 4.0},
        }
        assert list(gauges(False).values()) == [{(): 0.0}, {}, {}, {}, {}, {}]
        reconciler.leads = lambda: True
        assert 'singularity_checkpoint_age_seconds{job="train",namespace="team"}' in reconciler._metrics.text()
        world.jobs._forget((scene.NS, "train"))
        assert gauges(True)["singularity_checkpoint_age_seconds"] == {}
        assert "checkpoint_age_seconds{" not in reconciler._metrics.text()
    finally:
        world.stop()


def test_the_reconciler_measures_what_it_sees():
    kube = FakeKube(job_with([QUEUED]))
    metrics = Metrics()
    reconciler = Reconciler(kube, Settings(regrow="none"), metrics)
    reconciler.leads = lambda: True
    reconciler._on_job(job_with([QUEUED]), False)
    reconciler._on_job(job_with([STEPS]), False)
    assert metrics.value("singularity_admission_to_first_step_seconds", "fresh") == 1
    assert kube.find(JOB, scene.NS, "train") is not None


def test_every_metric_is_documented_with_its_type_and_its_labels():
    counters, gauges, histograms = metrics_module._COUNTERS, metrics_module._GAUGES, metrics_module._HISTOGRAMS
    tables = {"counter": counters, "gauge": gauges, "histogram": histograms}
    known = {name: (kind, labels) for kind, table in tables.items() for name, (_, labels, *_) in table.items()}
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| (`singularity_.*?) \| (\w+) \| (.*?)\| .* \|$", page, re.M)
    documented = {name: (kind, shown) for names, kind, shown in rows for name in re.findall(r"`(\w+)`", names)}
    assert {name: kind for name, (kind, _) in documented.items()} == {name: kind for name, (kind, _) in known.items()}
    for name, (_, labels) in known.items():
        shown = documented[name][1]
        assert all(f"`{label}`" in shown for label in labels) and bool(labels) == bool(shown), name
