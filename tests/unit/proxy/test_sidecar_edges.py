"""Configuration, the page, the fit of a checkpoint, refusals of the sidecar's two servers."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mesh_world import eventually, free_port

from singularity_proxy.errors import ConfigError, ControllerError, RestoreRefusedError, StaleAttemptError
from singularity_proxy.protocol import cpu, exit_codes, names, page
from singularity_proxy.protocol.manifest import Manifest, RankImage, Requirements, Stored, object_name
from singularity_proxy.protocol.messages import Command, LauncherCommand, LauncherEvent, Needs, Plan, from_json, to_json
from singularity_proxy.protocol.page import STATE_ABSENT, STATE_RUNNING
from singularity_proxy.protocol.ratchet import RankView
from singularity_proxy.sidecar import hardware
from singularity_proxy.sidecar import pod as pod_module
from singularity_proxy.sidecar.barrier_page import BarrierPage
from singularity_proxy.sidecar.config import from_env
from singularity_proxy.sidecar.launcher_api import LauncherApi
from singularity_proxy.sidecar.leader import Leader
from singularity_proxy.sidecar.mesh import Follower
from singularity_proxy.sidecar.peers import Directive, PodReport, RankWords, Stop
from singularity_proxy.sidecar.pod import Pod, resume_port
from singularity_proxy.sidecar.state_machine import Trigger
from singularity_proxy.store import Store

ENV = {
    names.ENV_NAMESPACE: "team", names.ENV_JOB: "train", names.ENV_POD: "train-1", names.ENV_POD_IP: "10.0.0.2",
    names.ENV_INDEX: "1", names.ENV_ATTEMPT: "2", names.ENV_WORKERS: "2", names.ENV_WORLD_SIZE: "5",
    names.ENV_STORE: "file:///mnt/c", names.ENV_CONTROLLER_URL: "https://c:443/", names.ENV_CONTROLLER_CA: "PEM",
    names.ENV_TOKEN_FILE: "/singularity/token/token",
}  # fmt: skip


@pytest.fixture
def short() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="side-"))
    yield path
    shutil.rmtree(path)


def test_environment_is_read() -> None:
    config = from_env(ENV)
    assert (config.index, config.leader, config.ranks, config.checkpoint) == (1, False, [3, 4], "")
    assert (str(config.run_dir), str(config.image_dir)) == (names.RUN_DIR, names.IMAGE_DIR)
    assert config.controller_url == "https://c:443"
    assert from_env({**ENV, "SINGULARITY_ROOT": "/elsewhere"}) == config, "whoever writes the pod chooses no paths"


@pytest.mark.parametrize("name", sorted(ENV))
def test_missing_variable_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not set"):
        from_env({**ENV, name: ""})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (names.ENV_INDEX, "one", "'one': not a whole number"),
        (names.ENV_INDEX, "2", "index = 2"),
        (names.ENV_ATTEMPT, "0", "at least 1"),
        (names.ENV_WORLD_SIZE, "1", "smaller than workers = 2"),
        (names.ENV_WORLD_SIZE, "9000", "at most 1023 ranks"),
    ],
)
def test_bad_variable_is_named(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        from_env({**ENV, name: value})


def test_page_is_created_with_its_size_and_adopted_later(tmp_path: Path) -> None:
    first = BarrierPage(tmp_path / "run", 4)
    found = (tmp_path / "run" / "page").stat()
    assert not first.adopted and found.st_size == page.PAGE_SIZE
    assert found.st_blocks * 512 >= page.PAGE_SIZE, "a hole: whoever writes there when the volume is full is killed"
    first.acquire(page.generation(1, 2), 9)
    second = BarrierPage(tmp_path / "run", 4)
    assert second.adopted and second.request == second.acquired == page.generation(1, 2)
    second.withdraw()
    assert first.request == 0
    assert not BarrierPage(tmp_path / "run", 5).adopted, "another world size: a new page"
    (tmp_path / "run" / "page").write_bytes(b"short")
    assert not BarrierPage(tmp_path / "run", 5).adopted
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create the barrier page"):
        BarrierPage(tmp_path / "file" / "run", 1)


def test_snapshot_never_pairs_a_counter_with_a_block_of_another_moment(tmp_path: Path) -> None:
    """A writer that counts and blocks at even counters only, read as fast as possible."""
    barrier = BarrierPage(tmp_path, 1)
    words = barrier._words
    end = threading.Event()

    def write() -> None:
        count = 0
        while not end.is_set():
            count += 1
            words[page.rank_word(0, page.R_COUNT)] = count
            if count % 2 == 0:
                words[page.rank_word(0, page.R_BLOCKED)] = 1
                words[page.rank_word(0, page.R_BLOCKED)] = 0

    # The two threads take turns, and few turns end while BLOCKED is set: short turns, and as many as it takes.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    writer = threading.Thread(target=write)
    writer.start()
    views, met, late = [], 0, time.monotonic() + 60
    try:
        while len(views) < 100_000 or met < 10:
            views.append(barrier.view(0))
            met += views[-1].blocked
            assert time.monotonic() < late, f"{len(views)} views, {met} of them of a rank that is blocked"
    finally:
        end.set()
        writer.join()
        sys.setswitchinterval(usual)
    assert all(v.count % 2 == 0 for v in views if v.blocked)
    assert [v.count for v in views] == sorted(v.count for v in views)
    assert barrier.views([0])[0] == RankView(words[page.rank_word(0, 0)], 0, 0)
    words.release()


def _manifest(**changes: object) -> Manifest:
    values: dict[str, object] = {
        "id": "t-a1-g1", "namespace": "n", "job": "t", "attempt": 1, "generation": 1, "step": 1, "world_size": 2,
        "engine": "process", "created_at": 1.0, "ranks": [], "requirements": Requirements("x86_64", "abc"),
    }  # fmt: skip
    return Manifest(**{**values, **changes})  # type: ignore[arg-type]


def test_fit_of_a_checkpoint() -> None:
    here = Requirements("x86_64", "abc")
    assert hardware.through(_manifest(), "process", 2, here) == ("process", "")
    found, why = hardware.through(_manifest(), "process", 2, Requirements("x86_64", "other"))
    assert found == "process" and "CPU with other features" in why
    with pytest.raises(RestoreRefusedError, match="world size 2, this job has 4"):
        hardware.through(_manifest(), "process", 4, here)
    with pytest.raises(RestoreRefusedError, match="taken on x86_64, this node is aarch64"):
        hardware.through(_manifest(), "process", 2, Requirements("aarch64", "abc"))
    both = "was made with engine 'state', this job has engine 'process': submit the job with engine='state'"
    with pytest.raises(RestoreRefusedError, match=both):
        hardware.through(_manifest(engine="state"), "process", 2, here)
    with pytest.raises(RestoreRefusedError, match="was made with engine 'process', this job has engine 'state'"):
        hardware.through(_manifest(), "state", 2, here)
    assert hardware.through(_manifest(engine="state"), "state", 7, Requirements("aarch64", "")) == ("state", "")


@pytest.mark.parametrize(
    ("engine", "of", "here", "world", "through", "why"),
    [
        ("both", "both", Requirements("x86_64", "abc"), 2, "process", ""),
        ("both", "both", Requirements("x86_64", ""), 2, "process", ""),
        ("both", "both", Requirements("x86_64", "other"), 2, "state", "CPU with other features"),
        ("both", "both", Requirements("aarch64", "abc"), 2, "state", "taken on x86_64, this node is aarch64"),
        ("both", "both", Requirements("x86_64", "abc"), 4, "state", "world size 2, this job has 4"),
        ("both", "state", Requirements("aarch64", "abc"), 4, "state", ""),
        ("both", "process", Requirements("x86_64", "other"), 2, "process", "CPU with other features"),
        ("state", "both", Requirements("aarch64", "abc"), 3, "state", ""),
        ("process", "both", Requirements("x86_64", "abc"), 2, "process", ""),
    ],
)
def test_what_a_pod_goes_on_from(engine: str, of: str, here: Requirements, world: int, through: str, why: str) -> None:
    found, told = hardware.through(_manifest(engine=of), engine, world, here)
    assert found == through and why in told and bool(why) == bool(told)


def test_needs_are_in_the_words_of_node_labels() -> None:
    info = "processor: 0\nflags : sse4_2 fma avx2 avx512f avx512_vnni amx_tile made_up\n"
    found = hardware.needs("x86_64", info)
    assert (found.architecture, found.cpu) == ("amd64", ["AMXTILE", "AVX2", "AVX512F", "AVX512VNNI", "FMA3"])
    assert hardware.needs("aarch64", "Features : fp asimd\n") == Needs("arm64", [])
    assert hardware.needs().architecture


def test_cpu_flags_digest_ignores_order_and_depends_on_the_flags() -> None:
    one = cpu.flags_digest("processor: 0\nflags\t\t: sse avx\n")
    assert one == cpu.flags_digest("flags : avx sse avx\n") != ""
    assert one != cpu.flags_digest("flags : avx\n") and cpu.flags_digest("x: y") == ""
    assert hardware.requirements().architecture


def test_ports_of_ranks_that_go_on_in_place_differ_from_the_one_before() -> None:
    ports = [resume_port(page.generation(7, n)) for n in range(1, 1200)]
    assert names.MASTER_PORT not in ports and max(ports) < 32768 and names.MESH_PORT not in ports
    assert all(a != b for a, b in itertools.pairwise(ports))


async def test_launcher_socket(short: Path) -> None:
    events: list[LauncherEvent] = []
    api = LauncherApi(short, events.append, poll_s=0.2)
    await api.start()
    connector = aiohttp.UnixConnector(str(short / names.SOCKET_FILE))
    async with aiohttp.ClientSession("http://launcher", connector=connector) as http:
        assert (await http.get("/v1/plan")).status == 425
        assert (await http.get("/v1/commands?after=0")).status == 204
        assert (await http.get("/v1/commands?after=x")).status == 400
        bad = await http.post("/v1/events", data=b'{"kind": "nonsense"}')
        assert bad.status == 400 and "LauncherEvent.kind" in (await bad.json())["error"]
        assert (await http.post("/v1/events", data=to_json(LauncherEvent("started")))).status == 200
        assert events == [LauncherEvent("started")]
        api.publish_plan(Plan("fresh", 1, 1, [0], "10.0.0.1", 29500))
        assert from_json(Plan, await (await http.get("/v1/plan")).read()).ranks == [0]
        for op in ("dump", "resume"):
            await api.send(LauncherCommand(0, op))  # type: ignore[arg-type]
        first = from_json(LauncherCommand, await (await http.get("/v1/commands?after=0")).read())
        second = from_json(LauncherCommand, await (await http.get(f"/v1/commands?after={first.seq}")).read())
        assert (first.op, second.op) == ("dump", "resume") and second.seq > first.seq
    await api.close()


@dataclass
class Following:
    """The pod of a follower, without a leader and a launcher."""

    pod: Pod
    barrier: BarrierPage
    sent: list[LauncherCommand]
    """To the launcher."""


@pytest.fixture
def follower(short: Path) -> Iterator[Following]:
    sent: list[LauncherCommand] = []

    async def send(command: LauncherCommand) -> None:
        sent.append(command)

    config = replace(from_env(ENV), root=short)
    barrier = BarrierPage(config.run_dir, config.world_size)
    yield Following(Pod(config, barrier, Store(f"file://{short}/store"), send, "127.0.0.1", 0), barrier, sent)
    barrier.close()


async def test_a_follower_ends_on_the_last_word_after_the_leader_has_gone(follower: Following) -> None:
    """Committed, then the leader's pod ends first: a follower that gets its SIGTERM later must not wait for it."""
    pod, sent = follower.pod, follower.sent
    await pod.apply(Directive("stop", generation=2_000_001, version=7))
    assert sent == []
    following = asyncio.create_task(Follower(pod, "127.0.0.1", free_port(), "key").run())
    pod.on_event(LauncherEvent("terminating", grace_s=60))
    await eventually("the launcher is told to end", lambda: sent)
    assert [(c.op, c.exit_code) for c in sent] == [("exit", exit_codes.STOPPED)]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_sidecar_that_ends_in_the_middle_of_a_save_waits_for_no_thread(
    follower: Following, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose part has failed is started anew only when its process has ended, and that waits for all threads."""
    pod, generation, ended = follower.pod, page.generation(2, 1), threading.Event()
    put_ranks = pod._store.put_ranks

    def put(*given: Any, **more: Any) -> Any:
        try:
            return put_ranks(*given, **more)
        finally:
            ended.set()

    monkeypatch.setattr(pod._store, "put_ranks", put)
    (pod._config.image_dir / "c1" / "rank-0").mkdir(parents=True)
    saving = asyncio.create_task(pod._save(generation, "c1", None, None))
    await eventually("the upload has begun", lambda: any((short / "store").rglob("*")))
    saving.cancel()
    try:
        await eventually("its thread ends", ended.is_set)
    finally:
        pod._images_whole.set()


@pytest.mark.parametrize("missed", ["its end", "that it was reached", "nothing"])
async def test_a_pod_catches_up_with_a_stop_that_is_over(follower: Following, missed: str) -> None:
    """The leader was started anew between both, say. A rank that stays frozen would hold up all others for ever."""
    pod, sent, barrier = follower.pod, follower.sent, follower.barrier
    first, second = page.generation(2, 1), page.generation(2, 2)
    over = Stop(first, 7, checkpoint_id="c1")
    await pod.apply(Directive("barrier", first, 7))
    if missed != "that it was reached":
        await pod.apply(Directive("save", first, 7, acquired=True, checkpoint_id="c1"))
    if missed == "nothing":
        await pod.apply(Directive("run", first, 7, acquired=True, over=over))
    await pod.apply(Directive("barrier", second, 9, over=over))
    await pod.apply(Directive("barrier", second, 10, over=over))
    assert [(c.op, c.generation) for c in sent if c.op == "resume"] == [("resume", first)]
    assert (barrier.acquired, barrier.request) == (first, second)


async def test_a_follower_that_is_asked_to_end_does_not_wait_for_a_leader_that_is_lost(
    follower: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_module, "ALONE_S", 0.5)
    pod, sent = follower.pod, follower.sent
    await pod.apply(Directive("run", version=7))
    following = asyncio.create_task(Follower(pod, "127.0.0.1", free_port(), "key").run())
    await asyncio.wait({following}, timeout=1.0)
    assert sent == []  # a leader that cannot be reached is no reason to end
    pod.on_event(LauncherEvent("terminating", grace_s=60))
    await eventually("the launcher is told to end", lambda: sent)
    assert [(c.op, c.exit_code) for c in sent] == [("exit", exit_codes.STOPPED)]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_failed_commit_does_not_revive_an_attempt_that_was_called_stale_meanwhile(short: Path) -> None:
    config = replace(from_env({**ENV, names.ENV_INDEX: "0", names.ENV_WORLD_SIZE: "2"}), root=short)

    class Away:
        """A controller that answers a report with "stale" and is then gone."""

        async def commit(self, *_: object) -> None:
            leader.stale(StaleAttemptError("attempt 3 is current"))
            raise ControllerError("cannot be reached")

    leader = Leader(config, Away(), Store(f"file://{short}/store"), None)  # type: ignore[arg-type]
    trigger = Trigger("preempted", time.time(), time.time() + 20)
    leader.state = replace(leader.state, phase="commit", sequence=1, stop_at=5, acquired=True, trigger=trigger)
    generation = leader.state.generation
    recipe = Stored(object_name("0" * 64, "0" * 16), 0)
    leader._images = {i: (generation, [RankImage(i, [], [], recipe)], 0) for i in range(2)}
    await leader._commit()
    assert leader.state.phase == "stopped" and leader.directive.op == "exit"


@pytest.mark.parametrize("anywhere", [False, True])
async def test_a_leader_that_dies_with_its_word_that_the_barrier_is_reached_has_written_it_down(
    short: Path, anywhere: bool
) -> None:
    config = replace(from_env({**ENV, names.ENV_INDEX: "0", names.ENV_WORLD_SIZE: "2"}), root=short)
    store = Store(f"file://{short}/store")

    async def send(command: LauncherCommand) -> None:
        raise AssertionError(command)

    barrier = BarrierPage(config.run_dir, config.world_size)
    first = Leader(config, None, store, Pod(config, barrier, store, send, "127.0.0.1", 0))  # type: ignore[arg-type]
    state = STATE_ABSENT if anywhere else STATE_RUNNING
    for index in range(2):
        first._take(PodReport(index, [RankWords(index, 5, 0, state)], started=True))
    first.command(Command(1, "checkpoint", "preempted", time.time() + 60))
    blocked = 0 if anywhere else first.state.generation
    ranks = [[RankWords(i, 6, blocked, state)] for i in range(2)]
    first._take(PodReport(0, ranks[0], started=True))
    directive = await first.exchange(PodReport(1, ranks[1], started=True), 0, 0)
    assert (directive.op, directive.anywhere) == ("save", anywhere)
    barrier.close()
    barrier = BarrierPage(config.run_dir, config.world_size)  # of the sidecar that is started anew
    second = Leader(config, None, store, Pod(config, barrier, store, send, "127.0.0.1", 0))  # type: ignore[arg-type]
    second.continue_after(max(barrier.request, barrier.acquired), barrier.acquired >= barrier.request)
    over = second.directive.over
    assert over is not None and over.generation == directive.generation
    second.command(Command(1, "checkpoint", "preempted", time.time() + 60))
    assert second.state.generation == directive.generation + 1 and second.directive.over == over
    barrier.close()


async def test_the_module_refuses_a_bad_environment_with_one_sentence() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "singularity_proxy.sidecar", env={"PATH": os.environ["PATH"]},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, stderr = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 1 and stderr.decode().strip().endswith(
        "SINGULARITY_NAMESPACE is not set: the Job's pod template has to set it"
    )


async def test_the_end_of_a_dump_that_the_sidecar_before_asked_for_is_not_that_of_its_own(follower: Following) -> None:
    """Pages of a stream went to a sidecar that died. Its dump fails late, when the next sidecar has asked again."""
    pod = follower.pod
    await pod.apply(Directive("save", 1_000_001, 5, checkpoint_id="train-a1-g1", remaining_s=60.0, version=1))
    (asked,) = follower.sent
    assert asked.op == "dump" and asked.dump
    for late in (LauncherEvent("dump_failed", 1_000_001, dump="before"), LauncherEvent("dumped", 1_000_001, dump="b")):
        pod.on_event(late)
        assert (pod.report().failed, pod.report().dumped) == (0, 0)
    pod.on_event(LauncherEvent("dump_failed", 1_000_001, message="no room", dump=asked.dump))
    assert (pod.report().failed, pod.report().message) == (1_000_001, "no room")
