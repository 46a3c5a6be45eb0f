"""Dumps whose pages go to an upload, with real CRIU: they need little disk, and no fault costs a rank anything."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pod_harness import Pod
from pod_moves import dump_anywhere, until
from store_samples import manifest

from proxy.errors import StoreError
from proxy.protocol import image_room, messages, names
from proxy.store import PagesSocket, PutResult, Store
from proxy.store.backend import Backend

pytestmark = [pytest.mark.criu, pytest.mark.timeout(180)]
MIB = 1 << 20
HELD = 48
HOLDER = """
import hashlib, os, sys, time
held = bytearray(os.urandom(int(sys.argv[1]) << 20))
own = hashlib.sha256(held).hexdigest()
with open("travels", "wb") as out:
    out.write(os.urandom(int(sys.argv[2]) << 20))
n = 0
while not os.path.exists("end"):
    n += 1
    with open("n.new", "w") as out:
        out.write(str(n))
    os.rename("n.new", "n")
    time.sleep(0.005)
with open("same", "w") as out:
    out.write(str(hashlib.sha256(held).hexdigest() == own))
"""
Run = Callable[..., Pod]


@pytest.fixture
def run(make_pod: Callable[..., Pod], rootfs: Path, criu_bundle: Path) -> Iterator[Run]:
    mounts: list[Path] = []

    def make(
        name: str, *, plan: messages.Plan | None = None, travels: int = 0, disk: int = 0, env: Any = None,
        bring: Callable[[Pod], object] = lambda _: None,
    ) -> Pod:  # fmt: skip
        plan = plan or messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
        command = ["python3", "holder.py", str(HELD), str(travels)]
        pod = make_pod(name, rootfs=rootfs, torch=None, plan=plan, command=command, criu=criu_bundle, env=env)
        (pod.volumes / "source/holder.py").write_text(HOLDER)
        if disk:
            images = pod.volumes / "images"
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk}m", "tmpfs", images], check=True)
            mounts.append(images)
        bring(pod)
        return pod.start()

    yield make
    for path in mounts:
        subprocess.run(["umount", "-l", path], check=True)


def count(pod: Pod) -> int:
    path = pod.work(0) / "cwd/n"
    return int(path.read_text()) if path.exists() else 0


def goes_on(pod: Pod) -> None:
    """Not only alive: its memory is what it was."""
    at = count(pod)
    until(lambda: count(pod) > at + 20, "it goes on", pod)
    (pod.work(0) / "cwd/end").touch()
    assert pod.wait() == 0, pod.log()
    assert (pod.work(0) / "cwd/same").read_text() == "True"


@contextmanager
def uploading(pod: Pod, store: Store, cancel: threading.Event | None = None) -> Iterator[Future[PutResult]]:
    """An upload that takes the pages of checkpoint `c` for as long as the context lasts."""
    whole = threading.Event()
    pages = PagesSocket(pod.volumes / "run" / names.PAGES_FILE)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(
            store.put_ranks, "team", "train", "train-a1-g1", {0: pod.image("c", 0)}, growing=lambda: not whole.is_set(),
            below=pod.volumes / "images", pages=pages, cancelled=(cancel or threading.Event()).is_set,
        )  # fmt: skip
        try:
            yield put
        finally:
            whole.set()


def ready(pod: Pod) -> Pod:
    until(lambda: count(pod) > 3, "it counts", pod)
    return pod


def moves(run: Run, pod: Pod, store: Store, put: PutResult) -> None:
    """To another pod, by the store alone."""
    at = count(pod)
    pod.terminate()
    pod.wait_event("terminating")
    pod.sidecar.command("exit")
    assert pod.wait() == 143, pod.log()
    plan = messages.Plan("restore", 2, 1, [0], "127.0.0.1", 29501, 5, "c")
    back = run("back", plan=plan, bring=lambda to: store.fetch_ranks(manifest(put.images), {0: to.image("c", 0)}))
    back.wait_event("restored")
    assert count(back) >= at
    goes_on(back)


# --- the disk ---------------------------------------------------------------------------------------------------------
def test_a_rank_that_is_larger_than_the_pods_disk_leaves_it(run: Run, tmp_path: Path) -> None:
    """48 MiB of memory, and a volume of 4 MiB whose limit leaves 3 MiB."""
    store = Store(f"file://{tmp_path}/store")
    pod = ready(run("pod", disk=4, env={names.ENV_IMAGE_ROOM: str(image_room.RESERVE + 3 * MIB)}))
    event = dump_anywhere(pod, 4)
    assert event.kind == "dump_failed" and "of memory and files" in event.message, "there is no room for files of pages"
    pod.sidecar.command("resume", generation=4)
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dumped", event.message
    assert image_room.used(pod.volumes / "images") < 2 * MIB
    result = put.result(60)
    assert result.bytes > HELD * MIB
    moves(run, pod, store, result)


def test_files_that_travel_need_room_in_a_stream_too(run: Run, tmp_path: Path) -> None:
    pod = ready(run("pod", travels=12, env={names.ENV_IMAGE_ROOM: str(image_room.RESERVE + 12 * MIB)}))
    with uploading(pod, Store(f"file://{tmp_path}/store")) as put:
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dump_failed", event.message
    assert "12 MiB of files that travel" in event.message and "Raise checkpoint_disk" in event.message
    assert isinstance(put.exception(30), StoreError)
    pod.sidecar.command("resume", generation=5)
    goes_on(pod)


# --- who takes the pages ----------------------------------------------------------------------------------------------
def test_a_sidecar_that_stays_silent_fails_the_dump_at_its_deadline(run: Run) -> None:
    """It has accepted nothing: pages wait in the socket until it is full. CRIU must not be killed in the midst."""
    pod = ready(run("pod"))
    with closing(PagesSocket(pod.volumes / "run" / names.PAGES_FILE)):
        began = time.monotonic()
        event = dump_anywhere(pod, 5, stream=True, remaining_s=4)
    assert event.kind == "dump_failed" and time.monotonic() - began < 12
    assert "the sidecar did not take the pages before the deadline" in event.message
    pod.sidecar.command("resume", generation=5)
    for sidecar in ("one", "the next"):  # asks again, and is told what the launcher has said to the one before
        event = dump_anywhere(pod, 6, dump=sidecar)
        assert (event.kind, event.dump) == ("dumped", sidecar), "nothing of CRIU is left in the rank"
    pod.sidecar.command("resume", generation=6)
    goes_on(pod)


def test_a_sidecar_that_is_not_there_fails_the_dump(run: Run) -> None:
    pod = ready(run("pod"))
    event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dump_failed" and "the sidecar does not take the pages" in event.message
    pod.sidecar.command("resume", generation=5)
    goes_on(pod)


def test_a_sidecar_that_dies_without_an_answer_fails_the_dump(run: Run) -> None:
    """All pages have gone out, and nobody has said that they are safe."""
    pod = ready(run("pod"))
    pages = PagesSocket(pod.volumes / "run" / names.PAGES_FILE)

    def swallow() -> None:
        peer, _ = pages.listener.accept()
        with peer:
            got = 0
            while got < HELD * MIB:
                got += len(peer.recv(MIB))

    with closing(pages), ThreadPoolExecutor(1) as pool:
        gone = pool.submit(swallow)
        event = dump_anywhere(pod, 5, stream=True)
        gone.result(10)
    assert event.kind == "dump_failed" and "sidecar" in event.message, event.message
    assert not (pod.image("c", 0) / "streamed.json").exists()
    pod.sidecar.command("resume", generation=5)
    goes_on(pod)


@pytest.mark.parametrize("late", [False, True], ids=["for a while", "for good"])
def test_a_store_that_fails(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """503 at the first packs: for a while the dump waits, for good it fails and the rank goes on."""
    store = Store(f"memory://{tmp_path.name}", patience_s=1.0 if late else 30.0)
    stock, failures = store.backend.fs.pipe_file, iter(range(1 << 30) if late else range(4))

    def pipe(path: str, value: bytes, **options: object) -> object:
        if "/packs/" in path and next(failures, None) is not None:
            raise OSError("503 slow down")
        return stock(path, value, **options)

    monkeypatch.setattr(store.backend.fs, "pipe_file", pipe)
    pod = ready(run("pod"))
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True)
    if not late:
        assert event.kind == "dumped", event.message
        moves(run, pod, store, put.result(60))
        return
    assert "503 slow down" in str(put.exception(30))
    assert event.kind == "dump_failed" and "the sidecar" in event.message
    pod.sidecar.command("resume", generation=5)
    goes_on(pod)


def test_a_slow_store_slows_the_dump_and_loses_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = threading.Event()
    stock = Backend.write

    def write(self: Backend, path: str, *args: Any, **options: Any) -> Any:
        if "/packs/" in path:
            slow.wait(0.7)
        return stock(self, path, *args, **options)

    monkeypatch.setattr(Backend, "write", write)
    store = Store(f"file://{tmp_path}/store", threads=1)
    pod = ready(run("pod"))
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dumped" and event.seconds > 2, "it has waited for the store"
    moves(run, pod, store, put.result(60))


def test_a_launcher_that_is_killed_in_the_midst(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its container ends, and what came of the pages is no checkpoint."""
    store, came, go = Store(f"file://{tmp_path}/store"), threading.Event(), threading.Event()
    stock = Backend.write

    def write(self: Backend, path: str, *args: Any, **options: Any) -> Any:
        if "/packs/" in path:
            came.set()
            assert go.wait(30)
        return stock(self, path, *args, **options)

    monkeypatch.setattr(Backend, "write", write)
    pod = ready(run("pod"))
    cancel = threading.Event()
    with uploading(pod, store, cancel) as put:
        pod.wait_event("started")
        pod.sidecar.command("dump", generation=5, checkpoint_id="c", remaining_s=60, anywhere=True, stream=True)
        assert came.wait(30), pod.log()
        os.kill(pod.launcher_pid(), signal.SIGKILL)
        assert pod.wait() != 0
        go.set()
        cancel.set()  # as the sidecar does when its launcher is gone
    assert isinstance(put.exception(30), StoreError)
    assert store.list_checkpoints("team", "train") == [] and store.uploads("team", "train") == []
