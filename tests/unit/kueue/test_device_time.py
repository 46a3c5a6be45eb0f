"""Promised and delivered device time: what is measured, what is said not to be, and the same numbers everywhere."""

from __future__ import annotations

import json
import time
from typing import Any

import planner_scene
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from overview_scene import NOW, cluster_queue, local_queue, record, training, workload

from kueue_integration import cli
from kueue_integration.cli import report as command
from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.controller import device_time
from kueue_integration.controller.forever import Skips
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.reconciler import Reconciler
from kueue_integration.errors import Forbidden
from kueue_integration.kube import server_time
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, WORKLOAD, Object
from kueue_integration.overview.look import look
from kueue_integration.overview.shares import JobShare, Shares, shares
from kueue_integration.planner.policies import sla_tiers
from kueue_integration.planner.settings import SlaTiers
from kueue_integration.planner.shares import YOUNG_S, service
from kueue_integration.spec.platform_config import PlatformConfig, to_json

CPU = ("ondemand", "cpu")
TIERS = {"high": 0.9, "low": 0.5}


def platform(**changes: Any) -> Object:
    text = to_json(PlatformConfig("agent", "https://c", "ca", **changes))
    meta = {"name": job_names.PLATFORM_CONFIGMAP, "namespace": job_names.SYSTEM_NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"platform.json": text}}


def job(name: str, *history: AttemptRecord, tier: str = "high", made: float = NOW - 1000, **more: Any) -> Object:
    found = training(name, history, suspend=not history, **more)
    found["metadata"]["creationTimestamp"] = server_time.to_whole(made)
    found["metadata"]["labels"][job_names.KUEUE_PRIORITY_LABEL] = tier
    return found


def scene(*objects: Object, **promised: Any) -> FakeKube:
    """A queue in which `half` has trained for half of its time; more objects as a test needs."""
    half = record(1, queued_at=NOW - 1000, admitted_at=NOW - 500)
    return FakeKube(
        platform(**{"tiers": TIERS, "tiers_window_s": 3600, **promised}),
        cluster_queue("a", {CPU: "4"}), local_queue("training", "a"),
        job("half", half), workload("half", holds=("a", {CPU: "1"}), since=NOW - 500), *objects,
    )  # fmt: skip


def seen(kube: FakeKube, period_s: float | None = None) -> Shares:
    return shares(look(kube, NOW), period_s)


def one(found: Shares, name: str) -> JobShare:
    return next(job for job in found.jobs if job.job == name)


def of(*history: AttemptRecord, since: float = NOW - 1000, created: float = NOW - 1000, **more: Any):
    values: dict[str, Any] = {"wanted": 1, "devices_per_pod": 1, "now": NOW, "holds": False, **more}
    return service(history, created=created, since=since, **values)


# --- from the records -----------------------------------------------------------------------------------------------
def test_delivered_is_the_time_with_quota_over_the_time_asked_for():
    assert of(record(1, admitted_at=NOW - 250, pods=2), wanted=4, holds=True).share == 0.125
    assert of(record(1, admitted_at=NOW - 500), holds=True, since=NOW - 200).share == 1.0
    assert of(devices_per_pod=8).share == 0.0 and of(devices_per_pod=8).asked == 8000.0
    ended = record(1, admitted_at=NOW - 900, released_at=NOW - 600)
    assert of(ended).share == pytest.approx(0.3)


def test_records_that_are_older_than_the_job_count():
    found = of(record(1, queued_at=NOW - 800, admitted_at=NOW - 400), created=NOW - 10, holds=True)
    assert (found.wanted_s, found.share) == (800.0, 0.5)


def test_a_pause_is_time_that_nobody_asked_for():
    before = record(1, admitted_at=NOW - 1000, released_at=NOW - 900, ended_by="Paused")
    paused = of(before, paused=True)
    assert (paused.wanted_s, paused.paused_s, paused.share) == (100.0, 900.0, 1.0)
    resumed = record(2, queued_at=NOW - 300, admitted_at=NOW - 100)
    again = of(before, resumed, holds=True)
    assert (again.wanted_s, again.paused_s, again.share) == (400.0, 600.0, 0.5)
    assert of(before, paused=False).paused_s == 0.0, "it is queued again"


def test_what_is_not_measured_is_said():
    young = of(created=NOW - YOUNG_S + 1, holds=True)
    assert young.share is None
    forgotten = of(record(7, queued_at=NOW - 400, admitted_at=NOW - 400), holds=True)
    assert forgotten.forgotten and (forgotten.wanted_s, forgotten.share) == (400.0, 1.0)
    assert not of(record(7, admitted_at=NOW - 2000), holds=True).forgotten, "the window begins later"
    lost = record(1, admitted_at=NOW - 900, evicted_at=NOW - 800)
    assert of(lost, record(2, admitted_at=NOW - 100), holds=True).unseen_ends == 1


@given(
    st.lists(st.tuples(st.floats(0, 500), st.floats(0, 500), st.booleans()), max_size=6),
    st.floats(1, 5000), st.integers(1, 8), st.booleans(),
)  # fmt: skip
def test_a_share_is_never_below_nothing_or_above_all(spans, window, wanted, holds):
    at, history = NOW - 6000, []
    for number, (waits, runs, pause) in enumerate(spans, 1):
        begin, at = at + waits, at + waits + runs
        ended = {"released_at": at, "ended_by": "Paused" if pause else "Preempted"}
        history.append(record(number, queued_at=begin - waits, admitted_at=begin, **ended))
    found = of(*history, wanted=wanted, since=NOW - window, created=NOW - 6000, holds=holds and not history)
    assert found.served >= 0 and 0 <= found.paused_s <= window + 1e-6 and found.wanted_s >= 0
    assert found.share is None or 0 <= found.share <= 1


def test_the_policy_and_the_report_say_the_same():
    found = planner_scene.job("digits", since=planner_scene.NOW - 980)
    named = planner_scene.replace(found, priority_class="high")
    by_policy = sla_tiers.share(named, planner_scene.NOW, TIERS, 3600.0)
    by_record = service(
        found.attempts, wanted=2, devices_per_pod=1, created=found.created, now=planner_scene.NOW,
        since=planner_scene.NOW - 3600, holds=True,
    )  # fmt: skip
    assert by_policy is not None and by_policy.delivered == by_record.share == pytest.approx(1000 / 3600)


# --- of a cluster ---------------------------------------------------------------------------------------------------
def test_promised_and_delivered_of_jobs_and_tenants():
    waits = job("waits", tier="low"), workload("waits", since=NOW - 1000)
    other = job("other", record(1, admitted_at=NOW - 1000), tier="unlisted"), workload("other", holds=("a", {CPU: "1"}))
    found = seen(scene(*waits, *other, job("young", made=NOW - 10), workload("young", since=NOW - 10)))
    half = one(found, "half")
    assert (half.promised, half.delivered, half.owed) == (0.9, 0.5, 400.0)
    assert (one(found, "waits").delivered, one(found, "waits").owed) == (0.0, 500.0)
    assert (one(found, "other").promised, one(found, "other").delivered) == (None, 1.0)
    assert one(found, "young").delivered is None and "too short to tell" in one(found, "young").unmeasured
    (tenant,) = found.tenants
    assert (tenant.jobs, tenant.unmeasured, tenant.behind) == (4, 1, 2)
    assert (tenant.promised, tenant.delivered, tenant.delivered_all) == (0.7, 0.25, 0.5)
    assert [each.job for each in found.jobs][:2] == ["waits", "half"], "who is owed most comes first"


def test_a_job_that_has_ended_counts_until_its_end():
    ran = record(1, admitted_at=NOW - 900, finished_at=NOW - 800, ended_by="Finished")
    done = job("done", ran, conditions=[{"type": "Complete", "status": "True"}])
    found = one(seen(scene(done)), "done")
    assert (found.ended, found.service.wanted_s, found.delivered) == (True, 200.0, 0.5)
    assert all(each.job != "done" for each in seen(scene(done), 500.0).jobs), "it had ended before the period"


def test_a_job_whose_end_is_not_on_record_yet_ends_with_its_condition():
    runs = record(1, admitted_at=NOW - 900)
    stamp = server_time.to_whole(NOW - 800)
    done = job("done", runs, conditions=[{"type": "Complete", "status": "True", "lastTransitionTime": stamp}])
    found = one(seen(scene(done)), "done")
    assert (found.delivered, found.service.unseen_ends, found.remarks) == (0.5, 0, [])


def test_missing_promises_and_rights_are_named():
    kube = scene()
    kube.delete(CONFIG_MAP, job_names.SYSTEM_NAMESPACE, job_names.PLATFORM_CONFIGMAP)
    found = seen(kube)
    assert found.jobs[0].promised is None and found.jobs[0].delivered == 0.5
    assert any("does not exist" in note for note in found.notes)
    assert any("promises nothing" in note for note in seen(scene(tiers={})).notes)
    spoilt = seen(scene(tiers={"high": 2}))
    assert any("shares must be numbers from 0 to 1" in note for note in spoilt.notes) and spoilt.jobs
    blind = scene()
    blind.fail_next("list", WORKLOAD, Forbidden("no"))
    told = seen(blind)
    assert told.jobs[0].delivered == 0.5 and any("told by the records alone" in note for note in told.notes)


def test_the_gauges_are_the_numbers_of_the_report():
    kube = scene(job("young", made=NOW - 10), workload("young", since=NOW - 10))
    reconciler = Reconciler(kube, Settings(regrow="none"), Metrics())
    reconciler.world.start()
    try:
        assert reconciler.world.wait_synced(10)

        def gauges(leads: bool, tiers: dict[str, float]) -> dict[str, Any]:
            wanted = SlaTiers(tiers=tiers)
            found = device_time.gauges(reconciler.world, lambda: leads, Skips(Metrics()), lambda: NOW, wanted)
            return {name.removeprefix("singularity_"): series for name, series in found}

        assert gauges(True, TIERS) == {
            "job_device_time_promised_ratio": {("default", "half"): 0.9, ("default", "young"): 0.9},
            "job_device_time_delivered_ratio": {("default", "half"): 0.5},
            "tenant_device_time_promised_ratio": {("default", "training"): 0.9},
            "tenant_device_time_delivered_ratio": {("default", "training"): 0.5},
        }
        assert not any(gauges(False, TIERS).values()) and not any(gauges(True, {}).values())
    finally:
        reconciler.world.stop()


# --- at a shell -----------------------------------------------------------------------------------------------------
def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    kube = scene()
    monkeypatch.setattr(command, "open_cluster", lambda kubeconfig, context: kube)
    monkeypatch.setattr(time, "time", lambda: NOW)
    return CliRunner().invoke(cli.main, ["report", *arguments], prog_name="singularityctl")


def test_the_tables_and_the_data(monkeypatch: pytest.MonkeyPatch):
    shown = run(monkeypatch)
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.stdout.splitlines()]
    tenant = next(words for words in lines if words[:2] == ["default", "training"])
    assert tenant[2:7] == ["1", "0", "1", "90.0%", "50.0%"]
    half = next(words for words in lines if words[:1] == ["half"])
    assert half[3:6] == ["high", "90.0%", "50.0%"] and max(map(len, shown.stdout.splitlines())) <= 120
    told = json.loads(run(monkeypatch, "--json", "--period", "200s").stdout)
    assert (told["period_s"], told["jobs"][0]["delivered"], told["tenants"][0]["owed_s"]) == (200.0, 1.0, 0.0)


def test_bad_input_is_named(monkeypatch: pytest.MonkeyPatch):
    wrong = run(monkeypatch, "--period", "soon")
    assert wrong.exit_code == 2 and "--period = 'soon'" in wrong.stderr
    nobody = run(monkeypatch, "--queue", "nobody")
    assert nobody.exit_code == 2 and "there is no ClusterQueue and no LocalQueue" in nobody.stderr
