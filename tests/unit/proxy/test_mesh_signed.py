"""What sidecars say to each other is signed, new and bounded: keys, replays, impostors, ids, commands."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from mesh_world import free_port

from singularity_proxy.errors import MeshError
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import LauncherCommand, MessageError, Plan, from_json, to_json
from singularity_proxy.sidecar import signed
from singularity_proxy.sidecar.barrier_page import BarrierPage
from singularity_proxy.sidecar.config import from_env
from singularity_proxy.sidecar.launcher_api import LauncherApi
from singularity_proxy.sidecar.mesh import Follower, MeshServer
from singularity_proxy.sidecar.peers import Directive, PodReport, Stop
from singularity_proxy.sidecar.pod import Pod
from singularity_proxy.sidecar.signed import Current, Numbers, Signer
from singularity_proxy.store import Store

ENV = {
    names.ENV_NAMESPACE: "team", names.ENV_JOB: "train", names.ENV_POD: "train-1", names.ENV_POD_IP: "10.0.0.2",
    names.ENV_INDEX: "1", names.ENV_ATTEMPT: "2", names.ENV_WORKERS: "2", names.ENV_WORLD_SIZE: "2",
    names.ENV_STORE: "file:///mnt/c", names.ENV_CONTROLLER_URL: "https://c:443/", names.ENV_CONTROLLER_CA: "PEM",
    names.ENV_TOKEN_FILE: "/singularity/token/token",
}  # fmt: skip
PLAN = {"mode": "fresh", "attempt": 1, "world_size": 1, "ranks": [0], "master_addr": "10.0.0.1", "master_port": 29500}


@pytest.fixture
def short() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="side-"))  # short: unix socket paths have at most 107 bytes
    yield path
    shutil.rmtree(path)


async def never_sent(command: LauncherCommand) -> None:
    raise AssertionError(f"the launcher was told {command}")


async def test_mesh_lets_only_this_attempts_followers_in(short: Path) -> None:
    seen: list[PodReport] = []

    async def exchange(report: PodReport, _: int, __: float) -> Directive:
        seen.append(report)
        return Directive("run", version=5)

    server, port = MeshServer("key", 2, exchange), free_port()
    await server.start(port, "127.0.0.1")
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:

        async def ask(body: str, key: str = "key", **changed: str) -> tuple[int, bytes]:
            headers = {**signer(key).sign("/v1/exchange", body.encode()), **changed}
            async with http.post("/v1/exchange", data=body, headers=headers) as response:
                return response.status, await response.read()

        def signer(key: str) -> Signer:
            return signers.setdefault(key, Signer(key))

        signers: dict[str, Signer] = {}
        follower = to_json(PodReport(1, []))
        async with http.post("/v1/exchange", data=follower) as response:
            assert response.status == 401
        for body, key, changed, status in (
            (follower, "other", {}, 401),
            (follower, "key", {signed.MAC: "\xe9"}, 401),
            (follower, "key", {signed.NUMBER: str(2**52)}, 401),
            (follower, "key", {signed.DIGEST: "0" * 64}, 401),
            ("{}", "key", {}, 400),
            (to_json(PodReport(0, [])), "key", {}, 400),
            (to_json(PodReport(2, [])), "key", {}, 400),
            (follower, "key", {}, 409),
        ):
            found, answer = await ask(body, key, **changed)
            assert found == status, (body, key, changed, answer)
        assert not seen
        signer("key").learn(from_json(Current, answer))
        _, answer = await ask(follower)
        assert from_json(Directive, answer).version == 5 and len(seen) == 1
    await server.close()


async def tapped_by(wire: list[bytes], port: int) -> tuple[asyncio.Server, int]:
    """A proxy before `port` that writes down what passes, and its own port."""
    tapped = free_port()

    async def tap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                wire.append(data)
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, downstream), pump(upstream, writer))

    return await asyncio.start_server(tap, "127.0.0.1", tapped), tapped


async def status_line(port: int, request: bytes) -> bytes:
    """How the server at `port` answers these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.readline()
    finally:
        writer.close()


async def test_the_key_never_travels_and_what_was_recorded_is_of_no_use(short: Path) -> None:
    """A rank with a raw socket reads the wire: it finds no key, and cannot repeat or change what it has seen."""
    seen: list[PodReport] = []

    async def exchange(report: PodReport, _: int, __: float) -> Directive:
        seen.append(report)
        return Directive("run", version=len(seen))

    wire: list[bytes] = []
    server, port = MeshServer("a secret key", 2, exchange), free_port()
    await server.start(port, "127.0.0.1")
    between, tapped = await tapped_by(wire, port)
    config = replace(from_env(ENV), root=short)
    barrier = BarrierPage(config.run_dir, config.world_size)
    pod = Pod(config, barrier, Store(f"file://{short}/store"), never_sent, "127.0.0.1", 0)
    follower = Follower(pod, "127.0.0.1", tapped, "a secret key")
    async with aiohttp.ClientSession() as session:
        for version in (1, 2, 3):
            assert (await follower.post(session, PodReport(1, []), 0, 0)).version == version
    between.close()
    assert b"Singularity-Mac" in b"".join(wire) and b"a secret key" not in b"".join(wire)
    recorded = [data for data in wire if data.startswith(b"POST ")]
    assert len(recorded) == 4, "the first request teaches the session"
    for request in recorded:
        changed = request.replace(b"seen=0", b"seen=9")
        assert b" 409 " in await status_line(port, request)
        assert b" 401 " in await status_line(port, changed)
    assert len(seen) == 3, "nothing of what was repeated reached the leader"
    again = MeshServer("a secret key", 2, exchange)
    await server.close()
    await again.start(port, "127.0.0.1")
    for request in recorded:
        assert b" 409 " in await status_line(port, request)
    assert len(seen) == 3, "a leader that was started again takes nothing that was meant for the one before"
    async with aiohttp.ClientSession() as session:
        direct = Follower(pod, "127.0.0.1", port, "a secret key")
        assert (await direct.post(session, PodReport(1, []), 0, 0)).version == 4
    await again.close()
    barrier.close()


async def test_an_answer_that_the_leader_did_not_sign_is_not_believed(short: Path) -> None:
    async def impostor(request: web.Request) -> web.Response:
        return web.Response(text=to_json(Directive("exit", version=9)), headers={signed.MAC: "0" * 64})

    app, port = web.Application(), free_port()
    app.router.add_post("/v1/exchange", impostor)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    config = replace(from_env(ENV), root=short)
    barrier = BarrierPage(config.run_dir, config.world_size)
    pod = Pod(config, barrier, Store(f"file://{short}/store"), never_sent, "127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(MeshError, match="without our key"):
            await Follower(pod, "127.0.0.1", port, "key").post(session, PodReport(1, []), 0, 0)
    await runner.cleanup()
    barrier.close()


async def test_a_sidecar_whose_clock_went_back_is_told_the_number_to_go_on_from() -> None:
    numbers = Numbers()
    before, after = Signer("key", lambda: 9_000_000_000), Signer("key", lambda: 1_000)
    before.learn(Current(numbers.session, 0))
    assert numbers.take(1, before.sign("/", b"")) is None
    after.learn(Current(numbers.session, 0))
    current = numbers.take(1, after.sign("/", b""))
    assert current == Current(numbers.session, 9_000_000)
    after.learn(current)
    assert numbers.take(1, after.sign("/", b"")) is None


@pytest.mark.parametrize("text", ["../x", "a/b", "/etc", "a" * 64, "A", ".", "a\n"])
def test_an_id_that_is_no_checkpoints_is_refused_before_it_is_part_of_a_path(text: str) -> None:
    for cls, data in (
        (Directive, {"op": "save", "checkpoint_id": text}),
        (Stop, {"generation": 1, "checkpoint_id": text}),
        (LauncherCommand, {"seq": 1, "op": "dump", "checkpoint_id": text}),
        (Plan, {**PLAN, "checkpoint_id": text}),
    ):
        with pytest.raises(MessageError, match="is not a checkpoint id"):
            from_json(cls, json.dumps(data))


async def test_commands_that_the_launcher_has_had_are_forgotten(short: Path) -> None:
    """A launcher gets some for each periodic checkpoint, for as long as its job runs."""
    api = LauncherApi(short, lambda event: None, poll_s=5)
    await api.start()
    connector = aiohttp.UnixConnector(str(short / names.SOCKET_FILE))
    async with aiohttp.ClientSession("http://launcher", connector=connector) as http:
        after = 0
        for _ in range(200):
            await api.send(LauncherCommand(0, "resume"))
            async with http.get(f"/v1/commands?after={after}") as response:
                after = from_json(LauncherCommand, await response.read()).seq
        assert len(api._commands) <= 2
    await api.close()
