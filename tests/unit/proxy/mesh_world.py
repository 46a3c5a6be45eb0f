"""A whole attempt in one event loop: a controller (TLS), real sidecars over loopback, launchers on their unix sockets,
and ranks as threads that train in lockstep and pass their step boundaries with the agent's own `Boundary`.

Fake are only the ends that have suites of their own: the controller's decisions, CRIU, torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import waits
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kueue_integration.controller import attempt_history
from singularity_proxy.agent.boundary import Boundary
from singularity_proxy.launcher.errors import DumpError
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.snapshot import ended
from singularity_proxy.launcher.snapshot.page_sink import PageSink
from singularity_proxy.protocol import names, page
from singularity_proxy.protocol.messages import (
    CheckpointFailure,
    CheckpointRef,
    Command,
    CommitRequest,
    DamageReport,
    Engine,
    Hello,
    HelloReply,
    LauncherCommand,
    LauncherEvent,
    Occupied,
    Origin,
    Plan,
    Progress,
    Refusal,
    Then,
    TrialReport,
    Weight,
    from_json,
    to_json,
)
from singularity_proxy.protocol.outputs import StoredOutputs
from singularity_proxy.protocol.phases import SavePhases, StartPhases
from singularity_proxy.sidecar.config import Config
from singularity_proxy.sidecar.sidecar import run

TOKEN = "token-of-the-pod"
SAVE_S = 100.0
"""Time for a checkpoint, where the time is not what is tested."""


async def eventually(what: str, condition: Callable[[], Any], limit_s: float = waits.LIMIT_S) -> None:
    """Poll until `condition()` is true; AssertionError that says what was awaited after `limit_s`."""
    await waits.eventually(condition, what, limit_s=limit_s)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def certificate(folder: Path) -> tuple[ssl.SSLContext, str]:
    """A self-signed certificate for 127.0.0.1: server context and PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "controller")])
    now = datetime.datetime.now(datetime.timezone.utc)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    pem = cert.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "tls.pem").write_bytes(private + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.pem")
    return context, pem.decode()


class FakeController:
    """Answers the API of `singularity_proxy.protocol.messages`; what it does wrong is set by attributes."""

    def __init__(self) -> None:
        self.attempt = 1
        self.peer_key = "mesh-secret"
        self.checkpoint: CheckpointRef | None = None
        self.leader_ip = ""
        self.hellos: list[Hello] = []
        self.asked: list[tuple[float, str]] = []
        """When each hello came (monotonic clock), and how long it would wait."""
        self.progress: list[Progress] = []
        self.commits: list[CommitRequest] = []
        self.failures: list[CheckpointFailure] = []
        self.committed: list[CheckpointRef] = []
        """Newest first."""
        self.trial_after_s: float | None = None
        self.trials: list[TrialReport] = []
        self.origin: Origin | None = None
        self.damage: list[DamageReport] = []
        self.results: list[tuple[dict[str, str], str]] = []
        self.result_errors: list[int] = []
        """Status codes of the next answers to a result."""
        self.outputs = self.outputs_refused = ""
        """The job's URL for outputs, and why it may not have it."""
        self.inputs: dict[str, str] = {}
        self.inputs_refused = ""
        self.stored: list[StoredOutputs] = []
        self.outputs_errors: list[int] = []
        """Status codes of the next answers to the news that they are stored."""
        self.next_checkpoint: list[CheckpointRef | None] = []
        """What the next attempt is given instead, once a pod has found damage."""
        self.commit_errors = 0
        self.commit_tries = 0
        self.stale_commit = False
        self.ended = False
        self.finished = False
        """Every rank of the job has ended well."""
        self.away = False
        """Its pods' hellos meet an API server that is not there."""
        self.refuse_progress = False
        self.progress_tries = 0
        self.commands: list[Command] = []
        self.before_commit: Callable[[], Awaitable[None]] | None = None
        """Awaited once, while the first commit waits for its answer."""
        self._polled = 0
        self.url = self.pem = ""
        self._more = asyncio.Condition()

    async def start(self, folder: Path) -> web.AppRunner:
        context, self.pem = certificate(folder)
        app = web.Application(middlewares=[self._authenticated])
        app.router.add_post("/v1/hello", self._hello)
        app.router.add_get("/v1/commands", self._commands)
        app.router.add_post("/v1/progress", self._progress)
        app.router.add_post("/v1/commit", self._commit)
        app.router.add_post("/v1/failure", self._failure)
        app.router.add_post("/v1/damage", self._damage)
        app.router.add_post("/v1/trial", self._trial)
        app.router.add_post("/v1/result", self._result)
        app.router.add_post("/v1/outputs", self._outputs)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        self.url = f"https://127.0.0.1:{port}"
        return runner

    async def command(self, deadline_s: float = SAVE_S, then: Then = "stop", stay_s: float = 0.0) -> None:
        await self._say(Command(len(self.commands) + 1, "checkpoint", "preempted", deadline_s, then, stay_s))

    async def resume(self) -> None:
        """Nobody is about to end the attempt any more."""
        await self._say(Command(len(self.commands) + 1, "resume", "the request was replaced", 0.0))

    async def _say(self, command: Command) -> None:
        async with self._more:
            self.commands.append(command)
            self._more.notify_all()

    @web.middleware
    async def _authenticated(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"error": "who are you"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _hello(self, request: web.Request) -> web.Response:
        hello = from_json(Hello, await request.read())
        self.hellos.append(hello)
        self.asked.append((time.monotonic(), request.query.get("wait_s", "")))
        if self.away:
            return web.json_response({"error": "API server is away"}, status=503)
        if self.finished:
            return web.Response(text=to_json(HelloReply("", "", finished=True)))
        if hello.attempt != self.attempt:
            return web.json_response({"error": f"attempt {self.attempt} is current"}, status=409)
        if hello.index == 0:
            self.leader_ip = hello.pod_ip
        if self.ended:
            return web.json_response({"error": "the attempt has ended", "ended": True}, status=202)
        if not self.leader_ip:
            return web.Response(status=202)
        return web.Response(text=self._reply())

    def _reply(self) -> str:
        reply = HelloReply(self.peer_key, self.leader_ip, self.checkpoint, self.committed, origin=self.origin)
        reply = replace(reply, outputs=self.outputs, outputs_refused=self.outputs_refused)
        reply = replace(reply, inputs=self.inputs, inputs_refused=self.inputs_refused)
        return to_json(replace(reply, trial_after_s=self.trial_after_s))

    async def heard(self, seq: int) -> None:
        """Wait until the leader has taken in command `seq`: it asks for later ones."""
        async with self._more:
            await asyncio.wait_for(self._more.wait_for(lambda: self._polled >= seq), 120)

    async def _commands(self, request: web.Request) -> web.Response:
        after = int(request.query["after"])
        async with self._more:
            self._polled = max(self._polled, after)
            self._more.notify_all()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._more.wait_for(lambda: any(c.seq > after for c in self.commands)), 5)
        found = next((c for c in self.commands if c.seq > after), None)
        return web.Response(status=204) if found is None else web.Response(text=to_json(found))

    async def _progress(self, request: web.Request) -> web.Response:
        self.progress_tries += 1
        if self.refuse_progress:
            return web.json_response({"error": "API server is away"}, status=503)
        self.progress.append(from_json(Progress, await request.read()))
        return web.json_response({})

    async def _commit(self, request: web.Request) -> web.Response:
        commit = from_json(CommitRequest, await request.read())
        self.commit_tries += 1
        if self.stale_commit:
            return web.json_response({"error": "attempt 2 is current"}, status=409)
        if self.commit_errors > 0:
            self.commit_errors -= 1
            return web.json_response({"error": "API server is away"}, status=503)
        if self.before_commit is not None:
            hook, self.before_commit = self.before_commit, None
            await hook()
        self.commits.append(commit)
        self.checkpoint = commit.checkpoint
        self.committed.insert(0, commit.checkpoint)
        return web.json_response({})

    async def _damage(self, request: web.Request) -> web.Response:
        """As `kueue_integration.controller.sidecar_api.reports.damage`: an older checkpoint, for the next attempt."""
        report = from_json(DamageReport, await request.read())
        self.damage.append(report)
        told = {found.id: found for found in report.damaged}
        self.committed = [attempt_history.found(ref, told.get(ref.id), report.attempt, ()) for ref in self.committed]
        self.next_checkpoint = [next((ref for ref in self.committed if not ref.passed_over), None)]
        return web.json_response({})

    async def _trial(self, request: web.Request) -> web.Response:
        self.trials.append(from_json(TrialReport, await request.read()))
        return web.json_response({})

    async def _result(self, request: web.Request) -> web.Response:
        if self.result_errors:
            return web.json_response({"error": "not now"}, status=self.result_errors.pop(0))
        self.results.append((dict(request.query), await request.text()))
        return web.json_response({})

    async def _outputs(self, request: web.Request) -> web.Response:
        if self.outputs_errors:
            return web.json_response({"error": "not now"}, status=self.outputs_errors.pop(0))
        self.stored.append(from_json(StoredOutputs, await request.text()))
        return web.json_response({})

    def next_attempt(self) -> None:
        self.attempt, self.leader_ip = self.attempt + 1, ""
        self.commands.clear()
        if self.next_checkpoint:
            (self.checkpoint,) = self.next_checkpoint
            self.next_checkpoint = []

    async def _failure(self, request: web.Request) -> web.Response:
        self.failures.append(from_json(CheckpointFailure, await request.read()))
        return web.json_response({})


class Collective:
    """All-reduce of threads: nobody passes step s before everyone has arrived at it."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._arrived: dict[int, int] = {}
        self._cond = threading.Condition()
        self.closed = False

    def meet(self, step: int) -> bool:
        """False: the world has ended."""
        with self._cond:
            self._arrived[step] = self._arrived.get(step, 0) + 1
            self._cond.notify_all()
            return (
                self._cond.wait_for(lambda: self.closed or self._arrived[step] >= self._world, 60) and not self.closed
            )

    def leave(self) -> None:
        """A rank has ended well: the others do not need it any more."""
        with self._cond:
            self._world -= 1
            self._cond.notify_all()

    def close(self) -> None:
        with self._cond:
            self.closed = True
            self._cond.notify_all()


class Rank(threading.Thread):
    """Steps until `last` (or for ever), through the agent's own boundary; freezes and resumes as told."""

    def __init__(self, run_dir: Path, rank: int, collective: Collective, count: int, last: int | None) -> None:
        super().__init__(daemon=True)
        self.rank = rank
        self.collective = collective
        self.last = last
        self.code: int | None = None
        """Exit code once it has ended by itself."""
        self.fails = 0
        """Code to end with at the next step."""
        self.lingers = threading.Event()
        """Set it to keep its process from ending after its last step."""
        self.step_s = 0.002
        self.stalled = threading.Event()
        """Set it to keep the rank from its next step."""
        self.imports = threading.Event()
        """Set once the program has come as far as importing torch: only then the rank shows on the page."""
        self.imports.set()
        self.stands = threading.Event()
        """The rank has come to a stall."""
        self.frozen: dict[int, int] = {}
        self.resume: dict[int, threading.Event] = {}
        (run_dir / f"rank-{rank}").mkdir(exist_ok=True)
        self.boundary = Boundary(run_dir / f"rank-{rank}", rank, self._freeze)
        self.boundary.count = count

    def allow(self, generation: int) -> None:
        self.resume.setdefault(generation, threading.Event()).set()

    def _freeze(self, boundary: Boundary, generation: int) -> None:
        if boundary.goes_on(generation):
            boundary.unblock()
            self.frozen[generation] = boundary.count
            return
        boundary.close(page.STATE_FROZEN)
        self.frozen[generation] = boundary.count
        self.resume.setdefault(generation, threading.Event()).wait(60)
        if not self.collective.closed:
            boundary.open()

    def run(self) -> None:
        self.imports.wait(60)
        self.boundary.open()
        try:
            while not self.collective.closed and (self.last is None or self.boundary.count < self.last):
                while self.stalled.is_set() and not self.collective.closed:
                    self.stands.set()
                    time.sleep(0.005)
                self.stands.clear()
                time.sleep(self.step_s * (1 + self.rank % 3))
                if self.fails:
                    self.code = self.fails
                    return
                if not self.collective.meet(self.boundary.count):
                    return
                self.boundary.step()
            if not self.collective.closed:
                self.code = 0
                self.collective.leave()
        finally:
            self.boundary.close(page.STATE_FINISHED)
            while self.lingers.is_set() and not self.collective.closed:
                time.sleep(0.005)


class FakeLauncher:
    """Speaks the launcher's side of the socket; an image is a file with the rank's counter and a megabyte of pages."""

    def __init__(self, config: Config, collective: Collective, last: int | None) -> None:
        self.config = config
        self.collective = collective
        self.last = last
        self.plan: Plan | None = None
        self.refusal = ""
        self.refused_with = 0
        self.commands: list[LauncherCommand] = []
        self.ranks: list[Rank] = []
        self.exit_code: int | None = None
        self.slow_imports = False
        self.images: list[str] = []
        """Of which ranks, as the plan came."""
        self.waits = False
        """Its ranks have ended well, and its sidecar knows."""
        self.dump_error = ""
        self.late = False
        """What fails has run out of time."""
        self.weight: Weight | None = Weight(1 << 20)
        """What its ranks hold; None: it does not say."""
        self._gives_way = asyncio.Event()
        self._trial: asyncio.Task[None] | None = None
        self.sent: dict[int, bytes] = {}
        """Content of the ranks' pages, as last dumped."""
        self.own_bytes = 0
        """Of an image, which no other has and which do not compress."""
        self.pages_written: Callable[[], Awaitable[None]] | None = None
        """Awaited when the pages of a dump are there, before the launcher says that it has ended."""
        self.paths = Paths(config.root)
        self.over: dict[int, int] = {}
        """Ranks that had ended before this attempt -> their last step."""
        self.occupied: list[Occupied] = []
        self._session: aiohttp.ClientSession | None = None

    @property
    def going(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.code is None]

    async def run(self) -> None:
        path = self.config.run_dir / names.SOCKET_FILE
        await eventually(f"socket of pod {self.config.index}", path.exists, 90.0)  # it may be a process of its own
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as self._session:
            if await self._start():
                await asyncio.gather(self._obey(), self._watch())

    async def _start(self) -> bool:
        assert self._session is not None
        while self.plan is None:
            try:
                response = await self._session.get("http://launcher/v1/plan")
            except (aiohttp.ClientError, OSError):  # its socket has a name already, and nobody listens yet
                await asyncio.sleep(0.05)
                continue
            async with response:
                if response.status == 200:
                    self.plan = from_json(Plan, await response.read())
                elif response.status != 425:
                    refusal = from_json(Refusal, await response.read())
                    self.refusal, self.refused_with = refusal.error, refusal.exit_code
                    return False
        folder = self.config.image_dir / self.plan.checkpoint_id
        self.images = sorted(path.name for path in folder.glob("rank-*")) if self.plan.checkpoint_id else []
        self.over = ended.among(self.plan, self.paths) if self.plan.mode == "restore" else {}
        for rank in self.plan.ranks:
            count = 0
            if rank in self.over:
                ended.tell(self.paths, rank, self.over[rank])
                self.collective.leave()
                continue
            if self.plan.mode == "restore":
                folder = self.config.image_dir / self.plan.checkpoint_id / f"rank-{rank}"
                whole = folder / "rank.json"
                record = whole if whole.exists() else folder / "state/checkpoints/one.json"
                count = json.loads(record.read_text())["count"]
            self.ranks.append(Rank(self.config.run_dir, rank, self.collective, count, self.last))
            if self.slow_imports:
                self.ranks[-1].imports.clear()
        for thread in self.ranks:
            thread.start()
        start = StartPhases(restore=1.0, meet=float(self.config.index))
        await self.post(LauncherEvent("restored" if self.plan.mode == "restore" else "started", start=start))
        return True

    async def post(self, event: LauncherEvent) -> None:
        assert self._session is not None
        async with self._session.post("http://launcher/v1/events", data=to_json(event)) as response:
            assert response.status == 200, await response.text()

    async def _obey(self) -> None:
        assert self._session is not None
        after = 0
        while self.exit_code is None:
            try:
                async with self._session.get(f"http://launcher/v1/commands?after={after}") as response:
                    if response.status == 204:
                        continue
                    command = from_json(LauncherCommand, await response.read())
            except (aiohttp.ClientError, OSError):  # its sidecar is being started anew
                await asyncio.sleep(0.05)
                continue
            after = command.seq
            self.commands.append(command)
            if self._trial is not None and command.op in ("dump", "resume"):
                self._gives_way.set()
                await self._trial
            if command.op == "weigh":
                if self.weight is not None:
                    await self.post(LauncherEvent("weighed", weight=self.weight))
            elif command.op == "dump" and command.trial:
                self._gives_way.clear()
                self._trial = asyncio.create_task(self._try(command))
            elif command.op == "dump":
                await self._dump(command)
            elif command.op == "resume":
                for rank in self.ranks:
                    rank.allow(command.generation)
            else:
                self.exit_code = 0 if command.op == "finish" else command.exit_code

    async def _watch(self) -> None:
        """Say which ranks have ended; once all have, with 0, again and again until there is an answer."""
        told: set[int] = set()
        while self.exit_code is None:
            with contextlib.suppress(aiohttp.ClientError, OSError):  # its sidecar is being started anew
                for rank in self.ranks:
                    if rank.code is not None and rank.rank not in told and not rank.is_alive():
                        if not rank.code:
                            ended.tell(self.paths, rank.rank)
                        await self.post(LauncherEvent("exited", rank=rank.rank, code=rank.code))
                        told.add(rank.rank)
                if len(told) == len(self.ranks):
                    codes = [rank.code for rank in self.ranks if rank.code]
                    if codes:
                        self.exit_code = codes[0]
                    else:
                        await self.post(LauncherEvent("finished"))
                        self.waits = True
            await asyncio.sleep(0.05)

    def _stream(self, rank: int, pages: bytes) -> PageSink:
        sink = PageSink(self.config.run_dir / names.PAGES_FILE, rank, time.monotonic() + 60)
        sink.open(1)
        with contextlib.suppress(DumpError):
            sink.write(1, memoryview(pages))
        return sink

    async def _try(self, command: LauncherCommand) -> None:
        await eventually("ranks are frozen", lambda: all(command.generation in r.frozen for r in self.ranks))
        if self.pages_written is not None:
            ends = [asyncio.ensure_future(self.pages_written()), asyncio.ensure_future(self._gives_way.wait())]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
        kind, message = ("dump_failed", self.dump_error) if self.dump_error else ("dumped", "")
        if self._gives_way.is_set():
            kind, message = "dump_failed", "the trial gives way to a checkpoint"
        event = LauncherEvent(kind, command.generation, message=message, dump=command.dump)  # type: ignore[arg-type]
        await self.post(replace(event, late=self.late))

    async def _dump(self, command: LauncherCommand) -> None:
        await eventually("ranks are frozen", lambda: all(command.generation in r.frozen for r in self.going))
        sinks: list[tuple[PageSink, Path]] = []
        over = [*self.over, *(rank.rank for rank in self.ranks if rank.code == 0)]
        for number in over:
            ended.save(self.paths, command.checkpoint_id, number)
        for rank in self.going:
            folder = self.config.image_dir / command.checkpoint_id / f"rank-{rank.rank}"
            folder.mkdir(parents=True, exist_ok=True)  # a sidecar that was started anew asks again
            record = {"count": rank.frozen[command.generation]}
            (folder / "rank.json").write_text(json.dumps(record))
            if self.config.engine == names.ENGINE_BOTH and not command.anywhere:
                (folder / "state/checkpoints").mkdir(parents=True, exist_ok=True)
                (folder / "state/checkpoints/one.json").write_text(json.dumps(record))
            own = f"{self.config.attempt} {command.generation} {rank.rank}".encode()
            shared = b"shared by all ranks".ljust(1 << 20, b"x")
            pages = shared + random.Random(own).randbytes(self.own_bytes) + own
            self.sent[rank.rank] = pages
            if command.stream:
                sinks.append((await asyncio.to_thread(self._stream, rank.rank, pages), folder))
            else:
                (folder / "pages-1.img").write_bytes(pages)
        if self.pages_written is not None:
            await self.pages_written()
        for sink, folder in sinks:
            with contextlib.suppress(OSError, DumpError):  # an upload that has failed says so itself
                await asyncio.to_thread(sink.end, folder)
            sink.close()
        if self.dump_error:
            failed = LauncherEvent("dump_failed", command.generation, message=self.dump_error, dump=command.dump)
            await self.post(failed)
            return
        save = SavePhases(dump=10.0 * (1 + self.config.index))
        event = LauncherEvent("dumped", command.generation, save=save, dump=command.dump, occupied=self.occupied)
        await self.post(event)

    def kill_ranks(self) -> None:
        self.collective.close()
        for rank in self.ranks:
            rank.imports.set()
            for generation in rank.frozen:
                rank.allow(generation)


class World:
    """One attempt: `workers` pods, each with a sidecar and a launcher."""

    def __init__(
        self,
        folder: Path,
        controller: FakeController,
        workers: int,
        world_size: int,
        attempt: int = 1,
        job: str = "train",
        engine: Engine = "process",
    ) -> None:
        self.controller = controller
        self.collective = Collective(world_size)
        token = folder / "token"
        token.write_text(TOKEN + "\n")
        ref = controller.checkpoint
        first = Config(
            namespace="team", job=job, pod=f"{job}-0", pod_ip="127.0.0.1", index=0, attempt=attempt, workers=workers,
            world_size=world_size, store=f"file://{folder}/store", controller_url=controller.url,
            controller_ca=controller.pem, token_file=token, checkpoint=ref.id if ref else "", mesh_port=free_port(),
            engine=engine,
        )  # fmt: skip
        short = "" if job == "train" else f"{job}-"
        self.configs = [
            replace(first, index=i, pod=f"{job}-{i}", pod_ip=f"127.0.0.{i + 1}", root=folder / f"{short}a{attempt}p{i}")
            for i in range(workers)
        ]
        self.stops = [asyncio.Event() for _ in self.configs]
        self.sidecars: list[asyncio.Task[None]] = []
        self.launchers: list[FakeLauncher] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, last: int | None = None) -> World:
        # Followers first: they have to wait until the leader is known.
        pairs = list(zip(self.configs, self.stops, strict=True))
        self.sidecars = [asyncio.create_task(run(c, s)) for c, s in reversed(pairs)][::-1]
        return self.launch(last)

    def launch(self, last: int | None = None) -> World:
        """The launchers alone."""
        self.launchers = [FakeLauncher(c, self.collective, last) for c in self.configs]
        self._tasks = [asyncio.create_task(x.run()) for x in self.launchers]
        return self

    @property
    def over(self) -> set[int]:
        """Ranks that had ended before this attempt."""
        return {rank for launcher in self.launchers for rank in launcher.over}

    @property
    def ranks(self) -> list[Rank]:
        return [rank for launcher in self.launchers for rank in launcher.ranks]

    async def stepped(self, least: int) -> None:
        """Wait until every rank has passed `least` boundaries."""
        total = self.configs[0].world_size
        await eventually(
            f"all ranks at step {least}",
            lambda: len(self.ranks) + len(self.over) == total and all(r.boundary.count >= least for r in self.ranks),
        )

    async def end(self) -> None:
        """SIGTERM to all sidecars after their launchers have ended; every one has to end in order."""
        for launcher in self.launchers:
            launcher.kill_ranks()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stop in self.stops:
            stop.set()
        results = await asyncio.wait_for(asyncio.gather(*self.sidecars, return_exceptions=True), 120)
        for rank in self.ranks:
            rank.join(5)
        unexpected = [r for r in results if isinstance(r, Exception)]
        assert not unexpected, unexpected
