"""The HTTPS API of the sidecars (paths and messages: `protocol.messages`).

Every replica answers: the Job has all the data that it needs. Calls of the Kubernetes API block, so they run in
threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from singularity_proxy.protocol import VERSION
from singularity_proxy.protocol.decode import Unreadable, whole
from singularity_proxy.protocol.listener import Listener
from singularity_proxy.protocol.messages import (
    CheckpointFailure,
    Command,
    CommitRequest,
    DamageReport,
    Hello,
    MessageError,
    Progress,
    ProgressReply,
    TrialReport,
    from_json,
    to_json,
)
from singularity_proxy.protocol.outputs import StoredOutputs

from ...contract import job_names, kinds
from ...errors import BadAnnotationError, Conflict, KubeError
from ...job import states
from ...kube import conflicts, server_time
from ...kube.client import Kube
from ...kube.resources import Object
from .. import apply, attempt_history, unsaveable
from ..actions import Annotations
from ..cache import World
from ..errors import RefusedError
from ..metrics import Metrics
from ..snapshot import Job, Pod, required
from . import pod_identity, reports, shortcut, tokens
from .hub import Hub
from .probes import Handler, marked
from .shares import Lane, Shares

log = logging.getLogger(__name__)

LONG_POLL_S = 20.0
HELLO_POLL_S = 5.0
"""A hello waits as long for the leader's address, if the pod waits as well."""
STANDINGS = 20_000
"""Versions of Jobs that notes are compared with."""
WRITE_TRIES = 8
MAX_BODY = 64 * 1024
"""Bytes: ten times the largest message of a pod. Reading a body takes time from all other calls."""

MAX_VERSION = 20
"""Characters of a release that a pod tells."""

Change = Callable[[Object], Annotations | None]


class Api:
    """`may_store` says why jobs of a namespace may not store outputs at a URL.

    `secret` gives, for the Unix seconds at which a job was made, the key from which the secrets are derived that its
    sidecars share."""

    def __init__(
        self,
        kube: Kube,
        world: World,
        hub: Hub,
        secret: Callable[[float], bytes],
        metrics: Metrics,
        server: server_time.ServerClock | None = None,
        trial_after_s: float | None = None,
        listener: Listener | None = None,
        may_store: Callable[[str, str], str] = lambda namespace, url: "",
    ) -> None:
        self._may_store = may_store
        self.listener = listener or Listener()
        self._kube, self._world, self._hub = kube, world, hub
        self._secret, self._metrics, self._trial_after_s = secret, metrics, trial_after_s
        self._identities = pod_identity.Identities(kube, world)
        self._now = (server or server_time.ServerClock()).now
        self._tokens = tokens.Reviews(kube, self._now, self._refused)
        self._shares = Shares()
        self._standings: dict[tuple[str, str], reports.Standing] = {}
        self.listener.shortcut = self._shortcut

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[marked(self.listener), _errors])
        app.router.add_post("/v1/hello", self._hello)
        app.router.add_get("/v1/commands", self._commands)
        app.router.add_post("/v1/progress", self._progress)
        app.router.add_post("/v1/commit", self._commit)
        app.router.add_post("/v1/failure", self._failure)
        app.router.add_post("/v1/damage", self._damage)
        app.router.add_post("/v1/trial", self._trial)
        app.router.add_post("/v1/result", self._result)
        app.router.add_post("/v1/outputs", self._outputs)
        app.on_cleanup.append(self._close)
        return app

    def _refused(self, cause: str) -> None:
        self._metrics.add("singularity_tokens_refused_total", cause)

    async def _close(self, app: web.Application) -> None:
        self._tokens.close()
        self._shares.close()

    # --- who and about what -----------------------------------------------------------------------------------------
    def _job(self, namespace: str, name: str, attempt: int) -> Object:
        """Our copy of the Job if it is at `attempt`, else the API server's: the copy may be behind. Blocks."""
        job = self._world.job(namespace, name)
        if job is None or required(Job.parse(job).attempt) != attempt:
            job = kinds.find(self._kube, namespace, name)
        if job is None:
            raise RefusedError(409, f"there is no Job {namespace}/{name}: it has been deleted")
        reports.require_current(job, attempt)
        return job

    def _newest(self, namespace: str, name: str, job: Object, attempt: int) -> Object:
        """Our copy, or `job` where our copy is older than what the API server has said."""
        copy = self._world.job(namespace, name)
        return job if copy is None or _behind(copy, job, attempt) else copy

    async def _speaker(self, request: web.Request) -> tokens.Speaker:
        """Who makes the request: checked before its body is read, and before any fact about a Job is sent.

        Raises RefusedError, KubeError.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise RefusedError(401, "the request has no bearer token")
        speaker = await self._tokens.speaker(token, request.remote or "")
        self.listener.known(request.protocol)
        return speaker

    async def _allowed(
        self, lane: Lane, speaker: tokens.Speaker, namespace: str, name: str, attempt: int, leader: bool
    ) -> Object:
        """The Job for which a pod may report. Raises RefusedError, KubeError."""
        if speaker.namespace != namespace:
            raise pod_identity.not_of(speaker, namespace, name)

        def check() -> Object:
            job = self._job(namespace, name, attempt)
            pod = self._identities.pod(speaker, namespace, job)
            pod_identity.require_attempt(pod, attempt)
            if leader:
                pod_identity.require_leader(pod)
            return job

        return await self._shares.run(lane, namespace, check)

    def _node(self, speaker: tokens.Speaker, job: str) -> str:
        """Of the speaker's pod, as far as our copy knows it."""
        pods = map(Pod.parse, self._world.pods_of(speaker.namespace, job))
        return next((pod.node or "" for pod in pods if pod.name == speaker.pod), "")

    def _at_hand(self, speaker: tokens.Speaker, namespace: str, name: str, attempt: int) -> Object | None:
        """The Job for which its leader may report, by our copies alone; None: they do not know. Does not block.

        Raises RefusedError.
        """
        if speaker.namespace != namespace:
            raise pod_identity.not_of(speaker, namespace, name)
        job = self._world.stored_job(namespace, name)
        if job is None or self._standing(job).attempt != attempt:
            return None
        pod = self._identities.known(speaker, job)
        if pod is None:
            return None
        pod_identity.require_attempt(pod, attempt)
        pod_identity.require_leader(pod)
        return job

    def _standing(self, job: Object) -> reports.Standing:
        """Found once for each version of a Job, however long its history is."""
        meta = job["metadata"]
        key = str(meta["uid"]), str(meta["resourceVersion"])
        found = self._standings.get(key)
        if found is None:
            if len(self._standings) >= STANDINGS:
                self._standings.clear()
            found = self._standings[key] = reports.Standing.of(job)
        return found

    async def _write(self, lane: Lane, namespace: str, name: str, change: Change, tries: int = WRITE_TRIES) -> bool:
        """Read the Job, compute, write if it has not changed; again if it has. False: there was nothing to write."""

        def attempt() -> bool:
            job = kinds.find(self._kube, namespace, name)
            if job is None:
                raise RefusedError(409, f"there is no Job {namespace}/{name}: it has been deleted")
            annotations = change(self._world.notes.over(job))
            if not annotations:
                return False
            try:
                apply.patch_annotations(self._kube, job, annotations)
            except Conflict:
                self._metrics.add("singularity_conflicts_total")
                raise
            return True

        return await self._shares.run(lane, namespace, lambda: conflicts.outlasted(tries, attempt))

    # --- handlers -----------------------------------------------------------------------------------------------------
    async def _hello(self, request: web.Request) -> web.Response:
        speaker = await self._speaker(request)
        message = from_json(Hello, await request.text())
        namespace, name, attempt = message.namespace, message.job, message.attempt
        wait_s = min(HELLO_POLL_S, _number(request.query.get("wait_s", "0"), "wait_s"))
        job = await self._allowed("hello", speaker, namespace, name, attempt, leader=False)
        release = request.query.get("version", "")[:MAX_VERSION]
        if release != VERSION:
            about = {"job": f"{namespace}/{name}", "attempt": attempt}
            log.info("pod %d has the agent of release %s", message.index, release or "0.1.0 or older", extra=about)

        def look() -> web.Response | None:
            current = self._newest(namespace, name, job, attempt)
            secret = self._secret(states.created(current))
            reply = reports.hello(current, self._world.pods_of(namespace, name), message, secret)
            if reply is None and reports.ended(current, attempt):
                return _json({"error": "the attempt has ended with a checkpoint", "ended": True}, 202)
            if reply is None:
                return None
            after_s = self._trial_after_s if "trial" in request.query else None  # older pods do not know the field
            told = reports.with_places(replace(reply, trial_after_s=after_s), current, self._may_store)
            text = to_json(told)
            return web.Response(text=text, content_type="application/json")

        found = await self._hub.until(namespace, name, look, wait_s, leader=True)
        return _json({"error": "the leader is not known yet: ask again"}, 202) if found is None else found

    async def _commands(self, request: web.Request) -> web.Response:
        speaker, query = await self._speaker(request), request.query
        namespace, name = _needed(query.get("namespace"), "namespace"), _needed(query.get("job"), "job")
        attempt, after = _number(query.get("attempt"), "attempt"), _number(query.get("after", "0"), "after")
        job = self._at_hand(speaker, namespace, name, attempt)
        if job is None:
            job = await self._allowed("hello", speaker, namespace, name, attempt, leader=True)

        def look() -> Command | None:
            current = self._newest(namespace, name, job, attempt)
            reports.require_current(current, attempt)
            command = reports.command(current, self._now())
            return command if command is not None and command.seq > after else None

        found = await self._hub.until(namespace, name, look, LONG_POLL_S)
        if found is None:
            return web.Response(status=204)
        return web.Response(text=to_json(found), content_type="application/json")

    async def _progress(self, request: web.Request) -> web.Response:
        speaker = await self._speaker(request)
        message = from_json(Progress, await request.text())
        namespace, name, notes = message.namespace, message.job, self._world.notes
        job = self._at_hand(speaker, namespace, name, message.attempt)
        if job is None:
            job = await self._allowed("note", speaker, namespace, name, message.attempt, leader=True)
        if not self._noted(job, message):
            now, pods = self._now(), self._world.pods_of(namespace, name)

            def change(current: Object) -> Annotations | None:
                if not self._standing(current).is_news(current, message, now, pods):
                    notes.take(current, reports.note(current, message, now))  # our copy was behind
                    return None
                told = reports.progress(current, message, now, pods)
                notes.take(current, told[job_names.ANN_PROGRESS] or "", stored=True)
                return told

            await self._write("note", namespace, name, change)
        return web.Response(text=self._every(), content_type="application/json")

    def _every(self) -> str:
        return to_json(ProgressReply(self._world.notes.every_s()))

    def _noted(self, job: Object, message: Progress) -> bool:
        """Keep a note in memory, unless it says something for the Job itself. Raises RefusedError."""
        standing, shown, now = self._standing(job), self._world.notes.over(job), self._now()
        standing.require_wanted(message.attempt)
        if standing.is_news(shown, message, now, self._world.pods_of(message.namespace, message.job)):
            return False
        self._world.notes.take(job, reports.note(shown, message, now))
        return True

    def _shortcut(self, data: bytes) -> bytes | None:
        """The answer to a request with a note that needs nobody else; None: it is to be handled as all others are."""
        request = shortcut.note(data)
        speaker = None if request is None else self._tokens.known(request[0])
        if request is None or speaker is None:
            return None
        try:
            message = from_json(Progress, request[1])
            job = self._at_hand(speaker, message.namespace, message.job, message.attempt)
            if job is None or not self._noted(job, message):
                return None
        except (RefusedError, MessageError, BadAnnotationError):
            return None  # said in words there
        except Exception:
            log.exception("a note")
            return None
        return shortcut.answer(self._every())

    async def _commit(self, request: web.Request) -> web.Response:
        speaker = await self._speaker(request)
        message = from_json(CommitRequest, await request.text())
        await self._allowed("commit", speaker, message.namespace, message.job, message.attempt, leader=True)
        namespace, name = message.namespace, message.job
        if await self._write("commit", namespace, name, lambda j: reports.commit(j, message, self._now())):
            self._metrics.add("singularity_checkpoints_committed_total")
            new = message.checkpoint
            about = {"job": f"{message.namespace}/{message.job}", "attempt": message.attempt, "step": new.step}
            log.info("checkpoint %s committed", new.id, extra={**about, "bytes": new.bytes})
        return _json({})

    async def _failure(self, request: web.Request) -> web.Response:
        speaker = await self._speaker(request)
        message = from_json(CheckpointFailure, await request.text())
        await self._allowed("commit", speaker, message.namespace, message.job, message.attempt, leader=True)
        now = self._now()
        self._metrics.add("singularity_checkpoint_failures_total")
        about = {"job": f"{message.namespace}/{message.job}", "attempt": message.attempt}
        log.warning("no checkpoint: %s", message.message, extra=about)
        why: str | None = None

        def change(job: Object) -> Annotations | None:
            nonlocal why
            told = reports.failure(job, message, now)
            why = reports.lifted(job, told, now)
            return told

        if await self._write_outcome(message.namespace, message.job, change) and why is not None:
            self._metrics.add("singularity_holds_released_total", why)
            if why == "deadline":  # the pods have noticed it before our worker
                self._metrics.add("singularity_holds_expired_total")
        return _json({})

    async def _trial(self, request: web.Request) -> web.Response:
        speaker = await self._speaker(request)
        message = from_json(TrialReport, await request.text())
        await self._allowed("commit", speaker, message.namespace, message.job, message.attempt, leader=True)
        self._metrics.add("singularity_save_trials_total", message.verdict)
        about = {"job": f"{message.namespace}/{message.job}", "attempt": message.attempt}
        log.info("trial: %s %s", message.verdict, message.why, extra=about)
        await self._write_outcome(message.namespace, message.job, lambda j: reports.trial(j, message, self._now()))
        return _json({})

    async def _write_outcome(self, namespace: str, name: str, change: Change) -> bool:
        """As `_write`; with an Event where the Job cannot be saved from now on."""
        event: Object | None = None

        def noting(job: Object) -> Annotations | None:
            nonlocal event
            told = change(job)
            event = unsaveable.event(job, told or {}, self._now())
            return told

        written = await self._write("commit", namespace, name, noting)
        if written and event is not None:
            found = event
            await self._shares.run("commit", namespace, lambda: unsaveable.tell(self._kube, found))
        return written

    async def _damage(self, request: web.Request) -> web.Response:
        speaker = await self._speaker(request)
        message = from_json(DamageReport, await request.text())
        await self._allowed("commit", speaker, message.namespace, message.job, message.attempt, leader=False)
        node = self._node(speaker, message.job)
        if await self._write("commit", message.namespace, message.job, lambda j: reports.damage(j, message, node)):
            about = {"job": f"{message.namespace}/{message.job}", "attempt": message.attempt}
            for found in message.damaged[: attempt_history.MAX_CHECKPOINTS]:
                name = "singularity_restores_failed_total" if found.tried else "singularity_checkpoints_damaged_total"
                self._metrics.add(name)
                log.error("checkpoint %s was not restored: %s", found.id, found.problem, extra=about)
        return _json({})

    async def _result(self, request: web.Request) -> web.Response:
        speaker, query = await self._speaker(request), request.query
        namespace, name = _needed(query.get("namespace"), "namespace"), _needed(query.get("job"), "job")
        attempt = _number(query.get("attempt"), "attempt")
        await self._allowed("commit", speaker, namespace, name, attempt, leader=True)
        text = await request.text()
        if await self._write("commit", namespace, name, lambda j: reports.result(j, attempt, text)):
            log.info(
                "rank 0 has returned %d bytes", len(text), extra={"job": f"{namespace}/{name}", "attempt": attempt}
            )
        return _json({})

    async def _outputs(self, request: web.Request) -> web.Response:
        speaker, query = await self._speaker(request), request.query
        namespace, name = _needed(query.get("namespace"), "namespace"), _needed(query.get("job"), "job")
        attempt = _number(query.get("attempt"), "attempt")
        await self._allowed("commit", speaker, namespace, name, attempt, leader=True)
        told = from_json(StoredOutputs, await request.text())
        if await self._write("commit", namespace, name, lambda j: reports.outputs(j, attempt, told, self._now())):
            about = {"job": f"{namespace}/{name}", "attempt": attempt}
            log.info("outputs are stored: %d files, %d bytes", told.files, told.bytes, extra=about)
        return _json({})


def _behind(copy: Object, job: Object, attempt: int) -> bool:
    return bool(copy["metadata"]["uid"] != job["metadata"]["uid"] or required(Job.parse(copy).attempt) < attempt)


def _json(data: Any, status: int = 200) -> web.Response:
    return web.json_response(data, status=status)


def _needed(value: str | None, name: str) -> str:
    if not value:
        raise RefusedError(400, f"query parameter {name} is missing")
    return value


def _number(value: str | None, name: str) -> int:
    text = _needed(value, name)
    found = whole(text)
    if isinstance(found, Unreadable):
        raise RefusedError(400, f"query parameter {name} = {text[:40]!r}: {found.why}")
    return found


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error leaves as {"error": "sentence"}; the client asks again after a 5xx."""
    try:
        return await handler(request)
    except RefusedError as error:
        return _json({"error": str(error)}, error.status)
    except MessageError as error:
        return _json({"error": str(error)}, 400)
    except BadAnnotationError as error:
        return _json({"error": str(error)}, 500)
    except KubeError as error:
        log.warning("%s: %s", request.path, error)
        return _json({"error": f"the Kubernetes API did not answer as hoped: {error}"}, 503)
    except web.HTTPException as error:
        return _json({"error": error.reason}, error.status)
    except Exception:
        log.exception("%s", request.path)
        return _json({"error": "internal error, see the controller's log"}, 500)
