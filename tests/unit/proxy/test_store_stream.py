"""Pages that reach the upload over a socket: they come back as they were sent, and nothing incomplete counts."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_samples import FOLDER, JOB, MIB, NAMESPACE, image, manifest, noise
from waits import LIMIT_S

from singularity_proxy.errors import RestoreRefusedError, StoreError
from singularity_proxy.launcher.errors import DumpError
from singularity_proxy.launcher.snapshot.page_sink import DIRECT, PageSink
from singularity_proxy.protocol import image_room, page_frames
from singularity_proxy.store import PagesSocket, PutResult, Store, intake, locks, pack
from singularity_proxy.store.draft import Draft
from singularity_proxy.store.intake import Arena
from singularity_proxy.store.spill import Spill
from singularity_proxy.store.upload import Upload

NAME = f"{JOB}-a1-g1"
Content = dict[int, bytes]
"""Number of a file of pages -> content."""


class Pod:
    """A launcher that sends pages of its ranks in a thread, beside an upload that takes them."""

    def __init__(self, top: Path, name: str = "pod", arena: Arena | None = None) -> None:
        self.arena = arena
        self.top = top / name
        self.top.mkdir()
        self.path = self.top / "launcher" / "pages.sock"
        self.error: Exception | None = None
        self.over = threading.Event()

    def folder(self, rank: int) -> Path:
        path = self.top / f"rank-{rank}"
        path.mkdir(exist_ok=True)
        return path

    def send(self, ranks: dict[int, Content], chance: random.Random) -> None:
        """Everything, in pieces of any size."""
        for rank, files in ranks.items():
            sink = PageSink(self.path, rank, time.monotonic() + 60)
            for number, content in files.items():
                sink.open(number)
                at = 0
                while at < len(content):
                    size = chance.choice([1, 16, 17, 300]) * 4096
                    sink.write(number, memoryview(content)[at : at + size])
                    at += size
            sink.end(self.folder(rank))
            sink.close()

    def put(
        self,
        store: Store,
        ranks: Sequence[int],
        sender: Callable[[], object],
        part: tuple[int, int] = (0, 1),
        name: str = NAME,
        spill: int = 1 << 40,
    ) -> PutResult:
        def run() -> None:
            try:
                sender()
            except Exception as error:
                self.error = error
            finally:
                self.over.set()

        folders = {rank: self.folder(rank) for rank in ranks}
        for folder in folders.values():
            (folder / "core-1.img").write_bytes(b"core of a process")
        pages, thread = PagesSocket(self.path, spill, self.arena), threading.Thread(target=run)
        self.over.clear()
        thread.start()
        try:
            growing = lambda: not self.over.is_set()  # noqa: E731
            return store.put_ranks(
                NAMESPACE, JOB, name, folders, part, growing=growing, below=self.top, pages=pages
            )  # fmt: skip
        finally:
            thread.join(120)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store", patience_s=20)


@pytest.fixture(params=[0, 8 * MIB], ids=["as it comes", "the beginning waits in memory"])
def pod(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pod]:
    made = Pod(tmp_path, arena=Arena(request.param) if request.param else None)
    yield made
    made.over.set()


def pages(seed: int, mib: int) -> bytes:
    """Of a process: content, zeros, content again."""
    return noise(seed, mib * MIB) + bytes(3 * MIB) + noise(seed + 1, 5 * 4096)


def check(store: Store, result: PutResult, wanted: dict[int, Content], back: Path) -> None:
    made = manifest(result.images)
    store.fetch_ranks(made, {rank: back / str(rank) for rank in wanted})
    for rank, files in wanted.items():
        for number, content in files.items():
            assert (back / str(rank) / page_frames.file_name(number)).read_bytes() == content
        assert (back / str(rank) / "core-1.img").read_bytes() == b"core of a process"
    assert store.verify(made) == []


@pytest.mark.parametrize("seed", range(3))
def test_what_was_sent_comes_back(store: Store, pod: Pod, tmp_path: Path, seed: int) -> None:
    sent = {rank: {65537: pages(seed + rank, 9), 65538: b"", 65539: pages(7, 1)} for rank in (0, 1)}
    result = pod.put(store, [0, 1], lambda: pod.send(sent, random.Random(seed)))
    assert pod.error is None
    check(store, result, sent, tmp_path / "back")
    assert result.bytes > 2 * 13 * MIB and result.bytes_ahead > 17 * MIB
    assert not any(path.stat().st_size for path in pod.top.rglob("pages-*.img")), "nothing of it was on the disk"


@pytest.mark.parametrize("memory", [5 * MIB, 24 * MIB, 64 * MIB], ids=["less than one rank", "one rank", "everything"])
def test_what_memory_takes_in_waits_for_no_store(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks have trained on before the store has answered once; what does not fit waits for it."""
    store = Store(f"file://{tmp_path}/store")
    reached, sent_all = threading.Event(), threading.Event()
    announce = locks.announce

    def slow(*args: Any) -> Any:
        if memory > 32 * MIB:
            assert sent_all.wait(120), "the ranks wait for the store"
        reached.set()
        return announce(*args)

    monkeypatch.setattr(locks, "announce", slow)
    pod = Pod(tmp_path, arena=Arena(memory))
    pod.arena.warm()
    sent = {rank: {65537: pages(rank, 9), 65538: b"", 65539: pages(7, 1)} for rank in (0, 1)}

    def sender() -> None:
        pod.send(sent, random.Random(memory))
        assert reached.is_set() == (memory < 32 * MIB)
        sent_all.set()

    for number in range(2):  # the same memory again
        sent_all.clear()
        reached.clear()
        name = f"{JOB}-a1-g{number + 1}"
        result = pod.put(store, [0, 1], sender, name=name)
        assert pod.error is None
        check(store, result, sent, tmp_path / f"back-{number}")
    assert result.bytes_stored < MIB


def test_known_content_is_not_stored_again_and_chunks_are_those_of_files(
    store: Store, pod: Pod, tmp_path: Path
) -> None:
    content = pages(3, 20)
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "pages-1.img").write_bytes(content)
    store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g0", {0: folder})
    sent = {0: {65537: content}}
    result = pod.put(store, [0], lambda: pod.send(sent, random.Random(1)))
    assert result.bytes_stored < 10_000 and result.bytes_ahead < MIB
    check(store, result, sent, tmp_path / "back")


def test_pods_of_one_state_store_it_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another pod stores first waits on the disk, and is dropped where that pod has stored it."""
    hand_over = Upload.store

    def at_once(upload: Upload, draft: Draft, counts: bool = True) -> None:
        hand_over(upload, draft, counts)
        for future in upload._pending:
            future.result()

    monkeypatch.setattr(Upload, "store", at_once)  # how many packs are under way when the other pod looks is no chance
    content = {65537: noise(5, 48 * MIB)}
    first, second = Pod(tmp_path, "first"), Pod(tmp_path, "second")
    results: list[PutResult] = []

    def later() -> None:
        first.send({0: content}, random.Random(0))
        sent = lambda: second.send({1: content}, random.Random(1))  # noqa: E731
        results.append(second.put(store, [1], sent, part=(1, 2)))

    results.append(first.put(store, [0], later, part=(0, 2)))
    assert first.error is None and second.error is None
    under_way = pack.CONTENT_SIZE  # the first one's last pack, if the second one has looked before it was written
    assert sum(result.bytes_stored for result in results) < 1.05 * 48 * MIB + under_way
    check(store, results[0], {1: content}, tmp_path / "back-1")
    check(store, results[1], {0: content}, tmp_path / "back-0")


def test_packs_that_the_last_checkpoint_hardly_used_are_given_up(store: Store, pod: Pod, tmp_path: Path) -> None:
    """Their content streams by once: it is stored anew, and the old pack can go with its checkpoint."""
    old = {65537: noise(1, 8 * MIB)}
    made = [pod.put(store, [0], lambda: pod.send({0: old}, random.Random(0)), name=f"{JOB}-a1-g1")]
    store.write_manifest(manifest(made[0].images, 1))
    little = {65537: old[65537][: MIB // 4] + noise(2, 8 * MIB)}
    for generation in (2, 3):
        name = f"{JOB}-a1-g{generation}"
        made.append(pod.put(store, [0], lambda: pod.send({0: little}, random.Random(0)), name=name))
        store.write_manifest(manifest(made[-1].images, generation))
        check(store, made[-1], {0: little}, tmp_path / name)
    first = {stored.name for stored in made[0].images[0].packs if stored.size > MIB}
    used = [bool(first & {stored.name for stored in result.images[0].packs}) for result in made]
    assert used == [True, True, False]
    assert made[2].bytes_stored < MIB


# --- faults -----------------------------------------------------------------------------------------------------------
def raw(pod: Pod, data: bytes) -> bytes:
    """Send it as it is, hang up; the answer."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(pod.path))
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        return peer.recv(10)


BEGIN = page_frames.WORDS.pack(page_frames.MAGIC, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        BEGIN,
        BEGIN + page_frames.WORDS.pack(65537, 4096) + bytes(4095),
        BEGIN + page_frames.WORDS.pack(65537, page_frames.LONGEST + 1) + bytes(9000),
        BEGIN + b"".join(page_frames.WORDS.pack(n, 64) + bytes(64) for n in (1, 2, 1)) + page_frames.END,
    ],
    ids=["nothing", "another protocol", "no end", "cut", "too long a frame", "a file twice"],
)
def test_a_broken_stream_is_not_taken_and_no_checkpoint_comes_of_it(store: Store, pod: Pod, data: bytes) -> None:
    answers: list[bytes] = []

    def sender() -> None:
        with contextlib.suppress(OSError):
            answers.append(raw(pod, data))
        (pod.folder(0) / page_frames.LIST).write_text(json.dumps({"pages-65537.img": 4096}))

    with pytest.raises(StoreError, match="have to be dumped again"):
        pod.put(store, [0], sender)
    assert not any(answers), "not taken"


def test_pages_that_went_to_an_upload_before_this_one(store: Store, pod: Pod) -> None:
    """A sidecar that was restarted finds images without their pages."""
    pod.put(store, [0], lambda: pod.send({0: {65537: pages(1, 5)}}, random.Random(0)))
    with pytest.raises(StoreError, match="have to be dumped again"):
        store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g2", {0: pod.folder(0)})


def test_a_stream_without_a_dump_that_knows_of_it(store: Store, pod: Pod) -> None:
    def sender() -> None:
        pod.send({0: {65537: pages(1, 5)}}, random.Random(0))
        (pod.folder(0) / page_frames.LIST).unlink()

    with pytest.raises(StoreError, match="its dump does not know of"):
        pod.put(store, [0], sender)


def test_a_restored_image_is_complete_with_its_files(store: Store, pod: Pod, tmp_path: Path) -> None:
    sent = {0: {65537: pages(1, 5)}}
    result = pod.put(store, [0], lambda: pod.send(sent, random.Random(0)))
    check(store, result, sent, tmp_path / "back")
    again = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g2", {0: tmp_path / "back" / "0"})
    check(store, again, sent, tmp_path / "twice")


def test_a_restore_that_the_volume_has_no_room_for_fetches_nothing(store: Store, pod: Pod, tmp_path: Path) -> None:
    """Holes take no disk: 6 MiB of content are looked at, of 26 MiB that the files have."""
    content = {65537: noise(1, 3 * MIB) + bytes(20 * MIB) + noise(2, 3 * MIB)}
    made = manifest(pod.put(store, [0], lambda: pod.send({0: content}, random.Random(0))).images)
    for limited, kind in ((True, RestoreRefusedError), (False, StoreError)):
        less = image_room.Room(5 * MIB, "volume may hold 5 MiB", "Raise checkpoint_disk", limited)
        with pytest.raises(kind, match=r"take 6 MiB, and volume may hold 5 MiB\. Raise checkpoint_disk"):
            store.fetch_ranks(made, {0: tmp_path / "less"}, room=less)
        assert image_room.used(tmp_path / "less") == 0
    enough = image_room.Room(6 * MIB + MIB // 4, "", "", limited=True)
    store.fetch_ranks(made, {0: tmp_path / "back"}, room=enough)
    assert (tmp_path / "back" / "pages-65537.img").read_bytes() == content[65537]
    assert image_room.used(tmp_path / "back") < 6.1 * MIB


def test_an_upload_that_fails_lets_the_launcher_know(pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRIU waits for its page server, and that for the sidecar: it must not wait for ever."""
    store = Store(f"memory://{tmp_path.name}", patience_s=0.2)
    stock = store.backend.files.fs.pipe_file

    def pipe(path: str, value: bytes, **options: object) -> object:
        if "/packs/" in path:
            raise OSError("503 slow down")
        return stock(path, value, **options)

    monkeypatch.setattr(store.backend.files.fs, "pipe_file", pipe)
    with pytest.raises(StoreError, match="503 slow down"):
        pod.put(store, [0], lambda: pod.send({0: {65537: noise(1, 200 * MIB)}}, random.Random(0)))
    assert isinstance(pod.error, (OSError, DumpError)), "its dump fails"


def test_a_store_whose_disk_is_full_fails_the_dump_at_once_and_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    """The launcher is told in the midst of its dump. Once there is space, the same pages are taken."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs root: mounts a small file system")
    try:
        store = Store(f"file://{disk}/store")
        earlier, kept = {0: {65537: noise(7, 5 * MIB)}}, Pod(tmp_path, "kept")
        made = kept.put(store, [0], lambda: kept.send(earlier, random.Random(0)))
        store.write_manifest(manifest(made.images, 1))
        files = {p for p in disk.rglob("*") if p.is_file() and p.parent.name != "packs"}

        sent, pod = {0: {65537: noise(1, 100 * MIB)}}, Pod(tmp_path)
        with pytest.raises(StoreError, match="the disk is full") as caught:
            pod.put(store, [0], lambda: pod.send(sent, random.Random(0)), name=f"{JOB}-a1-g2")
        assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENOSPC
        assert isinstance(pod.error, (OSError, DumpError)), "its dump fails"
        assert store.backend.retries == 0, "waiting would not help"
        left = [p for p in disk.rglob("*") if p.is_file()]
        assert {p for p in left if p.parent.name != "packs"} == files, "no manifest, no lock"
        assert not [p for p in left if ".tmp-" in p.name], "nothing half written"
        best, skipped = store.latest_valid(NAMESPACE, JOB)
        assert best is not None and (best.id, skipped) == (NAME, []) and store.verify(best) == []

        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        again = Pod(tmp_path, "again")
        result = again.put(store, [0], lambda: again.send(sent, random.Random(0)), name=f"{JOB}-a1-g2")
        assert again.error is None
        check(store, result, sent, tmp_path / "back")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_upload_that_is_cancelled_lets_the_launcher_know(store: Store, pod: Pod) -> None:
    cancel = threading.Event()

    def sender() -> None:
        sink = PageSink(pod.path, 0, time.monotonic() + 60)
        sink.open(1)
        try:
            while True:
                sink.write(1, memoryview(bytes(DIRECT)))
                cancel.set()
        finally:
            sink.close()

    pages_socket, errors = PagesSocket(pod.path), []

    def run() -> None:
        try:
            sender()
        except DumpError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    with pytest.raises(StoreError, match="cancelled"):
        store.put_ranks(
            NAMESPACE, JOB, NAME, {0: pod.folder(0)}, cancelled=cancel.is_set, growing=lambda: True, pages=pages_socket
        )
    thread.join(120)
    assert not thread.is_alive() and errors
    assert sorted(store.backend.find(f"{FOLDER}/locks")) == []


@pytest.mark.parametrize("limit", [0, 9 * MIB, 1 << 40], ids=["nothing may wait", "a limit", "a full disk"])
def test_a_disk_without_room_for_what_waits(tmp_path: Path, store: Store, limit: int) -> None:
    """What another pod stores first is stored here, too, and the checkpoint succeeds."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("needs root: mounts a small file system")
    try:
        pod = Pod(small)
        sent = {0: {65537: noise(1, 60 * MIB)}}
        looks: list[int] = []

        def sender() -> None:
            pod.send(sent, random.Random(0))
            disk = os.statvfs(small)
            looks.append((disk.f_blocks - disk.f_bfree) * disk.f_frsize)

        result = pod.put(store, [0], sender, part=(0, 2), spill=limit)
        assert pod.error is None and result.bytes_stored > 60 * MIB
        assert max(looks) < min(limit, 10 * MIB) + MIB
        check(store, result, sent, tmp_path / "back")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_launcher_that_stands_still_in_the_midst_of_a_frame(
    store: Store, pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "PATIENCE_S", 0.2)

    def sender() -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(pod.path))
            peer.sendall(BEGIN + page_frames.WORDS.pack(65537, 4096) + bytes(100))
            assert peer.recv(1) == b"", "given up"
        (pod.folder(0) / page_frames.LIST).write_text(json.dumps({"pages-65537.img": 4096}))

    with pytest.raises(StoreError, match="have to be dumped again"):
        pod.put(store, [0], sender)


@pytest.mark.parametrize("taken", [0, 1, 20], ids=["nothing", "a part", "all, without an answer"])
def test_a_sidecar_that_falls_silent_is_left_at_the_deadline(tmp_path: Path, taken: int) -> None:
    """Whether it accepts nothing, stops in the midst, or does not answer."""
    content, pages = noise(1, 20 * MIB), PagesSocket(tmp_path / "run" / "pages.sock")
    folder, over = tmp_path / "rank-0", threading.Event()
    folder.mkdir()

    def take() -> None:
        peer, _ = pages.listener.accept()
        with peer:
            left = taken * MIB
            while left > 0 and (got := len(peer.recv(min(left, MIB)))):
                left -= got
            over.wait(LIMIT_S)

    thread = threading.Thread(target=take if taken else over.wait)
    thread.start()
    sink = PageSink(tmp_path / "run" / "pages.sock", 0, time.monotonic() + 1.5)
    try:
        with pytest.raises(DumpError, match="did not take the pages before the deadline: is the store slow"):
            sink.open(65537)
            sink.write(65537, memoryview(content))
            sink.end(folder)
        assert not over.is_set()
        assert not (folder / page_frames.LIST).exists()
    finally:
        over.set()
        sink.close()
        pages.close()
        thread.join(120)


@pytest.mark.parametrize("text", ["[]", "{", '{"pages-1.img": "4096"}', '{"pages-1.img": null}'])
def test_a_list_that_is_none(store: Store, tmp_path: Path, text: str) -> None:
    folder = image(tmp_path / "image", size=MIB)
    (folder / page_frames.LIST).write_text(text)
    with pytest.raises(StoreError):
        store.put_ranks(NAMESPACE, JOB, NAME, {0: folder})


def test_the_words_of_a_frame() -> None:
    assert page_frames.WORDS.size == 8 and struct.pack("<II", 0, 0) == page_frames.END


# --- what waits for another pod ---------------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(64, 16 << 10)), max_size=200), st.integers(0, 1 << 20))
def test_what_waits_comes_back_whatever_the_disk_takes(
    tmp_path_factory: pytest.TempPathFactory, given_chunks: list[tuple[int, int]], most: int
) -> None:
    waiting, kept = Spill(tmp_path_factory.mktemp("spill"), most), {}
    for number, (seed, size) in enumerate(given_chunks):
        if waiting.full:
            break
        key, chunk = struct.pack(">I", number), (noise(seed, 64) * (size // 64 + 1))[:size]
        kept[key] = chunk
        waiting.add(key, memoryview(chunk))
    waiting.flush()
    back = {}
    for block in waiting.blocks:
        content, at = bytes(waiting.read(block)), 0
        for key, size in zip(block.keys, block.sizes, strict=True):
            back[key], at = content[at : at + size], at + size
        assert at == len(content)
    assert back == kept
    assert sum(block.content is not None for block in waiting.blocks) <= 1, "memory stays flat"
    assert sum(block.size for block in waiting.blocks if block.content is None) <= most
    waiting.close()


def test_what_waits_and_was_damaged_fails_the_upload(tmp_path: Path) -> None:
    waiting = Spill(tmp_path, 1 << 30)
    waiting.add(b"key", memoryview(noise(1, 9000)))
    waiting.flush()
    waiting.blocks[0].size -= 1
    with pytest.raises(StoreError, match="cannot read back what waited"):
        waiting.read(waiting.blocks[0])
