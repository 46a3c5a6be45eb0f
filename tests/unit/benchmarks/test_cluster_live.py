"""A replay with the real controller: compressed settings, the cluster's objects, and what is made of the news."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from benchmarks.cluster import __main__ as cli
from benchmarks.cluster import replay
from benchmarks.cluster.live import fit, objects, run, scale
from benchmarks.cluster.live.attempts import Attempts
from benchmarks.cluster.live.favour import favour
from benchmarks.cluster.live.leader import Told
from benchmarks.cluster.live.stays import Stays, reasons
from benchmarks.cluster.model import HELD, Cluster, Flavor, Job, Tier
from benchmarks.cluster.outcome import EndlessError
from benchmarks.cluster.simulator import Simulation
from kueue_integration.contract import job_names
from kueue_integration.job.pods import INDEX_ANNOTATION
from kueue_integration.kube.resources import Object
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec.platform_config import PlatformConfig

VALUES = Path(__file__).parents[3] / "charts" / "singularity" / "values.yaml"
CLUSTER = Cluster([Flavor("v100", 2, 2.0)], [0.7, 0.3], borrow=0.5)
JOB = Job(7, 1, 60.0, 8, 2, 32, "X", 1200.0, 1.0, 1.0, {"v100": 1.0}, 1.0, tier=Tier.PREMIUM)
PLATFORM = PlatformConfig("agent:1", "https://c", "PEM", store="gs://bucket/checkpoints")


# --- time ---------------------------------------------------------------------------------------------------------
def test_jobs_costs_and_settings_are_played_in_compressed_time() -> None:
    (job,), costs = scale.jobs([JOB], 60.0), scale.costs(HELD, 60.0)
    assert (job.arrival_s, job.work_s) == (1.0, 20.0)
    assert costs.coming(job, 8, False) == pytest.approx(HELD.coming(JOB, 8, False) / 60)
    assert (costs.hold, costs.fails) == (HELD.hold, HELD.fails)
    made = scale.planned("attained_service", 60.0)
    assert made.settings.attained_service.thresholds == [60.0, 600.0]
    assert (made.settings.limits.min_run_s, made.settings.limits.moves_per_hour) == (5.0, 240)
    assert made.settings.every_s == scale.LEAST_S and "planner.everySeconds is 1 and not 0.5" in made.kept
    assert made.name == "attained_service" and made.planner() is not None


def test_the_controller_with_the_hold_alone_plans_nothing() -> None:
    made = scale.planned("none", 60.0)
    assert made.planner() is None and made.name == "none"
    modes = {name: value for name, value in scale.chart_values(made).items() if name.endswith("mode")}
    assert modes == {"regrow__mode": "none"}
    assert scale.chart_values(scale.planned("regrowth,marginal_gain", 60.0))["regrow__mode"] == "act"


@pytest.mark.parametrize("policies", ["none", "time_sharing,lending,defragmentation", "sla_tiers", "introspection"])
def test_every_value_is_one_of_the_chart(policies: str) -> None:
    for name, value in scale.chart_values(scale.planned(policies, 45.0)).items():
        at: Any = yaml.safe_load(VALUES.read_text())
        for part in name.split("__"):
            assert part in at, name
            at = at[part]
        assert at is None or isinstance(value, (type(at), float)), name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policies", "atained"], "give none, or some of regrowth, "),
        (["--policies", "none,lending"], "give none, or some of"),
        (["--policies", ""], "give none, or some of"),
        (["--policies", "cordon"], "give none, or some of"),
        (["--policies", "attained_service,sla_tiers"], "both set priorities"),
        (["--policies", "attained_service", "--compress", "50000"], "give a smaller factor"),
        (["--policies", "none", "--plain"], "--plain"),
        (["--policies", "none", "--devices", "12"], "give a multiple of 8"),
        (["--policies", "none", "--limit", "0"], "--limit = 0: give a positive number"),
    ],
)
def test_bad_arguments_start_no_cluster(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(run, "replay", lambda *_: pytest.fail("a cluster was started"))
    assert cli.main(["replay", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_control_plane_of_this_cluster_is_favoured(tmp_path: Path) -> None:
    programs = {
        "1": "/x/etcd\0--data=/c/mine",
        "2": "/x/etcd\0--data=/c/other",
        "3": "/x/sh\0/c/mine",
        "self": "python",
    }
    for name, command in programs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cmdline").write_text(command)
    (tmp_path / "meminfo").write_text("")
    assert favour(Path("/c/mine"), tmp_path) == ["etcd"]
    assert sorted(path.parent.name for path in tmp_path.glob("*/autogroup")) == ["1", "self"]


# --- objects ------------------------------------------------------------------------------------------------------
def test_a_tenant_has_a_namespace_and_a_queue_with_our_fence() -> None:
    made = objects.cluster_objects(CLUSTER)
    queues = [one for one in made if one["kind"] == "ClusterQueue"]
    checks = [one["spec"]["admissionChecksStrategy"]["admissionChecks"] for one in queues]
    assert checks == [[{"name": job_names.ADMISSION_CHECK_NAME}]] * 2
    assert [one["spec"]["resourceGroups"][0]["coveredResources"] for one in queues] == [["nvidia.com/gpu"]] * 2
    assert [one["metadata"]["name"] for one in made if one["kind"] == "Namespace"] == ["tenant-0", "tenant-1"]
    assert {one["metadata"]["name"]: one["value"] for one in made if one["kind"] == "WorkloadPriorityClass"} == {
        "basic": 0, "standard": 100, "premium": 200
    }  # fmt: skip
    flavor = next(one for one in made if one["kind"] == "ResourceFlavor")["spec"]
    nodes = objects.nodes(CLUSTER)
    assert [node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes] == ["8", "8"]
    assert all(flavor["nodeLabels"].items() <= node["metadata"]["labels"].items() for node in nodes)


def test_a_job_has_a_pod_for_each_worker_and_ranks_to_grow() -> None:
    job = next(one for one in render(objects.spec(JOB, "image"), PLATFORM) if one["kind"] == "Job")
    assert job["spec"]["parallelism"] == 8 and job["metadata"]["namespace"] == "tenant-1"
    notes, labels = job["metadata"]["annotations"], job["metadata"]["labels"]
    assert (notes[job_names.ANN_MIN_WORKERS], notes[job_names.ANN_WORLD_SIZE]) == ("2", "32")
    assert labels[job_names.KUEUE_PRIORITY_LABEL] == "premium"
    assert notes[job_names.ANN_HOLD] == job_names.HOLD_ARMED
    rigid = render(objects.spec(replace(JOB, least=8, most=8), "image"), PLATFORM)[-1]
    assert rigid["metadata"]["annotations"][job_names.ANN_WORLD_SIZE] == "8"
    assert objects.job_of("job-7") == 7 and objects.job_of("rival") is None


# --- news ---------------------------------------------------------------------------------------------------------
def pod(index: int, attempt: int = 1, workers: int = 2, phase: str = "Running", **meta: str) -> Object:
    notes = {job_names.ANN_ATTEMPT: str(attempt), job_names.ANN_WORKERS: str(workers), INDEX_ANNOTATION: str(index)}
    name = f"job-7-{index}-{attempt}"
    about = {"name": name, "namespace": "tenant-1", "uid": name, "labels": {job_names.LABEL_JOB: "job-7"}}
    status = {"phase": phase, "podIP": f"10.0.0.{index}"}
    return {"metadata": {**about, "annotations": notes, **meta}, "status": status}


def test_an_attempt_begins_with_its_last_pod_and_ends_with_its_first() -> None:
    seen = Attempts()
    assert seen.look(pod(1)) is None and seen.look(pod(0, phase="Pending")) is None
    begun = seen.look(pod(0))
    assert begun is not None and not isinstance(begun, tuple)
    assert (begun.key, begun.leader, begun.ip, begun.workers) == ((7, 1), "job-7-0-1", "10.0.0.0", 2)
    assert seen.look(pod(0)) is None, "it has begun"
    assert seen.look(pod(1, deletionTimestamp="2026-01-01T00:00:00Z")) == (7, 1)
    assert seen.look(pod(0)) is None, "it is over"
    seen.look(pod(0, attempt=2, workers=1))
    assert seen.look({"metadata": {"name": "other", "namespace": "x"}, "status": {"phase": "Running"}}) is None


def workload(*true: str, uid: str = "w", why: str = "Preempted", ended: str = "Succeeded") -> Object:
    reason = {"Evicted": why, "Finished": ended}
    told = [{"type": name, "status": "True", "reason": reason.get(name, "x"), "message": "m"} for name in true]
    owner = {"kind": "Job", "name": "job-7"}
    return {"metadata": {"uid": uid, "ownerReferences": [owner]}, "status": {"conditions": told}}


def test_stays_are_read_from_the_news_of_a_workload() -> None:
    stays = Stays()
    for now, seen in enumerate([
        workload(), workload("QuotaReserved"), workload("QuotaReserved", "Admitted"),
        workload("QuotaReserved", "Evicted"), workload("Evicted"), workload("QuotaReserved"),
        workload("QuotaReserved", uid="new"), workload("QuotaReserved", "Finished", uid="new"),
    ]):  # fmt: skip
        stays.look(seen, float(now))
    first, second, third = stays.of[7]
    assert (first.reserved_at, first.evicted_at, first.released_at, first.why) == (1.0, 3.0, 4.0, "Preempted")
    assert (second.reserved_at, second.released_at, third.released_at) == (5.0, 6.0, 7.0)
    assert stays.finished_at == {7: 7.0} and not stays.failed and reasons(stays.of) == {"Preempted": 1}
    assert stays.at(7, 3.5) is first and stays.at(7, 4.5) is None


def test_a_job_that_has_failed_is_told() -> None:
    stays = Stays()
    stays.look(workload("Finished", ended="Failed"), 1.0)
    assert stays.failed == {7: "Failed: m"}


# --- the comparison -----------------------------------------------------------------------------------------------
def played() -> tuple[list[Told], Stays]:
    """Two attempts: the first one is preempted after 10 s of training, the second one ends."""
    stays = Stays()
    for now, seen in (
        (1.0, workload("QuotaReserved")), (20.0, workload("QuotaReserved", "Evicted")), (25.0, workload()),
        (30.0, workload("QuotaReserved")), (55.0, workload("Finished")),
    ):  # fmt: skip
        stays.look(seen, now)
    return [
        Told(7, 1, 8, 3.0, coming_s=5.0, trains_at=10.0, asked_at=20.5, leaving_s=2.0, saved_at=23.0, done_s=10.0),
        Told(7, 2, 8, 32.0, coming_s=6.0, trains_at=40.0, finished_at=53.0, began_s=8.0, done_s=20.0),
    ], stays


def test_what_was_spent_beyond_the_laws_is_kubernetes_own() -> None:
    told, stays = played()
    found = fit.measured([JOB], told, stays)
    assert found.submit.median == 1.0 - JOB.arrival_s
    assert (found.come.median, found.come.cases) == (4.0, 2)
    assert (found.leave.median, found.end.median, found.evict.cases) == (3.0, 2.0, 0)
    costs = fit.with_kubernetes(HELD, found)
    assert costs.coming(JOB, 8, True) == HELD.coming(JOB, 8, True) + 4.0
    assert costs.leaving(JOB, 8) == HELD.leaving(JOB, 8) + 3.0
    assert fit.repeated_s(told) == 2.0


def test_both_books_have_the_same_figures_in_hours() -> None:
    told, stays = played()
    job = replace(JOB, arrival_s=1.0, work_s=20.0)
    (active,) = fit.books(fit.arrivals([replace(job, arrival_s=0.5)], stays), told, stays)
    assert (active.preempted, active.moves, active.attempts) == (1, [], 2)
    found = fit.figures([active], 60.0)
    assert found["completion_mean_h"] == found["makespan_h"] == 0.9
    with pytest.raises(ValueError, match="all done"):
        fit.figures(fit.books([job], told, Stays()), 60.0)


@pytest.mark.parametrize("policies", ["none", "attained_service"])
def test_a_workload_is_simulated_with_the_settings_of_the_chart(policies: str) -> None:
    made = replay.plan(16, 2, 1.2, 1, 60.0, plain=False)
    outcome = run.expected(made, scale.planned(policies, 60.0), fit.GUESS)
    assert all(one.finished_at is not None for one in outcome.jobs)
    assert bool(outcome.allowed) == (policies != "none")
    plain = run.expected(made, scale.planned(policies, 60.0), replace(fit.GUESS, end=fit.spent([])))
    assert fit.figures(outcome.jobs, 60)["makespan_h"] >= fit.figures(plain.jobs, 60)["makespan_h"]


def test_the_file_has_both_sides_and_what_was_not_compressed(tmp_path: Path) -> None:
    made = replace(replay.plan(16, 1, 1.0, 1, 60.0, plain=False), jobs=[replace(JOB, arrival_s=0.0)])
    told, stays = played()
    player: Any = SimpleNamespace(told=told, stays=stays)
    planned = scale.planned("attained_service", 60.0)
    run.write(tmp_path, run.Played(player, "", 60.0, [1.5], {"attainedService": 2}, {"Preempted": 1}), made, planned)
    found = json.loads((tmp_path / "replay-attained_service.json").read_text())
    assert found["real"]["preemptions"] == 1 and found["simulated"]["preemptions"] == 0
    assert found["acted"]["real"] == {"attainedService": 2} and found["agreement"]["evictions"] == [1, 0]
    assert found["not_compressed"]["constants_s"]["regrow.minRunSeconds"] == 10.0
    run.write(tmp_path, run.Played(player, "time is up", 60.0, [], {}, {}), made, planned)
    found = json.loads((tmp_path / "replay-attained_service.json").read_text())
    assert found["trouble"] == "time is up" and found["agreement"] is found["real"] is None
    assert found["simulated"] and found["jobs"]["real"][0]["preemptions"] == 1


def test_a_replay_is_written_also_when_the_simulator_has_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: object) -> None:
        raise EndlessError("1 jobs are not done")

    monkeypatch.setattr(Simulation, "run", endless)
    made = replace(replay.plan(16, 1, 1.0, 1, 60.0, plain=False), jobs=[replace(JOB, arrival_s=0.0)])
    told, stays = played()
    player: Any = SimpleNamespace(told=told, stays=stays)
    found = run.write(tmp_path, run.Played(player, "", 60.0, [], {}, {}), made, scale.planned("none", 60.0))
    assert found["trouble"] == "the simulator has no end: 1 jobs are not done"
    assert found["real"] and found["simulated"] is found["agreement"] is None
