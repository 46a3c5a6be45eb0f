"""The pods' API over a real HTTPS socket, with an API server in memory behind it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
import subprocess
import threading
import time
from dataclasses import replace
from typing import cast

import aiohttp
import controller_scene as scene
import fuzz
import pytest
from aiohttp import web
from controller_scene import NS

from kueue_integration.contract import attempt_records, job_names, progress_objects, saveable
from kueue_integration.controller import notes as notes_module
from kueue_integration.controller.cache import World
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.sidecar_api import http as api_module
from kueue_integration.controller.sidecar_api.http import Api
from kueue_integration.controller.sidecar_api.hub import Hub
from kueue_integration.controller.sidecar_api.probes import health_app
from kueue_integration.controller.sidecar_api.shares import SHARE, Shares
from kueue_integration.errors import Conflict, Forbidden, Unreachable
from kueue_integration.jobs import loss_curve
from kueue_integration.jobs.status import describe, summarise
from kueue_integration.kube import server_time
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import EVENT, JOB, POD, PROGRESS, TOKEN_REVIEW, annotation
from singularity_proxy.protocol import names
from singularity_proxy.protocol.listener import Protocols
from singularity_proxy.protocol.messages import (
    RESULT_BYTES,
    CheckpointFailure,
    Command,
    CommitRequest,
    Damage,
    DamageReport,
    Hello,
    HelloReply,
    Progress,
    Reading,
    TrialReport,
    from_json,
    to_json,
)
from singularity_proxy.protocol.outputs import StoredOutputs


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """(certificate, key) of localhost, self-signed."""
    where = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*command, "-keyout", where / "key", "-out", where / "crt"], check=True, capture_output=True, timeout=60
    )
    return where / "crt", where / "key"


async def eventually(condition):
    """Wait for a copy, or a call, to come."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not come"
        await asyncio.sleep(0.005)


def token_of(pod, audience=names.TOKEN_AUDIENCE, namespace=NS):
    meta = pod["metadata"]
    extra = {
        "authentication.kubernetes.io/pod-name": [meta["name"]],
        "authentication.kubernetes.io/pod-uid": [meta["uid"]],
    }
    user = {"username": f"system:serviceaccount:{namespace}:default", "extra": extra}
    return {"authenticated": True, "audiences": [audience], "user": user}


def jwt(name, audience=names.TOKEN_AUDIENCE, expires_in=3600.0, **claims):
    """What a service account token looks like from outside. Only the API server could tell that it is none."""
    parts = {"alg": "RS256"}, {"aud": [audience], "exp": int(time.time() + expires_in), "sub": name, **claims}
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*texts, "signature"])


class Client:
    """One running API and what a pod needs to talk to it. `tokens`: by the name of who has it."""

    def __init__(self, kube, world, session, url, metrics, tokens, hub):
        self.kube, self.world, self.session, self.url, self.metrics = kube, world, session, url, metrics
        self.tokens, self.hub = tokens, hub

    def pods(self):
        return self.world.pods_of(NS, "train")

    def _auth(self, token):
        return {"Authorization": f"Bearer {self.tokens.get(token, token)}"} if token else {}

    async def post(self, path, message, token="leader"):
        body = message if isinstance(message, str) else to_json(message)
        headers = self._auth(token)
        async with self.session.post(self.url + path, data=body, headers=headers) as response:
            return response.status, await response.json()

    async def commands(self, token="leader", **query):
        params = {"namespace": NS, "job": "train", "attempt": "1", "after": "0", **query}
        headers = self._auth(token)
        async with self.session.get(self.url + "/v1/commands", params=params, headers=headers) as response:
            return response.status, await response.text()

    def job(self):
        return self.kube.get_job(NS, "train")

    def annotate(self, **annotations):
        named = {getattr(job_names, key): value for key, value in annotations.items()}
        self.kube.patch_job(NS, "train", {"metadata": {"annotations": named}})


class SlowReviews(FakeKube):
    """Reviews a token in `review_s` seconds."""

    review_s = 0.0

    def create(self, obj, dry_run=False):
        if obj["kind"] == TOKEN_REVIEW.name:
            time.sleep(self.review_s)
        return super().create(obj, dry_run)


@pytest.fixture
async def served(certificate):
    leader, follower = scene.pod(0, ip="10.0.0.1"), scene.pod(1, ip="10.0.0.2")
    stranger = scene.pod(0, job_name="other")
    stranger["metadata"]["ownerReferences"][0]["uid"] = "other"
    imposter = {**scene.pod(5), "metadata": {**scene.pod(5)["metadata"], "ownerReferences": []}}
    unmarked, foreign, extra = scene.pod(0, created=21), scene.pod(0, created=22), scene.pod(2)
    for number, forged in enumerate((unmarked, foreign, extra)):
        forged["metadata"]["name"] = f"forged-{number}"
    unmarked["metadata"]["ownerReferences"][0]["controller"] = False
    foreign["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] = "another"
    old = scene.pod(1, attempt=0)
    job = scene.job(suspend=False, annotations={job_names.ANN_HOLD: "armed", **scene.history(scene.record())})
    forgeries = {"unmarked": unmarked, "foreign": foreign, "extra": extra}
    kube = SlowReviews(job, leader, follower, stranger, imposter, old, *forgeries.values())
    pods = {"leader": leader, "follower": follower, "stranger": stranger, "imposter": imposter, "old": old, **forgeries}
    told = {name: token_of(pod) for name, pod in pods.items()}
    told["elsewhere"] = token_of(leader, namespace="elsewhere")
    told["audience"] = token_of(leader, audience="https://kubernetes.default.svc")
    told["unbound"] = {
        "authenticated": True,
        "audiences": [names.TOKEN_AUDIENCE],
        "user": {"username": "system:serviceaccount:team:default"},
    }
    tokens = {name: jwt(name) for name in (*told, "unknown")}
    kube.tokens = {tokens[name]: status for name, status in told.items()}
    hub, metrics = Hub(), Metrics()
    hub.attach(asyncio.get_running_loop())
    world = World(
        kube,
        on_job=lambda obj, deleted: hub.notify(NS, obj["metadata"]["name"]),
        on_pod=lambda obj, deleted: hub.notify(NS, "train", leader=obj["metadata"]["name"] == "train-0-a1"),
    )
    world.start()
    assert await asyncio.to_thread(world.wait_synced, 10)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    may = lambda namespace, url: f"{namespace} may not" if url == FORBIDDEN else ""  # noqa: E731
    api = Api(kube, world, hub, lambda made: b"secret", metrics, trial_after_s=90.0, may_store=may)
    runner = web.AppRunner(api.app())
    await runner.setup()
    await api.listener.start(cast(Protocols, runner.server), 0, "localhost", tls)
    port = api.listener.port
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(certificate[0])))
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as session:
        yield Client(kube, world, session, f"https://localhost:{port}", metrics, tokens, hub)
    world.stop()
    api.listener.close()
    await runner.cleanup()


HELLO = Hello(NS, "train", 1, 1, "train-1-a1", "10.0.0.2")
COMMIT = CommitRequest(NS, "train", 1, scene.checkpoint(), barrier_ago_s=1.0, last_step=99)


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


@pytest.mark.parametrize(
    ("token", "status", "text"),
    [
        ("", 401, "no bearer token"),
        ("unknown", 401, "not valid for audience"),
        ("audience", 401, "not valid for audience"),
        ("unbound", 401, "not bound to a pod"),
        ("stranger", 403, "is not a pod of Job team/train"),
        ("imposter", 403, "is not a pod of Job team/train"),
        ("unmarked", 403, "is not a pod of Job team/train"),
        ("foreign", 403, "is not a pod of Job team/train"),
        ("extra", 403, "is not a pod of Job team/train"),
        ("elsewhere", 403, "is not a pod of Job team/train"),
        ("old", 403, "was started for attempt 0, not for 1"),
    ],
)
async def test_only_the_jobs_own_pods_are_heard(served, token, status, text):
    before = served.job()
    got, body = await served.post("/v1/commit", COMMIT, token)
    assert got == status
    assert text in body["error"]
    assert served.job() == before


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


WHERE = f"/v1/result?namespace={NS}&job=train&attempt=1"


async def test_what_rank_0_has_returned_is_written_on_the_job(served):
    text = json.dumps({"value": ['\u00e9"', 1.5, "x" * (RESULT_BYTES - 40)]})
    assert len(text) <= RESULT_BYTES
    for _ in range(2):  # the answer was lost: brought again
        assert await served.post(WHERE, text) == (200, {})
    assert annotation(served.job(), job_names.ANN_RESULT) == text


@pytest.mark.parametrize(
    ("text", "where", "token", "status", "words"),
    [
        ("{}", WHERE, "follower", 403, "not the leader"),
        ("{}", WHERE, "stranger", 403, "is not a pod of Job"),
        ("{}", WHERE.replace("=1", "=2"), "leader", 409, "attempt 2 is not current"),
        ("{}", "/v1/result", "leader", 400, "query parameter namespace is missing"),
        ("[1]", WHERE, "leader", 400, "is no JSON object"),
        ("{", WHERE, "leader", 400, "is not valid JSON"),
        ('{"value": NaN}', WHERE, "leader", 400, "is "),
        ('{"value": "' + "x" * RESULT_BYTES + '"}', WHERE, "leader", 400, "longer than 48000 bytes"),
    ],
)  # fmt: skip
async def test_a_result_that_is_none_is_refused(served, text, where, token, status, words):
    got, body = await served.post(where, text, token)
    assert got == status and words in body["error"]
    assert annotation(served.job(), job_names.ANN_RESULT) is None


PLACE, FORBIDDEN = "gs://results/team/run-7", "gs://results/other/run-7"
STORED = StoredOutputs(PLACE, files=3, bytes=17, sha256="0" * 64, attempt=1, step=40)
OUTPUTS = WHERE.replace("result", "outputs")


async def test_a_pod_hears_where_outputs_go_and_whether_they_may(served):
    status, body = await served.post("/v1/hello", HELLO, "follower")
    assert status == 200 and "outputs" not in body
    for place in (PLACE, FORBIDDEN):
        served.annotate(ANN_OUTPUTS=place)
        await eventually(lambda at=place: annotation(served.world.job(NS, "train"), job_names.ANN_OUTPUTS) == at)
        body = (await served.post("/v1/hello", HELLO, "follower"))[1]
        assert body.get("outputs") == (place if place == PLACE else None)
    assert body["outputs_refused"] == f"annotation singularity.dev/outputs = {FORBIDDEN}: {NS} may not"


async def test_stored_outputs_are_written_on_the_job_once(served):
    served.annotate(ANN_OUTPUTS=PLACE)
    written = []
    for _ in range(2):
        assert await served.post(OUTPUTS, STORED) == (200, {})
        written.append(annotation(served.job(), job_names.ANN_OUTPUTS_STORED))
    found = summarise(served.job(), None, ()).outputs
    assert written[0] == written[1] and found is not None and replace(found, stored_at=0.0) == STORED
    assert (await served.post(OUTPUTS, STORED, "follower"))[0] == 403
    assert (await served.post(OUTPUTS, replace(STORED, url="gs://other/x")))[0] == 400
    assert (await served.post(OUTPUTS.replace("=1", "=2"), STORED))[0] == 409


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
    started = time.monotonic()
    deadline = time.time() + 60
    served.annotate(ANN_HOLD_DEADLINE=server_time.to_text(deadline))
    status, body = await asyncio.wait_for(waiting, 10)
    assert time.monotonic() - started < 5
    command = from_json(Command, body)
    assert (status, command.op, command.then) == (200, "checkpoint", "stop")
    assert command.remaining_s == pytest.approx(deadline - time.time(), abs=5)
    # what has been heard is not said again; the answer after that is for the next request
    waiting = asyncio.create_task(served.commands(after=str(command.seq)))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    served.annotate(ANN_ATTEMPT="2")
    assert (await asyncio.wait_for(waiting, 10))[0] == 409


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


async def test_progress_is_written_on_the_job_only_if_it_is_news(served):
    def writes():
        return [r for r in served.kube.requests if r[:2] == ("patch", "Job")]

    async def seen(count):
        end = time.monotonic() + 10
        while len(writes()) != count or annotation(served.job(), job_names.ANN_PROGRESS) is None:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)

    await served.post("/v1/progress", Progress(NS, "train", 1, "running", 1, first_step=0, first_step_ago_s=5.0))
    await seen(1)
    (record,) = scene.stored(served.job()["metadata"]["annotations"])
    assert (record.first_step, record.last_step) == (0, 0)
    assert record.first_step_at == pytest.approx(time.time() - 5, abs=5)
    end = time.monotonic() + 10
    while annotation(served.world.jobs.get(NS, "train"), job_names.ANN_PROGRESS) is None:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    for step in range(2, 12):
        assert (await served.post("/v1/progress", Progress(NS, "train", 1, "running", step)))[0] == 200
    assert len(writes()) == 1
    await served.post("/v1/progress", Progress(NS, "train", 1, "barrier", 12, barrier_ago_s=9.0))
    end = time.monotonic() + 10
    while json.loads(annotation(served.job(), job_names.ANN_PROGRESS))["phase"] != "barrier":
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


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


def reviews(served):
    return sum(kind == TOKEN_REVIEW.name for _, kind, _ in served.kube.requests)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("x", "not a service account token"),
        ("a.b", "not a service account token"),
        ("a.!!!.c", "not a service account token"),
        ("a." + "W" * 5000 + ".c", "not a service account token"),
        ("a.e30.c", "not valid for audience"),
        ("a.bnVsbA.c", "not a service account token"),
        (jwt("x", audience="https://kubernetes.default.svc"), "not valid for audience"),
        (jwt("x", expires_in=-120), "has expired"),
        (jwt("x", exp="9" * 400), "has expired"),
        (jwt("x", aud={"a": 1}), "not valid for audience"),
    ],
    # A token has the time in it: two processes that share the tests have to call them the same.
    ids=["word", "two parts", "no base64", "long", "empty", "null", "audience", "expired", "digits", "object"],
)
async def test_a_token_that_cannot_be_for_us_costs_no_review(served, token, text):
    status, body = await served.post("/v1/commit", COMMIT, token)
    assert (status, text in body["error"]) == (401, True)
    assert reviews(served) == 0


async def test_a_refusal_is_remembered(served):
    for _ in range(3):
        assert (await served.post("/v1/commit", COMMIT, "unknown"))[0] == 401
    assert reviews(served) == 1
    assert served.metrics.value("singularity_tokens_refused_total", "again") == 2


async def test_one_token_is_reviewed_once_however_many_ask(served):
    served.kube.review_s = 0.2
    answers = await asyncio.gather(*(served.post("/v1/hello", HELLO, "follower") for _ in range(10)))
    assert {status for status, _ in answers} == {200}
    assert reviews(served) == 1


async def test_a_body_is_read_of_those_only_who_may_speak(served):
    status, _ = await served.post("/v1/commit", "[" * 60_000, "unknown")
    assert status == 401
    status, body = await served.post("/v1/commit", "[" * 60_000)
    assert (status, "nested deeper" in body["error"]) == (400, True)
    status, _ = await served.post("/v1/commit", "x" * 70_000)
    assert status == 413


async def flood(served, seconds, rate):
    """`rate` bad requests each second, of every kind; how long commits of the leader took meanwhile.

    On a busy machine it takes longer than `seconds` to send them all.
    """
    numbers, statuses, took, over = itertools.count(), [], [], asyncio.Event()

    async def bad():
        number = next(numbers)
        theirs, expired = jwt(f"b{number}", audience="other"), jwt(f"c{number}", expires_in=-99)
        kinds = (f"x{number}", jwt(f"a{number}"), theirs, expired)
        statuses.append((await served.post("/v1/commit", COMMIT, kinds[number % 4]))[0])

    async def commits():
        while not over.is_set():
            began = time.monotonic()
            assert (await served.post("/v1/commit", COMMIT))[0] == 200
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.05)

    leader, sent = asyncio.ensure_future(commits()), []
    for _ in range(round(seconds * rate)):
        sent.append(asyncio.ensure_future(bad()))
        await asyncio.sleep(1 / rate)
    await asyncio.gather(*sent)
    over.set()
    await leader
    assert set(statuses) <= {401, 429}
    return took


@pytest.mark.parametrize("seconds", [2.0, pytest.param(30.0, marks=pytest.mark.full)])
async def test_a_flood_of_bad_tokens_does_not_delay_commits(served, seconds):
    """Each review takes half a second here: with sixteen threads for all, 200 requests a second left none."""
    await served.post("/v1/commit", COMMIT)
    served.kube.review_s = 0.5
    before = reviews(served)
    began = time.monotonic()
    took = await flood(served, seconds, rate=200)
    assert max(took) < 2.5, "a commit waited for the flood"  # 15 s when reviews had no pool of their own
    assert reviews(served) - before <= 11 + (time.monotonic() - began) / 6, "every bad token is reviewed"


async def test_who_was_heard_before_is_heard_again_in_a_flood_from_its_address(served, monkeypatch):
    """Behind a NAT all pods of a node have one address."""
    monkeypatch.setattr("kueue_integration.controller.sidecar_api.tokens.CACHE_S", 0.5)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    for number in range(30):
        await served.post("/v1/commit", COMMIT, jwt(f"z{number}"))
    assert (await served.post("/v1/commit", COMMIT, jwt("z")))[0] == 429
    await asyncio.sleep(0.6)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200


async def test_who_was_heard_waits_for_no_review(served, monkeypatch):
    """Two thousand leaders are reviewed again each minute: an API server that is slow must not silence them."""
    monkeypatch.setattr("kueue_integration.controller.sidecar_api.tokens.CACHE_S", 0.0)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    served.kube.review_s, began = 5.0, time.monotonic()
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    assert (await served.post("/v1/hello", HELLO, "leader"))[0] in (200, 202, 400)
    assert time.monotonic() - began < 4, "it waited for the review"
    await eventually(lambda: reviews(served) == 2)


@pytest.mark.parametrize("stale_s", [0.0, 60.0])
async def test_a_token_that_is_no_longer_good_is_refused_once_that_is_known(served, monkeypatch, stale_s):
    monkeypatch.setattr("kueue_integration.controller.sidecar_api.tokens.CACHE_S", 0.0)
    monkeypatch.setattr("kueue_integration.controller.sidecar_api.tokens.STALE_S", stale_s)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    served.kube.tokens[served.tokens["leader"]] = {"authenticated": False}
    first, _ = await served.post("/v1/commit", COMMIT)
    assert first == (200 if stale_s else 401), "nobody is believed for longer than STALE_S without a review"
    await eventually(lambda: served.metrics.value("singularity_tokens_refused_total", "review") == 1)
    assert (await served.post("/v1/commit", COMMIT))[0] == 401


async def test_unknown_tokens_leave_places_to_those_that_were_heard(served, monkeypatch):
    for name, value in (("CACHE_S", 0.0), ("STALE_S", 0.0), ("WAITING", 4), ("KEPT", 2)):
        monkeypatch.setattr(f"kueue_integration.controller.sidecar_api.tokens.{name}", value)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    served.kube.review_s = 1.0
    flood = [asyncio.ensure_future(served.post("/v1/commit", COMMIT, jwt(f"y{number}"))) for number in range(6)]
    await eventually(lambda: served.metrics.value("singularity_tokens_refused_total", "limit") == 4)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    assert sorted([(await each)[0] for each in flood]) == [401, 401, 429, 429, 429, 429]


async def test_no_namespace_takes_all_threads(served):
    shares = Shares()
    running, most, lock = 0, 0, threading.Lock()

    def slow():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1

    await asyncio.gather(*(shares.run("hello", "a", slow) for _ in range(30)))
    assert most == SHARE


# --- progress ---------------------------------------------------------------------------------------------------------
def told(step, phase="running", **more):
    return Progress(NS, "train", 1, phase, step, first_step=0, first_step_ago_s=5.0, **more)


def writes(kube, kind):
    return [r for r in kube.requests if r[0] in ("patch", "create") and r[1] == kind.name]


async def test_a_hundred_notes_write_the_job_once_and_the_object_a_few_times(served):
    served.world.notes.start()
    served.kube.patch_job(NS, "train", {"metadata": {"annotations": {}}})
    before = len(writes(served.kube, JOB))
    began = time.monotonic()
    for step in range(1, 101):
        status, reply = await served.post("/v1/progress", told(step, reading=Reading(step, 200, 1 / step)))
        assert (status, reply) == (200, {"every_s": notes_module.EVERY_S})
    took = time.monotonic() - began
    assert len(writes(served.kube, JOB)) - before == 1, "the change of phase"
    await eventually(lambda: describe(served.kube, NS, "train").step == 100)
    assert len(writes(served.kube, PROGRESS)) <= 3 + took / notes_module.EVERY_S
    status = describe(served.kube, NS, "train")
    assert status.attempts[-1].last_step == 99 and status.progress["step"] == 100
    assert status.curve[-1] == (100, 0.01) and len(status.curve) <= loss_curve.NOTED + 1
    assert served.world.job(NS, "train") is served.world.job(NS, "train"), "made once of each note"
    served.world.notes.stop()


@pytest.mark.parametrize("reader", ["gone", "forbidden"])
async def test_without_the_object_the_job_says_what_it_knows(served, reader):
    served.world.notes.start()
    for step in (1, 7):
        assert (await served.post("/v1/progress", told(step)))[0] == 200
    await eventually(lambda: describe(served.kube, NS, "train").step == 7)
    (found,) = served.kube.list(PROGRESS, NS)
    assert found["metadata"]["ownerReferences"][0]["uid"] == served.job()["metadata"]["uid"]
    if reader == "gone":
        served.kube.delete(PROGRESS, NS, found["metadata"]["name"])
        assert describe(served.kube, NS, "train").step == 1
        assert (await served.post("/v1/progress", told(8)))[0] == 200
        await eventually(lambda: describe(served.kube, NS, "train").step == 8)
    else:

        def refused(kind, namespace, name):
            raise Forbidden("no", 403, "Forbidden")

        assert progress_objects.shown(type("Kube", (), {"find": staticmethod(refused)}), served.job()) == served.job()
    served.world.notes.stop()


async def test_a_change_of_phase_writes_all_that_was_noted_on_the_job(served):
    for step in (1, 5, 9):
        await served.post("/v1/progress", told(step, reading=Reading(step, 20, float(step))))
    assert loss_curve.points(served.job()) == [(1, 1.0)], "only the first was news"
    await served.post("/v1/progress", told(9, "barrier", reading=Reading(9, 20, 9.0)))
    assert loss_curve.points(served.job()) == [(1, 1.0), (5, 5.0), (9, 9.0)]
    (record,) = scene.stored(served.job()["metadata"]["annotations"])
    assert record.last_step == 8


async def test_a_flood_of_news_delays_no_commit_and_no_hello(served, monkeypatch):
    """The API server takes long for each write. Twelve jobs' worth of news wait for their own threads only."""
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    slow, lock, patch = 0.3, threading.Lock(), served.kube.patch
    waiting = itertools.count()

    def patched(kind, *args, **more):
        if threading.current_thread().name.startswith("api-note"):
            with lock:
                next(waiting)
            time.sleep(slow)
        return patch(kind, *args, **more)

    monkeypatch.setattr(served.kube, "patch", patched)
    phases = itertools.cycle(["barrier", "dumping", "uploading", "running"])
    flood = [asyncio.ensure_future(served.post("/v1/progress", told(5, next(phases)))) for _ in range(60)]
    await eventually(lambda: next(waiting) > 6)
    began = time.monotonic()
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    assert (await served.post("/v1/hello", HELLO, "follower"))[0] in (200, 202)
    assert time.monotonic() - began < slow * 60 / 6 / 2, "they waited behind the notes"
    assert not all(one.done() for one in flood)
    for one in flood:
        one.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_an_api_server_that_is_slow_about_progress_delays_nobody_else(served, monkeypatch):
    """As long as a request may take: its writers wait, and nothing waits for them."""
    begun, free, patch = threading.Event(), threading.Event(), served.kube.patch

    def patched(kind, *args, **more):
        if kind is PROGRESS:
            begun.set()
            assert free.wait(30)
        return patch(kind, *args, **more)

    monkeypatch.setattr(served.kube, "patch", patched)
    served.world.notes.start()
    for step in (1, 7):
        assert (await served.post("/v1/progress", told(step)))[0] == 200
    await eventually(begun.is_set)
    began = time.monotonic()
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    assert (await served.post("/v1/hello", HELLO, "follower"))[0] in (200, 202)
    assert (await served.post("/v1/progress", told(9)))[0] in (200, 409)
    assert time.monotonic() - began < 5
    assert served.kube.list(PROGRESS, NS) == []
    free.set()
    served.world.notes.stop()
    (found,) = served.kube.list(PROGRESS, NS)
    assert json.loads(progress_objects.note_of(found))["step"] >= 7, "what waited is written in the end"


@pytest.mark.full
@pytest.mark.timeout(fuzz.SECONDS + 300)
async def test_whatever_a_sidecar_sends_it_gets_an_answer_and_others_are_heard(served):
    """The third part of the fuzzer (`test_fuzz`)."""
    good = {
        "/v1/hello": HELLO, "/v1/commit": COMMIT, "/v1/failure": CheckpointFailure(NS, "train", 1, "stuck"),
        "/v1/progress": HELLO, "/v1/damage": HELLO, "/v1/trial": HELLO, "/v1/result": HELLO, "/v1/outputs": HELLO,
    }  # fmt: skip
    statuses = set()
    for case, chosen in fuzz.cases("requests"):
        path = chosen.choice(sorted(good))
        body = fuzz.text(chosen, to_json(good[chosen.choice([path, "/v1/commit", "/v1/failure"])]))
        token = chosen.choice(["leader", "leader", "follower", "stranger", "old", ""])
        if chosen.random() < 0.1:
            name = chosen.choice(["attempt", "after", "job", "namespace"])
            query = {"after": "x", name: fuzz.text(chosen, "1").strip("\x00")[:200]}
            status, _ = await served.commands(token, **query)
        else:
            status, _ = await served.post(path, body, token)
        assert status < 500 or status == 503, (case, path, token, body, status)
        statuses.add(status)
    assert {200, 400, 401} <= statuses, statuses
    status, _ = await served.post("/v1/hello", HELLO, "follower")
    assert status in (200, 202)
