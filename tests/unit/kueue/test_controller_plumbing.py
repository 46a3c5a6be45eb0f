"""Work queue, informer, configuration, log lines and metrics."""

from __future__ import annotations

import json
import logging
import threading
import time

import controller_scene as scene
import pytest
from waits import until

from kueue_integration.controller import config, logs
from kueue_integration.controller.cache import World
from kueue_integration.controller.errors import ConfigError
from kueue_integration.controller.informer import Informer
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.work_queue import Lane, WorkQueue
from kueue_integration.errors import Forbidden, Gone, NotFound, Unreachable
from kueue_integration.kube import server_time
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, POD, WORKLOAD, label


# --- queue ----------------------------------------------------------------------------------------------------------
def test_a_key_is_queued_once_with_its_earliest_time():
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 60)
    queue.add("b")
    queue.add("b")
    queue.add("a", 0)
    queue.add("a", 30)
    assert len(queue) == 2
    assert [queue.get(1), queue.get(1)] == ["b", "a"]
    assert queue.get(0) is None
    assert len(queue) == 0


def test_delayed_keys_come_in_their_order():
    queue: WorkQueue[str] = WorkQueue()
    start = time.monotonic()
    queue.add("late", 0.2)
    queue.add("early", 0.05)
    assert queue.get(0) is None
    assert [queue.get(5), queue.get(5)] == ["early", "late"]
    assert time.monotonic() - start >= 0.2


def test_an_addition_wakes_a_waiting_worker():
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = []
    thread = threading.Thread(target=lambda: got.append(queue.get(30)))
    thread.start()
    queue.add("a")
    thread.join(timeout=120)
    assert got == ["a"]


def test_what_is_looked_at_only_to_be_sure_waits_behind_all_else():
    queue: WorkQueue[str] = WorkQueue()
    for name in "abc":
        queue.add(name, lane=Lane.LAST)
    queue.add("change")
    queue.add("canary", lane=Lane.FIRST)
    queue.add("b")
    assert len(queue) == queue.due() == 5
    assert [queue.get(1) for _ in range(5)] == ["canary", "change", "b", "a", "c"]
    assert queue.get(0) is None


def test_a_round_over_all_objects_leaves_their_appointments():
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.2)
    queue.add("a", lane=Lane.LAST)
    assert len(queue) == 1 and queue.get(1) == "a"
    assert queue.get(0) is None and queue.get(5) == "a"


# --- informer -------------------------------------------------------------------------------------------------------
@pytest.fixture
def informer():
    kube = FakeKube(scene.pod(0))
    events: list[tuple[str, bool]] = []
    copy = Informer(
        kube,
        POD,
        lambda obj, deleted: events.append((obj["metadata"]["name"], deleted)),
        index=lambda obj: [label(obj, "batch.kubernetes.io/job-name")],
    )
    yield kube, copy, events
    copy.stop()


def test_an_informer_follows_changes(informer):
    kube, copy, events = informer
    copy.start()
    assert copy.synced.wait(120)
    kube.put(scene.pod(1))
    kube.put(scene.pod(0, phase="Failed"))
    kube.delete(POD, scene.NS, "train-1-a1")
    until(lambda: events[-1:] == [("train-1-a1", True)])
    assert [p["status"]["phase"] for p in copy.indexed("train")] == ["Failed"]
    assert copy.get(scene.NS, "train-1-a1") is None
    assert copy.indexed("other") == []


def test_an_informer_survives_410_and_lost_connections(informer):
    kube, copy, events = informer
    kube.fail_next("list", POD, Unreachable("not up yet"))
    kube.fail_next("watch", POD, Unreachable("connection lost"))
    copy.start()
    until(lambda: ("watch", "Pod", "") in kube.requests)
    kube.put(scene.pod(1))
    kube.delete(POD, scene.NS, "train-0-a1")
    kube.compact()  # the watch that comes back is too old for what happened meanwhile
    until(lambda: ("train-0-a1", True) in events and copy.get(scene.NS, "train-1-a1") is not None)
    assert [p["metadata"]["name"] for p in copy.all()] == ["train-1-a1"]


class InPages(FakeKube):
    """Lists one object at a time; the first time, the moment is forgotten after that."""

    def __init__(self, *objects):
        super().__init__(*objects)
        self.forgetful = True

    def pages(self, kind, namespace=None, selector=None):
        items, version = self.list_versioned(kind, namespace, selector)
        for item in items:
            yield [item], version
            if self.forgetful:
                self.forgetful = False
                raise Gone("GET: the provided continue parameter is too old", 410, "Expired")


def test_an_informer_takes_no_half_list_for_a_whole_one(informer):
    _, copy, events = informer
    copy._kube = InPages(scene.pod(0), scene.pod(1))
    copy.start()
    assert copy.synced.wait(120)
    assert not copy._kube.forgetful
    assert sorted(events) == [("train-0-a1", False), ("train-1-a1", False)]
    assert len(copy.all()) == 2


def test_a_server_that_says_410_every_time_is_asked_with_growing_pauses(informer, monkeypatch):
    kube, copy, _ = informer
    pauses = []
    for _ in range(7):
        kube.fail_next("watch", POD, Gone("too old", 410, "Expired"))
    monkeypatch.setattr(copy._stop, "wait", lambda seconds: pauses.append(seconds))
    copy.start()
    until(lambda: len([r for r in kube.requests if r[0] == "watch"]) == 8)
    assert len(pauses) == 7
    for number, pause in enumerate(pauses):
        longest = min(10.0, 0.5 * 2**number)
        assert longest / 2 <= pause <= longest


# --- configuration --------------------------------------------------------------------------------------------------
@pytest.fixture
def env():
    return {"SINGULARITY_POD": "me"}


def test_defaults_and_what_the_chart_sets(env):
    plain = config.load([], env)
    assert (plain.namespace, plain.lease_duration_s, plain.settings.max_budget_s) == ("singularity-system", 10, 600)
    full = config.load(
        ["--api-port", "1"],
        {
            **env,
            "SINGULARITY_NAMESPACE": "ns",
            "SINGULARITY_MAX_BUDGET_SECONDS": "30",
            "SINGULARITY_REGROW": "none",
            "SINGULARITY_REGROW_MIN_RUN_SECONDS": "0.5",
            "SINGULARITY_LEASE_DURATION_SECONDS": "20",
        },
    )
    assert (full.namespace, full.api_port, full.lease_duration_s) == ("ns", 1, 20)
    assert (full.settings.max_budget_s, full.settings.regrow, full.settings.regrow_min_run_s) == (30, "none", 0.5)


@pytest.mark.parametrize(("said", "mode"), [("", "propose"), ("act", "act"), ("none", "none"), ("propose", "propose")])
def test_regrowth_has_a_mode_and_begins_with_a_dry_run(env, said, mode):
    assert config.load([], {**env, "SINGULARITY_REGROW": said}).settings.regrow == mode


@pytest.mark.parametrize(("said", "seconds"), [("", 120.0), ("45", 45.0), ("off", None)])
def test_attempts_find_out_whether_they_can_be_saved_unless_that_is_off(env, said, seconds):
    assert config.load([], {**env, "SINGULARITY_TRIAL_AFTER_SECONDS": said}).trial_after_s == seconds


def test_the_planner_is_off_and_reads_what_the_chart_sets(env):
    off = config.load([], env).settings.planner
    assert {part.mode for part in (off.cordon, off.attained_service, off.sla_tiers)} == {"none"}
    assert (off.lending.mode, off.defragmentation.mode) == ("none", "none")
    text = '{"everySeconds":5,"limits":{"minRunSeconds":60,"tenantMovesPerHour":7},"cordon":{"mode":"act"}}'
    some = config.load([], {**env, "SINGULARITY_PLANNER": text}).settings.planner
    assert (some.every_s, some.arbiter.min_run_s, some.arbiter.tenant_moves_per_hour) == (5, 60, 7)
    assert (some.cordon.mode, some.time_sharing.mode) == ("act", "none")
    tiers = '{"slaTiers":{"mode":"propose","tiers":{"very_High":0.9},"windowSeconds":60}}'
    named = config.load([], {**env, "SINGULARITY_PLANNER": tiers}).settings.planner.sla_tiers
    assert (named.tiers, named.window_s) == ({"very_High": 0.9}, 60)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"SINGULARITY_POD": ""}, "SINGULARITY_POD"),
        ({"SINGULARITY_SECRET_DIR": "/does/not/exist"}, "SINGULARITY_SECRET_DIR = '/does/not/exist'"),
        ({"SINGULARITY_CERTIFICATE_DAYS": "0"}, "SINGULARITY_CERTIFICATE_DAYS = '0': must be at least 1"),
        ({"SINGULARITY_PLATFORM": "{"}, "SINGULARITY_PLATFORM: platform.json is not valid JSON"),
        ({"SINGULARITY_PLATFORM": "{}"}, "SINGULARITY_PLATFORM: platform.json has no agent_image"),
        ({"SINGULARITY_MAX_BUDGET_SECONDS": "soon"}, "SINGULARITY_MAX_BUDGET_SECONDS = 'soon'"),
        ({"SINGULARITY_MAX_BUDGET_SECONDS": "nan"}, "SINGULARITY_MAX_BUDGET_SECONDS = 'nan'"),
        ({"SINGULARITY_MAX_BUDGET_SECONDS": "0"}, "at least 1"),
        ({"SINGULARITY_TRIAL_AFTER_SECONDS": "never"}, "SINGULARITY_TRIAL_AFTER_SECONDS = 'never'"),
        ({"SINGULARITY_TRIAL_AFTER_SECONDS": "0"}, "SINGULARITY_TRIAL_AFTER_SECONDS = '0': must be at least 1"),
        ({"SINGULARITY_REGROW": "maybe"}, "SINGULARITY_REGROW = 'maybe': must be none, propose or act"),
        ({"SINGULARITY_LEASE_RENEW_SECONDS": "9"}, "SINGULARITY_LEASE_RENEW_SECONDS"),
        ({"SINGULARITY_PLANNER": "{"}, "SINGULARITY_PLANNER .chart value planner.: not valid JSON"),
        ({"SINGULARITY_PLANNER": '{"cordon":{"mode":"on"}}'}, "planner.cordon.mode: 'on' is not one of 'none', 'prop"),
        ({"SINGULARITY_PLANNER": '{"drain":{}}'}, "planner: unknown field 'drain'"),
        ({"SINGULARITY_PLANNER": '{"limits":{"movesPerHour":0}}'}, "planner.limits.movesPerHour"),
        ({"SINGULARITY_PLANNER": '{"limits":{"minRunSeconds":-1}}'}, "planner.limits.minRunSeconds"),
        ({"SINGULARITY_PLANNER": '{"everySeconds":0.1}'}, "planner.everySeconds"),
        ({"SINGULARITY_PLANNER": '{"attainedService":{"thresholds":[5,3]}}'}, "attainedService.thresholds = .5.0"),
        ({"SINGULARITY_PLANNER": '{"slaTiers":{"mode":"act"}}'}, "slaTiers.tiers is empty"),
        ({"SINGULARITY_PLANNER": '{"introspection":{"mode":"act"}}'}, r"prices is empty: .* such as {spot: 0.9}"),
        ({"SINGULARITY_PLANNER": '{"prices":{"spot":-1}}'}, r"planner.prices.'spot'."),
        ({"SINGULARITY_PLANNER": '{"health":{"throttledPercent":101}}'}, "planner.health.throttledPercent"),
        ({"SINGULARITY_PLANNER": '{"health":{"taint":"yes"}}'}, "planner.health.taint"),
        ({"SINGULARITY_PLANNER": '{"slaTiers":{"tiers":{"high":1.5}}}'}, r"planner.slaTiers.tiers.'high'."),
        ({"SINGULARITY_PLANNER": '{"defragmentation":{"mostMoves":0}}'}, "planner.defragmentation.mostMoves"),
        ({"SINGULARITY_PLANNER": '{"lending":{"expectSeconds":0}}'}, "planner.lending.expectSeconds"),
        (
            {"SINGULARITY_PLANNER": '{"lending":{"mode":"act","expectSeconds":9}}'},
            "lending.expectSeconds = 9: must be at least limits.minRunSeconds, 300",
        ),
        (
            {"SINGULARITY_PLANNER": '{"timeSharing":{"mode":"propose","quantumSeconds":9}}'},
            "timeSharing.quantumSeconds = 9: must be at least limits.minRunSeconds, 300",
        ),
        (
            {"SINGULARITY_PLANNER": '{"slaTiers":{"mode":"act","tiers":{"a":1}},"attainedService":{"mode":"act"}}'},
            "attainedService and slaTiers both set priorities",
        ),
    ],
)
def test_bad_settings_are_named(env, change, named):
    with pytest.raises(ConfigError, match=named):
        config.load([], {**env, **change})


# --- small things ---------------------------------------------------------------------------------------------------
def test_times_survive_the_round_trip():
    now = 1_795_212_603.059
    assert server_time.parse(server_time.to_text(now)) == pytest.approx(now, abs=0.001)
    assert server_time.to_text(1_795_212_603.9999) == "2026-11-20T22:10:04.000Z"
    assert server_time.to_micro(1_795_212_603).endswith(":03.000000Z")
    with pytest.raises(ValueError, match="with a time zone"):
        server_time.parse("2026-11-20T22:10:04")


def test_an_observed_time_lies_within_kueues_second():
    changed = {"lastTransitionTime": server_time.to_whole(1000)}
    assert server_time.observed(changed, 1000.4) == 1000.4
    assert 1000 <= server_time.observed(changed, 2000.0) < 1001
    assert server_time.observed(changed, 999.0) == 1000  # clocks differ
    assert server_time.observed(None, 5.0) == 5.0


def test_log_lines_are_json_with_their_fields():
    record = logging.makeLogRecord({"name": "a.b", "levelname": "INFO", "msg": "hold %s", "args": ("x",), "job": "n/j"})
    line = json.loads(logs.JsonFormatter().format(record))
    assert (line["message"], line["job"], line["logger"], line["level"]) == ("hold x", "n/j", "b", "info")


def test_metrics_in_prometheus_text():
    metrics = Metrics()
    metrics.add("singularity_holds_released_total", "deadline")
    metrics.add("singularity_holds_released_total", "deadline")
    metrics.set("singularity_leader", 1)
    text = metrics.text()
    assert 'singularity_holds_released_total{cause="deadline"} 2.0\n' in text
    assert "# TYPE singularity_leader gauge\nsingularity_leader 1.0\n" in text
    assert "singularity_errors_total 0.0\n" in text


def test_an_informer_without_word_from_the_api_server_is_noticed(informer, monkeypatch):
    _, copy, _ = informer
    copy.start()
    assert copy.synced.wait(120)
    assert copy.silent_for() < 60
    now = time.monotonic()
    monkeypatch.setattr("kueue_integration.controller.informer.time.monotonic", lambda: now + 100)
    assert copy.silent_for() > 90


def test_a_claimed_key_is_in_one_hand_only():
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert queue.claim(1.0) == "a"
    queue.add("a")
    queue.add("b")
    assert queue.claim(1.0) == "b"  # "a" is due, but somebody has it
    assert queue.claim(0.05) is None
    queue.done("a")
    assert queue.claim(1.0) == "a"
    queue.done("a")
    assert queue.claim(0.05) is None


def elsewhere(obj, namespace):
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


class Narrowed(FakeKube):
    """Refuses what an account with Roles in `one` and `two` may not ask for."""

    def pages(self, kind, namespace=None, selector=None):
        if kind.namespaced and namespace not in ("one", "two"):
            raise Forbidden(f"GET {kind.path(namespace)}: forbidden", 403)
        return super().pages(kind, namespace, selector)

    def watch(self, kind, namespace=None, selector=None, resource_version=None, timeout_s=60.0):
        assert not kind.namespaced or namespace in ("one", "two")
        return super().watch(kind, namespace, selector, resource_version, timeout_s)


def test_a_controller_of_a_few_namespaces_follows_each_of_them_and_asks_for_no_other():
    kube = Narrowed(*(elsewhere(scene.job(), where) for where in ("one", "other")))
    seen = []
    world = World(
        kube, on_job=lambda job, gone: seen.append((job["metadata"]["namespace"], gone)), namespaces=["one", "two"]
    )
    world.start()
    try:
        assert world.wait_synced(10), world.unlisted
        assert [job["metadata"]["namespace"] for job in world.all_jobs()] == ["one"]
        kube.put(elsewhere(scene.job(), "two"))
        kube.put(elsewhere(scene.pod(0), "two"))
        until(lambda: ("two", False) in seen and world.pods.indexed(("two", "train")))
        assert world.job("two", "train") and world.job("other", "train") is None
        kube.delete(JOB, "one", "train")
        until(lambda: ("one", True) in seen)
        assert world.fresh and {where for where, _ in seen} == {"one", "two"}
    finally:
        world.stop()


def test_a_namespace_without_rights_is_named_and_not_ready():
    world = World(Narrowed(), namespaces=["one", "three"])
    world.start()
    until(lambda: "jobs: namespace three: GET /apis/batch/v1/namespaces/three/jobs: forbidden" in world.unlisted)
    assert not world.synced and not world.fresh
    world.stop()


class WithoutWorkloads(FakeKube):
    def list_versioned(self, kind, namespace=None, selector=None):
        if kind is WORKLOAD:
            raise NotFound("GET workloads: the server could not find the requested resource", 404)
        return super().list_versioned(kind, namespace, selector)


def test_readiness_names_what_cannot_be_listed_and_why():
    world = World(WithoutWorkloads())
    assert "jobs: being listed" in world.unlisted
    world.start()
    missing = "workloads: GET workloads: the server could not find the requested resource"
    until(lambda: world.unlisted == missing, missing, detail=lambda: world.unlisted)
    world.stop()
