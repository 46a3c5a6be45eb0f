"""Dumps whose pages go to an upload, with real CRIU: they need little disk, and no fault costs a rank anything."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pod_moves import dump_anywhere
from streamed_pod import HELD, MIB, Start, goes_on, moves, ready, uploading

from singularity_proxy.errors import StoreError
from singularity_proxy.protocol import image_room, names
from singularity_proxy.store import PagesSocket, Store
from singularity_proxy.store.backend import Backend

pytestmark = pytest.mark.criu


# --- the disk ---------------------------------------------------------------------------------------------------------
def test_a_rank_that_is_larger_than_the_pods_disk_leaves_it(start_holder: Start, tmp_path: Path) -> None:
    """48 MiB of memory, and a volume of 4 MiB whose limit leaves 3 MiB."""
    store = Store(f"file://{tmp_path}/store")
    pod = ready(start_holder("pod", disk=4, env={names.ENV_IMAGE_ROOM: str(image_room.RESERVE + 3 * MIB)}))
    event = dump_anywhere(pod, 4)
    assert event.kind == "dump_failed" and "of memory and files" in event.message, "there is no room for files of pages"
    pod.sidecar.command("resume", generation=4)
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dumped", event.message
    assert image_room.used(pod.volumes / "images") < 2 * MIB
    result = put.result(120)
    assert result.bytes > HELD * MIB
    moves(start_holder, pod, store, result)


def test_files_that_travel_need_room_in_a_stream_too(start_holder: Start, tmp_path: Path) -> None:
    pod = ready(start_holder("pod", travels=12, env={names.ENV_IMAGE_ROOM: str(image_room.RESERVE + 12 * MIB)}))
    with uploading(pod, Store(f"file://{tmp_path}/store")) as put:
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dump_failed", event.message
    assert "12 MiB of files that travel" in event.message and "Raise checkpoint_disk" in event.message
    assert isinstance(put.exception(30), StoreError)
    pod.sidecar.command("resume", generation=5)
    goes_on(pod)


# --- who takes the pages ----------------------------------------------------------------------------------------------
def test_a_sidecar_that_stays_silent_fails_the_dump_at_its_deadline(start_holder: Start) -> None:
    """It has accepted nothing: pages wait in the socket until it is full. CRIU must not be killed in the midst."""
    pod = ready(start_holder("pod"))
    with closing(PagesSocket(pod.volumes / "run" / names.PAGES_FILE)):
        event = dump_anywhere(pod, 5, stream=True, remaining_s=4)
    assert event.kind == "dump_failed"
    assert "the sidecar did not take the pages before the deadline" in event.message
    pod.sidecar.command("resume", generation=5)
    for sidecar in ("one", "the next"):  # asks again, and is told what the launcher has said to the one before
        event = dump_anywhere(pod, 6, dump=sidecar)
        assert (event.kind, event.dump) == ("dumped", sidecar), "nothing of CRIU is left in the rank"
    pod.sidecar.command("resume", generation=6)
    goes_on(pod)


def test_a_sidecar_that_is_not_there_fails_the_dump(start_holder: Start) -> None:
    pod = ready(start_holder("pod"))
    event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dump_failed" and "the sidecar does not take the pages" in event.message
    pod.sidecar.command("resume", generation=5)
    goes_on(pod)


def test_a_sidecar_that_dies_without_an_answer_fails_the_dump(start_holder: Start) -> None:
    """All pages have gone out, and nobody has said that they are safe."""
    pod = ready(start_holder("pod"))
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
        gone.result(120)
    assert event.kind == "dump_failed" and "sidecar" in event.message, event.message
    assert not (pod.image("c", 0) / "streamed.json").exists()
    pod.sidecar.command("resume", generation=5)
    goes_on(pod)


@pytest.mark.parametrize("late", [False, True], ids=["for a while", "for good"])
def test_a_store_that_fails(start_holder: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """503 at the first packs: for a while the dump waits, for good it fails and the rank goes on."""
    store = Store(f"memory://{tmp_path.name}", patience_s=1.0 if late else 30.0)
    stock, failures = store.backend.files.fs.pipe_file, iter(range(1 << 30) if late else range(4))

    def pipe(path: str, value: bytes, **options: object) -> object:
        if "/packs/" in path and next(failures, None) is not None:
            raise OSError("503 slow down")
        return stock(path, value, **options)

    monkeypatch.setattr(store.backend.files.fs, "pipe_file", pipe)
    pod = ready(start_holder("pod"))
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True)
    if not late:
        assert event.kind == "dumped", event.message
        moves(start_holder, pod, store, put.result(120))
        return
    assert "503 slow down" in str(put.exception(30))
    assert event.kind == "dump_failed" and "the sidecar" in event.message
    pod.sidecar.command("resume", generation=5)
    goes_on(pod)


def test_a_slow_store_slows_the_dump_and_loses_nothing(
    start_holder: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = threading.Event()
    stock = Backend.write

    def write(self: Backend, path: str, *args: Any, **options: Any) -> Any:
        if "/packs/" in path:
            slow.wait(0.7)
        return stock(self, path, *args, **options)

    monkeypatch.setattr(Backend, "write", write)
    store = Store(f"file://{tmp_path}/store", threads=1)
    pod = ready(start_holder("pod"))
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dumped" and event.seconds > 2, "it has waited for the store"
    moves(start_holder, pod, store, put.result(120))


def test_a_launcher_that_is_killed_in_the_midst(
    start_holder: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its container ends, and what came of the pages is no checkpoint."""
    store, came, go = Store(f"file://{tmp_path}/store"), threading.Event(), threading.Event()
    stock = Backend.write

    def write(self: Backend, path: str, *args: Any, **options: Any) -> Any:
        if "/packs/" in path:
            came.set()
            assert go.wait(120)
        return stock(self, path, *args, **options)

    monkeypatch.setattr(Backend, "write", write)
    pod = ready(start_holder("pod"))
    cancel = threading.Event()
    with uploading(pod, store, cancel) as put:
        pod.wait_event("started")
        pod.sidecar.command("dump", generation=5, checkpoint_id="c", remaining_s=60, anywhere=True, stream=True)
        assert came.wait(120), pod.log()
        os.kill(pod.launcher_pid(), signal.SIGKILL)
        assert pod.wait() != 0
        go.set()
        cancel.set()  # as the sidecar does when its launcher is gone
    assert isinstance(put.exception(30), StoreError)
    assert store.list_checkpoints("team", "train") == [] and store.uploads("team", "train") == []
