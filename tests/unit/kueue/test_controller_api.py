"""The pods' API: hello, commits, failures, commands, and what it says of itself."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import aiohttp
import controller_scene as scene
import pytest
from aiohttp import web
from controller_scene import NS
from sidecar_scene import COMMIT, HELLO
from waits import eventually

from kueue_integration.contract import attempt_records, job_names, saveable
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.sidecar_api import http as api_module
from kueue_integration.controller.sidecar_api.hub import Hub
from kueue_integration.controller.sidecar_api.probes import health_app
from kueue_integration.errors import Conflict, Unreachable
from kueue_integration.kube import server_time
from kueue_integration.kube.resources import EVENT, JOB, POD, TOKEN_REVIEW, annotation
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import (
    CheckpointFailure,
    Command,
    Damage,
    DamageReport,
    HelloReply,
    Progress,
    TrialReport,
    from_json,
    to_json,
)


async def test_hello(served):
    status, body = await served.post("/v1/hello", HELLO, "follower")
    assert status == 200
    reply = from_json(HelloReply, json.dumps(body))
    assert (reply.leader_ip, reply.checkpoint) == ("10.0.0.1", None)
    assert "trial_after_s" not in body, "a pod that was made before the controller's upgrade would not understand it"
    _, knows = await served.post("/v1/hello?trial=1", HELLO, "follower")
    assert from_json(HelloReply, json.dumps(knows)).trial_after_s == 90.0
    again = await served.post("/v1/hello", HELLO, "follower")
    assert again == (status, body)
    reviews = [r for r in served.kube.requests if r[1] == TOKEN_REVIEW.name]
    assert len(reviews) == 1  # believed for a minute


async def test_only_the_leader_reports_and_commits(served):
    for path, message in (
        ("/v1/commit", COMMIT),
        ("/v1/progress", Progress(NS, "train", 1, "running", 3)),
        ("/v1/failure", CheckpointFailure(NS, "train", 1, "x")),
        ("/v1/trial", TrialReport(NS, "train", 1, "no", "program", "x")),
    ):
        status, body = await served.post(path, message, "follower")
        assert (status, "not the leader" in body["error"]) == (403, True)
    assert (await served.commands("follower"))[0] == 403


async def test_a_commit_is_answered_after_the_job_has_it(served):
    assert await served.post("/v1/commit", COMMIT) == (200, {})
    assert json.loads(annotation(served.job(), names.ANN_CHECKPOINT))["id"] == "train-a1-g1"
    assert annotation(served.job(), job_names.ANN_HOLD) == "released"
    assert await served.post("/v1/commit", COMMIT) == (200, {})  # the answer was lost: asked again
    assert served.metrics.value("singularity_checkpoints_committed_total") == 1


async def test_any_pod_of_the_attempt_says_that_its_checkpoint_is_damaged(served):
    older, given = scene.checkpoint(0, 1), scene.checkpoint(0, 2)
    record = scene.history(scene.record(restored_from=given.id))
    notes = {names.ANN_CHECKPOINT: to_json(given), job_names.ANN_CHECKPOINTS: to_json([older, given]), **record}
    served.kube.patch_job(NS, "train", {"metadata": {"annotations": notes}})
    report = DamageReport(NS, "train", 1, [Damage(given.id, "pack 00ff is missing")])
    assert (await served.post("/v1/damage", report, "stranger"))[0] == 403
    assert attempt_records.checkpoint(served.job()) == given
    for _ in range(2):
        assert await served.post("/v1/damage", report, "follower") == (200, {})
    assert attempt_records.checkpoint(served.job()) == older
    assert "singularity_checkpoints_damaged_total 1.0" in served.metrics.text()


async def test_a_restore_that_failed_is_counted_once_with_the_node_of_the_pod_that_says_so(served):
    given = scene.checkpoint(0, 2)
    record = scene.history(scene.record(restored_from=given.id))
    notes = {names.ANN_CHECKPOINT: to_json(given), job_names.ANN_CHECKPOINTS: to_json([given]), **record}
    served.kube.patch_job(NS, "train", {"metadata": {"annotations": notes}})
    report = DamageReport(NS, "train", 1, [Damage(given.id, "no such file", tried=True, passes=True)])
    for _ in range(2):
        assert await served.post("/v1/damage", report, "follower") == (200, {})
    [failed] = attempt_records.checkpoint(served.job()).failed
    assert (failed.attempt, failed.why, failed.passes) == (1, "no such file", True)
    text = served.metrics.text()
    assert "singularity_restores_failed_total 1.0" in text and "singularity_checkpoints_damaged_total 0.0" in text


async def test_a_stale_attempt_commits_nothing(served):
    """Our copy of the Job may not have the new attempt yet: what counts is the API server's."""
    served.annotate(ANN_ATTEMPT="2")
    status, body = await served.post("/v1/commit", COMMIT)
    assert status == 409
    assert "attempt 1 is not current" in body["error"]
    assert annotation(served.job(), names.ANN_CHECKPOINT) is None


async def test_two_writers_do_not_lose_each_others_changes(served):
    for _ in range(3):
        served.kube.fail_next("patch", JOB, Conflict("somebody else wrote", 409))
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    assert annotation(served.job(), names.ANN_CHECKPOINT) is not None
    assert served.metrics.value("singularity_conflicts_total") == 3


async def test_an_attempt_that_ends_between_read_and_write_is_not_committed(served):
    original = served.kube.patch

    def patch(kind, namespace, name, body, resource_version=None, subresource=None):
        served.kube.patch = original
        served.annotate(ANN_ATTEMPT="2")
        return original(kind, namespace, name, body, resource_version, subresource)

    served.kube.patch = patch
    assert (await served.post("/v1/commit", COMMIT))[0] == 409
    assert annotation(served.job(), names.ANN_CHECKPOINT) is None


async def test_without_the_api_server_a_commit_is_not_acknowledged(served):
    served.kube.fail_next("patch", JOB, Unreachable("no answer"))
    status, _ = await served.post("/v1/commit", COMMIT)
    assert status == 503
    assert annotation(served.job(), names.ANN_CHECKPOINT) is None


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/hello", "{", "not valid JSON"),
        ("/v1/hello", "{}", "field 'namespace' is missing"),
        ("/v1/progress", '{"namespace": "team", "job": "train", "attempt": "1"}', "Progress.attempt: expected int"),
    ],
)
async def test_bad_messages_are_refused_by_field(served, path, body, text):
    status, answer = await served.post(path, body)
    assert status == 400
    assert text in answer["error"]


async def test_bad_queries_unknown_jobs_and_paths(served):
    assert (await served.commands(attempt="one"))[0] == 400
    assert (await served.commands(job=""))[0] == 400
    assert (await served.commands(job="nobody"))[0] == 409  # deleted: its pods end at once
    assert (await served.post("/v1/unknown", "{}"))[0] == 404


async def test_a_command_wakes_the_long_poll(served):
    waiting = asyncio.create_task(served.commands())
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    deadline = time.time() + 60
    served.annotate(ANN_HOLD_DEADLINE=server_time.to_text(deadline))
    status, body = await asyncio.wait_for(waiting, 120)
    command = from_json(Command, body)
    assert (status, command.op, command.then) == (200, "checkpoint", "stop")
    assert command.remaining_s == pytest.approx(deadline - time.time(), abs=5)
    # what has been heard is not said again; the answer after that is for the next request
    waiting = asyncio.create_task(served.commands(after=str(command.seq)))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    served.annotate(ANN_ATTEMPT="2")
    assert (await asyncio.wait_for(waiting, 120))[0] == 409


async def test_a_copy_that_is_behind_does_not_end_the_attempt(served, monkeypatch):
    """The watch lags: our copy still shows the attempt before, or a Job of that name that is gone."""
    monkeypatch.setattr(api_module, "LONG_POLL_S", 0.2)
    before = scene.job(suspend=False, annotations={job_names.ANN_HOLD: "armed", job_names.ANN_ATTEMPT: "0"})
    gone = scene.job(suspend=False, uid="gone", annotations={job_names.ANN_HOLD: "armed", job_names.ANN_ATTEMPT: "9"})
    for copy in (before, gone):
        monkeypatch.setattr(served.world.jobs, "get", lambda namespace, name, copy=copy: copy)
        assert await served.commands() == (204, "")


async def test_a_long_poll_without_news_ends_with_204(served, monkeypatch):
    monkeypatch.setattr(api_module, "LONG_POLL_S", 0.2)
    assert await served.commands() == (204, "")


@pytest.mark.parametrize("left_s, cause, expired", [(60, "failed", 0.0), (-0.1, "deadline", 1.0)])
async def test_a_hold_that_the_pods_end_is_counted_once(served, left_s, cause, expired):
    served.annotate(ANN_HOLD_DEADLINE=server_time.to_text(time.time() + left_s))
    for _ in range(2):
        assert (await served.post("/v1/failure", CheckpointFailure(NS, "train", 1, "rank 1 is stuck")))[0] == 200
    assert annotation(served.job(), job_names.ANN_HOLD) == "released"
    lines = served.metrics.text().splitlines()
    assert f'singularity_holds_released_total{{cause="{cause}"}} 1.0' in lines
    assert f"singularity_holds_expired_total {expired}" in lines


def events(served):
    found, _ = served.kube.list_versioned(EVENT, NS, "")
    return [(e["reason"], e["type"], e["message"], e["involvedObject"]["name"]) for e in found]


async def test_a_trial_is_written_on_the_job_and_told_once(served):
    report = TrialReport(NS, "train", 1, "no", "program", "pod 0: rank 0: traced")
    for again in ("", " (0.12) now"):
        assert await served.post("/v1/trial", replace(report, why=report.why + again)) == (200, {})
    found = saveable.current(served.job())
    assert (found.verdict, found.by, found.cause) == ("no", "trial", "program")
    text = "attempt 1 cannot be saved, as a trial has shown: pod 0: rank 0: traced"
    assert events(served) == [("CannotBeSaved", "Warning", text, "train")]
    assert served.metrics.value("singularity_save_trials_total", "no") == 2
    assert await served.post("/v1/trial", TrialReport(NS, "train", 1, "yes")) == (200, {})
    assert saveable.current(served.job()).verdict == "yes" and len(events(served)) == 1


async def test_a_failed_checkpoint_is_told_in_an_event_and_one_that_is_too_early_is_not(served):
    early = CheckpointFailure(NS, "train", 1, "no rank runs yet", goes_on=True, cause="early")
    assert await served.post("/v1/failure", early) == (200, {})
    assert events(served) == []
    await served.post("/v1/failure", replace(early, cause="time", message="no step boundary within 30 s"))
    (event,) = events(served)
    assert event[2] == "attempt 1 cannot be saved, as its last checkpoint has shown: no step boundary within 30 s"


async def test_an_api_server_that_takes_no_event_costs_the_event_alone(served, monkeypatch):
    create = served.kube.create

    def refuse(obj, dry_run=False):
        if obj["kind"] == "Event":
            raise Unreachable("events are full")
        return create(obj, dry_run)

    monkeypatch.setattr(served.kube, "create", refuse)
    assert await served.post("/v1/trial", TrialReport(NS, "train", 1, "no", "program", "x")) == (200, {})
    assert saveable.current(served.job()).verdict == "no"


async def test_a_failure_releases_the_hold(served):
    served.annotate(ANN_HOLD_DEADLINE=server_time.to_text(time.time() + 60))
    assert await served.post("/v1/failure", CheckpointFailure(NS, "train", 1, "rank 1 is stuck")) == (200, {})
    assert annotation(served.job(), job_names.ANN_HOLD) == "released"
    (record,) = scene.stored(served.job()["metadata"]["annotations"])
    assert record.note == "no checkpoint: rank 1 is stuck; restarts from the beginning"


async def test_health_and_metrics():
    problem = {"ready": "objects are being listed", "alive": ""}
    runner = web.AppRunner(health_app(lambda: problem["ready"], lambda: problem["alive"], Metrics()))
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0).start()
    url = f"http://localhost:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:

        async def get(path):
            async with session.get(url + path) as response:
                return response.status, await response.text()

        assert await get("/readyz") == (503, "objects are being listed\n")
        assert await get("/healthz") == (200, "ok\n")
        problem["ready"] = ""
        assert await get("/readyz") == (200, "ok\n")
        assert "singularity_leader 0" in (await get("/metrics"))[1]
    await runner.cleanup()


@pytest.mark.parametrize(
    ("given", "shown", "names"),
    [("secret", None, False), ("secret", "Bearer wrong", False), ("secret", "Bearer \u00e4", False),
     ("secret", "Bearer ", False), ("secret", "Bearer secret", True), ("", "Bearer ", False), ("", None, False)],
)  # fmt: skip
async def test_metrics_name_tenants_and_jobs_to_who_has_the_token(given, shown, names):
    metrics = Metrics()
    gauges = {
        "singularity_checkpoint_age_seconds": {("team-a", "secret-plan"): 3.0, ("team-a", ',namespace="x'): 1.0},
        "singularity_jobs_unsaveable": {("team-a", "program"): 1.0},
        "singularity_jobs": {("Training",): 1.0},
    }
    metrics.compute(gauges.items)
    runner = web.AppRunner(health_app(lambda: "", lambda: "", metrics, token=lambda: given))
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0).start()
    headers = {} if shown is None else {"Authorization": shown}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"http://localhost:{runner.addresses[0][1]}/metrics") as response,
    ):
        text = await response.text()
    await runner.cleanup()
    assert 'singularity_jobs{phase="Training"} 1.0' in text
    assert ("team-a" in text) == ("secret-plan" in text) == names
    assert ('singularity_jobs_unsaveable{cause="program",namespace="team-a"} 1.0' in text) == names


def address(ip):
    return {"status": {"podIP": ip}}


async def test_a_hello_that_waits_is_answered_when_the_leader_has_an_address(served):
    served.kube.patch(POD, NS, "train-0-a1", address(None), subresource="status")
    await eventually(lambda: not any(pod["status"].get("podIP") == "10.0.0.1" for pod in served.pods()))
    assert (await served.post("/v1/hello", HELLO, "follower"))[0] == 202, "nobody waits unless asked to"
    waiting = asyncio.create_task(served.post("/v1/hello?wait_s=9999", HELLO, "follower"))
    await eventually(lambda: served.hub.waiting(NS, "train"))
    served.kube.patch(POD, NS, "train-0-a1", address("10.0.0.9"), subresource="status")
    status, body = await waiting
    assert (status, body["leader_ip"]) == (200, "10.0.0.9")
    status, body = await served.post("/v1/hello?wait_s=soon", HELLO, "follower")
    assert (status, "query parameter wait_s = 'soon'" in body["error"]) == (400, True)


async def test_a_hello_waits_for_a_bounded_time(served, monkeypatch):
    monkeypatch.setattr(api_module, "HELLO_POLL_S", 0.1)
    served.kube.patch(POD, NS, "train-0-a1", address(None), subresource="status")
    await eventually(lambda: not any(pod["status"].get("podIP") == "10.0.0.1" for pod in served.pods()))
    status, body = await served.post("/v1/hello?wait_s=60", HELLO, "follower")
    assert (status, body) == (202, {"error": "the leader is not known yet: ask again"})
    assert not served.hub.waiting(NS, "train")


async def test_a_hello_looks_again_at_changes_of_the_leader_only():
    """A job that starts has as many hellos waiting as pods, and each of its pods changes several times."""
    hub, looks = Hub(), []
    hub.attach(asyncio.get_running_loop())
    waiting = asyncio.create_task(hub.until(NS, "train", lambda: looks.append(1) or len(looks) > 1 or None, 30, True))
    await eventually(lambda: looks)
    for _ in range(3):
        hub.notify(NS, "train", leader=False)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(looks) == 1
    hub.notify(NS, "train", leader=True)
    assert await waiting is True and len(looks) == 2


async def test_hello_says_when_the_attempt_has_ended(served):
    ended = scene.record(checkpoint="train-a1-g1", committed_at=1.0)
    served.annotate(ANN_HISTORY=to_json([ended]))
    for _ in range(100):
        status, body = await served.post("/v1/hello", HELLO, "follower")
        if status == 202:
            break
        await asyncio.sleep(0.05)
    assert (status, body.get("ended")) == (202, True)
