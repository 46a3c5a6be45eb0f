"""The pods' API over a real HTTPS socket, with an API server in memory behind it: a job of two pods, and strangers."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
import threading
import time
from typing import cast

import aiohttp
import controller_scene as scene
import pytest
from aiohttp import web
from controller_scene import NS
from waits import LIMIT_S

from kueue_integration.contract import job_names
from kueue_integration.controller.cache import World
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.sidecar_api.http import Api
from kueue_integration.controller.sidecar_api.hub import Hub
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import TOKEN_REVIEW
from singularity_proxy.protocol import names
from singularity_proxy.protocol.listener import Protocols
from singularity_proxy.protocol.messages import (
    CommitRequest,
    Hello,
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
    """Reviews a token in `review_s` seconds; not before `may_review` is set."""

    review_s = 0.0

    def __init__(self, *objects):
        super().__init__(*objects)
        self.may_review = threading.Event()
        self.may_review.set()

    def create(self, obj, dry_run=False):
        if obj["kind"] == TOKEN_REVIEW.name:
            time.sleep(self.review_s)
            assert self.may_review.wait(LIMIT_S)
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
WHERE = f"/v1/result?namespace={NS}&job=train&attempt=1"
PLACE, FORBIDDEN = "gs://results/team/run-7", "gs://results/other/run-7"
