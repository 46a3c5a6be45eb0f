"""The pods' API over a real HTTPS socket, with an API server in memory behind it."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import time

import aiohttp
import controller_scene as scene
import pytest
from aiohttp import web
from controller_scene import NS

from kueue_integration.controller import api as api_module
from kueue_integration.controller import clock
from kueue_integration.controller.api import Api, Hub, health_app
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.world import World
from kueue_integration.errors import Conflict, Unreachable
from kueue_integration.fake import FakeKube
from kueue_integration.resources import JOB, TOKEN_REVIEW, annotation
from proxy.protocol import names
from proxy.protocol.messages import (
    CheckpointFailure,
    Command,
    CommitRequest,
    Hello,
    HelloReply,
    Progress,
    from_json,
    to_json,
)


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


def token_of(pod, audience=names.TOKEN_AUDIENCE, namespace=NS):
    meta = pod["metadata"]
    extra = {
        "authentication.kubernetes.io/pod-name": [meta["name"]],
        "authentication.kubernetes.io/pod-uid": [meta["uid"]],
    }
    user = {"username": f"system:serviceaccount:{namespace}:default", "extra": extra}
    return {"authenticated": True, "audiences": [audience], "user": user}


class Client:
    """One running API and what a pod needs to talk to it."""

    def __init__(self, kube, world, session, url, metrics):
        self.kube, self.world, self.session, self.url, self.metrics = kube, world, session, url, metrics

    async def post(self, path, message, token="leader"):
        body = message if isinstance(message, str) else to_json(message)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.session.post(self.url + path, data=body, headers=headers) as response:
            return response.status, await response.json()

    async def commands(self, token="leader", **query):
        params = {"namespace": NS, "job": "train", "attempt": "1", "after": "0", **query}
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.get(self.url + "/v1/commands", params=params, headers=headers) as response:
            return response.status, await response.text()

    def job(self):
        return self.kube.get_job(NS, "train")

    def annotate(self, **annotations):
        named = {getattr(names, key): value for key, value in annotations.items()}
        self.kube.patch_job(NS, "train", {"metadata": {"annotations": named}})


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
    job = scene.job(suspend=False, annotations={names.ANN_HOLD: "armed", **scene.history(scene.record())})
    forgeries = {"unmarked": unmarked, "foreign": foreign, "extra": extra}
    kube = FakeKube(job, leader, follower, stranger, imposter, old, *forgeries.values())
    pods = {"leader": leader, "follower": follower, "stranger": stranger, "imposter": imposter, "old": old, **forgeries}
    kube.tokens = {name: token_of(pod) for name, pod in pods.items()}
    kube.tokens["elsewhere"] = token_of(leader, namespace="elsewhere")
    kube.tokens["audience"] = token_of(leader, audience="https://kubernetes.default.svc")
    kube.tokens["unbound"] = {
        "authenticated": True,
        "audiences": [names.TOKEN_AUDIENCE],
        "user": {"username": "system:serviceaccount:team:default"},
    }
    hub, metrics = Hub(), Metrics()
    hub.attach(asyncio.get_running_loop())
    world = World(kube, on_job=lambda obj, deleted: hub.notify(NS, obj["metadata"]["name"]))
    world.start()
    assert await asyncio.to_thread(world.wait_synced, 10)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    runner = web.AppRunner(Api(kube, world, hub, b"secret", metrics).app())
    await runner.setup()
    site = web.TCPSite(runner, "localhost", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(certificate[0])))
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as session:
        yield Client(kube, world, session, f"https://localhost:{port}", metrics)
    world.stop()
    await runner.cleanup()


HELLO = Hello(NS, "train", 1, 1, "train-1-a1", "10.0.0.2")
COMMIT = CommitRequest(NS, "train", 1, scene.checkpoint(), barrier_at=1.0, last_step=99)


async def test_hello(served):
    status, body = await served.post("/v1/hello", HELLO, "follower")
    assert status == 200
    reply = from_json(HelloReply, json.dumps(body))
    assert (reply.leader_ip, reply.checkpoint) == ("10.0.0.1", None)
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
    ):
        status, body = await served.post(path, message, "follower")
        assert (status, "not the leader" in body["error"]) == (403, True)
    assert (await served.commands("follower"))[0] == 403


async def test_a_commit_is_answered_after_the_job_has_it(served):
    assert await served.post("/v1/commit", COMMIT) == (200, {})
    assert json.loads(annotation(served.job(), names.ANN_CHECKPOINT))["id"] == "train-a1-g1"
    assert annotation(served.job(), names.ANN_HOLD) == "released"
    assert await served.post("/v1/commit", COMMIT) == (200, {})  # the answer was lost: asked again
    assert served.metrics.value("singularity_checkpoints_committed_total") == 1


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
        ("/v1/commit", to_json(COMMIT)[:-1] + ', "more": 1}', "unknown field 'more'"),
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
    served.annotate(ANN_HOLD_DEADLINE=clock.to_text(deadline))
    status, body = await asyncio.wait_for(waiting, 10)
    assert time.monotonic() - started < 5
    command = from_json(Command, body)
    assert (status, command.op, command.then) == (200, "checkpoint", "stop")
    assert command.deadline == pytest.approx(deadline, abs=0.01)
    # what has been heard is not said again; the answer after that is for the next request
    waiting = asyncio.create_task(served.commands(after=str(command.seq)))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    served.annotate(ANN_ATTEMPT="2")
    assert (await asyncio.wait_for(waiting, 10))[0] == 409


async def test_a_copy_that_is_behind_does_not_end_the_attempt(served, monkeypatch):
    """The watch lags: our copy still shows the attempt before, or a Job of that name that is gone."""
    monkeypatch.setattr(api_module, "LONG_POLL_S", 0.2)
    before = scene.job(suspend=False, annotations={names.ANN_HOLD: "armed", names.ANN_ATTEMPT: "0"})
    gone = scene.job(suspend=False, uid="gone", annotations={names.ANN_HOLD: "armed", names.ANN_ATTEMPT: "9"})
    for copy in (before, gone):
        monkeypatch.setattr(served.world.jobs, "get", lambda namespace, name, copy=copy: copy)
        assert await served.commands() == (204, "")


async def test_a_long_poll_without_news_ends_with_204(served, monkeypatch):
    monkeypatch.setattr(api_module, "LONG_POLL_S", 0.2)
    assert await served.commands() == (204, "")


async def test_progress_is_written_at_most_every_two_seconds_unless_it_is_news(served):
    def writes():
        return [r for r in served.kube.requests if r[:2] == ("patch", "Job")]

    async def seen(count):
        end = time.monotonic() + 10
        while len(writes()) != count or annotation(served.job(), names.ANN_PROGRESS) is None:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)

    begin = time.monotonic()
    await served.post("/v1/progress", Progress(NS, "train", 1, "running", 1, first_step=0, first_step_at=5.0))
    await seen(1)
    (record,) = scene.stored(served.job()["metadata"]["annotations"])
    assert (record.first_step, record.first_step_at, record.last_step) == (0, 5.0, 0)
    end = time.monotonic() + 10
    while annotation(served.world.jobs.get(NS, "train"), names.ANN_PROGRESS) is None:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    for step in range(2, 12):
        assert (await served.post("/v1/progress", Progress(NS, "train", 1, "running", step)))[0] == 200
    assert len(writes()) <= 1 + (time.monotonic() - begin) / 2  # 1, but where the calls took long
    await served.post("/v1/progress", Progress(NS, "train", 1, "barrier", 12, barrier_at=9.0))
    end = time.monotonic() + 10
    while json.loads(annotation(served.job(), names.ANN_PROGRESS))["phase"] != "barrier":
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("left_s, cause, expired", [(60, "failed", 0.0), (-0.1, "deadline", 1.0)])
async def test_a_hold_that_the_pods_end_is_counted_once(served, left_s, cause, expired):
    served.annotate(ANN_HOLD_DEADLINE=clock.to_text(time.time() + left_s))
    for _ in range(2):
        assert (await served.post("/v1/failure", CheckpointFailure(NS, "train", 1, "rank 1 is stuck")))[0] == 200
    assert annotation(served.job(), names.ANN_HOLD) == "released"
    lines = served.metrics.text().splitlines()
    assert f'singularity_holds_released_total{{cause="{cause}"}} 1.0' in lines
    assert f"singularity_holds_expired_total {expired}" in lines


async def test_a_failure_releases_the_hold(served):
    served.annotate(ANN_HOLD_DEADLINE=clock.to_text(time.time() + 60))
    assert await served.post("/v1/failure", CheckpointFailure(NS, "train", 1, "rank 1 is stuck")) == (200, {})
    assert annotation(served.job(), names.ANN_HOLD) == "released"
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


async def test_hello_says_when_the_attempt_has_ended(served):
    ended = scene.record(checkpoint="train-a1-g1", committed_at=1.0)
    served.annotate(ANN_HISTORY=to_json([ended]))
    for _ in range(100):
        status, body = await served.post("/v1/hello", HELLO, "follower")
        if status == 202:
            break
        await asyncio.sleep(0.05)
    assert (status, body.get("ended")) == (202, True)
