"""Each who has a part in a streamed dump fails at each step of it, with real CRIU. The ranks lose nothing, what came of
the pages is no checkpoint, and the next dump moves the rank to another pod with every bit of its memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from faulty_proxy import FaultyProxy
from gcsfs import GCSFileSystem
from pod_harness import Pod
from pod_moves import dump_anywhere
from streamed_pod import HELD, MIB, Start, goes_on, moves, ready, uploading

from singularity_proxy.errors import StoreError
from singularity_proxy.protocol import names, page_frames
from singularity_proxy.store import PagesSocket, Store

pytestmark = pytest.mark.criu

STEPS = {"connected": 0, "the first page": 1, "the midst": HELD * MIB // 2, "all, no answer yet": 1 << 40}
"""Step -> bytes of pages that have come."""
PATIENCE_S = 5
"""Of a dump that somebody holds up."""
VICTIMS = {
    "page server": "page server: was killed (SIGKILL)",
    "CRIU": "was killed",
    "connection": "the sidecar",
    "silence": "the sidecar did not take the pages before the deadline",
}
"""Who fails -> what is said of it."""
QUICK = {("page server", "the midst"), ("CRIU", "the midst")}
counted: dict[str, int] = {}


def rows() -> Iterator[object]:
    for victim in VICTIMS:
        for step in STEPS:
            marks = [] if (victim, step) in QUICK else [pytest.mark.full]
            yield pytest.param(victim, step, marks=marks, id=f"{victim}: {step}")


@pytest.fixture(scope="module", autouse=True)
def outcomes(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\nfaults of streams that fired: {counted}")


def running(pod: Pod, word: bytes) -> list[int]:
    """PIDs of the pod's processes with this among the words of their command line."""
    found = []
    for entry in pod.processes():
        with contextlib.suppress(OSError):
            if word in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def take(peer: socket.socket, most: int) -> int:
    """Read pages until there are `most` bytes, or the end. Returns how many came."""
    with peer.makefile("rb") as file:
        assert page_frames.WORDS.unpack(file.read(8))[0] == page_frames.MAGIC
        came = 0
        while came < most:
            _, size = page_frames.WORDS.unpack(file.read(8))
            if not size:
                return came
            came += len(file.read(size))
        return came


def strike(victim: str, pod: Pod, peer: socket.socket) -> None:
    """The fault; counted once it has fired."""
    if victim == "connection":
        peer.close()
    elif victim != "silence":
        [pid] = running(pod, b"_singularity.launcher.snapshot.page_server" if victim == "page server" else b"dump")
        os.kill(pid, signal.SIGKILL)
    counted[victim] = counted.get(victim, 0) + 1


@pytest.mark.parametrize(("victim", "step"), list(rows()))
def test_fault(start_holder: Start, tmp_path: Path, victim: str, step: str) -> None:
    pod = ready(start_holder("pod"))
    pages = PagesSocket(pod.volumes / "run" / names.PAGES_FILE)

    def receive() -> socket.socket:
        peer, _ = pages.listener.accept()
        came = take(peer, STEPS[step])
        assert came >= min(STEPS[step], HELD * MIB)
        strike(victim, pod, peer)
        return peer  # open until the dump is over

    before = sum(counted.values())
    with closing(pages), ThreadPoolExecutor(1) as pool:
        held = pool.submit(receive)
        event = dump_anywhere(pod, 4, stream=True, remaining_s=PATIENCE_S)
        held.result(120).close()
    assert sum(counted.values()) == before + 1
    assert event.kind == "dump_failed" and VICTIMS[victim] in event.message, event.message
    assert not (pod.image("c", 0) / page_frames.LIST).exists(), "it is no checkpoint"
    pod.sidecar.command("resume", generation=4)
    store = Store(f"file://{tmp_path}/store")
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dumped", event.message
    moves(start_holder, pod, store, put.result(120))


def test_a_container_without_memory_for_the_dump(memory_256m: Path, start_holder: Start, tmp_path: Path) -> None:
    """The kernel kills who takes the pages, and not the rank, though the rank is much larger."""
    pod = ready(start_holder("pod", cgroup=memory_256m))
    pod.wait_event("started")
    limit, usage = memory_256m / "memory.limit_in_bytes", memory_256m / "memory.usage_in_bytes"
    (memory_256m / "memory.force_empty").write_text("0")
    # Less than the page server needs, and enough for the rank to get its code back, which has just been forgotten.
    limit.write_text(str(int(usage.read_text()) + 8 * MIB))
    store = Store(f"file://{tmp_path}/store")
    with uploading(pod, store):
        event = dump_anywhere(pod, 4, stream=True)
    assert event.kind == "dump_failed", "it had room for the dump"
    assert "page server: was killed (SIGKILL)" in event.message and "for memory" in event.message, event.message
    assert not (pod.image("c", 0) / page_frames.LIST).exists(), "it is no checkpoint"
    limit.write_text(str(256 * MIB))
    pod.sidecar.command("resume", generation=4)
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dumped", event.message
    moves(start_holder, pod, store, put.result(120))


def test_a_disk_that_is_full_fails_the_stream(start_holder: Start, tmp_path: Path) -> None:
    """Pages need no disk. What else belongs to a rank does: images of its files, sockets, registers."""
    pod = ready(start_holder("pod", disk=4))
    pod.wait_event("started")
    images = pod.volumes / "images"
    with (images / "others").open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while out.write(bytes(4096)):
            pass
    store = Store(f"file://{tmp_path}/store")
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 4, stream=True)
    assert event.kind == "dump_failed" and "No space left on device" in event.message, event.message
    assert isinstance(put.exception(30), StoreError)
    pod.sidecar.command("resume", generation=4)
    (images / "others").unlink()
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dumped", event.message
    moves(start_holder, pod, store, put.result(120))


@pytest.mark.parametrize("fault", ["503", "cut", "silence"])
@pytest.mark.parametrize("after", [0, 8 * MIB], ids=["at once", "in the midst"])
@pytest.mark.parametrize("heals", [True, False], ids=["for a while", "past the deadline"])
@pytest.mark.full
def test_a_store_fails(start_holder: Start, gcs_server: str, gs_url: str, monkeypatch: pytest.MonkeyPatch,
                       fault: str, after: int, heals: bool) -> None:  # fmt: skip
    """A proxy before a real server: the dump waits for a while, and fails by its deadline."""
    proxy = FaultyProxy(urlsplit(gcs_server).port or 0)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
    GCSFileSystem.clear_instance_cache()
    with closing(proxy):
        store = Store(gs_url)
        pod = ready(start_holder("pod"))
        times = 1 if fault == "silence" else 3  # a request is given up after 20 s
        proxy.fail(fault, after=after, spreads=True, times=times if heals else 1 << 30)
        cancel = threading.Event()
        with uploading(pod, store, cancel) as put, ThreadPoolExecutor(1) as pool:
            dump = pool.submit(dump_anywhere, pod, 5, stream=True, remaining_s=60 if heals else 8)
            proxy.wait_fired(fault)
            event = dump.result(90)
            if not heals:
                proxy.heal()
                cancel.set()  # as the sidecar does when its launcher says that there is no dump
        assert proxy.fired[fault] >= (1 if fault == "silence" else 2)
        if heals:
            assert event.kind == "dumped", event.message
            moves(start_holder, pod, store, put.result(120))
            return
        assert event.kind == "dump_failed" and "the sidecar did not take the pages" in event.message, event.message
        assert isinstance(put.exception(60), StoreError)
        assert store.list_checkpoints("team", "train") == []
        pod.sidecar.command("resume", generation=5)
        goes_on(pod)
