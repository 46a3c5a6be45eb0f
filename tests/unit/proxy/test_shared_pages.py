"""What forked processes share with their parents: written once by a dump, shared again after a restore."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import waits
from hypothesis import given, settings
from hypothesis import strategies as st
from image_reader import Memory, restored
from pod_harness import Pod
from pod_moves import dump_anywhere, until

from singularity_proxy.launcher.errors import DumpError, RestoreError
from singularity_proxy.launcher.snapshot import page_images, page_server, protobuf, shared_pages
from singularity_proxy.launcher.snapshot.page_disk import PageDisk
from singularity_proxy.launcher.snapshot.page_stream import (
    ADD_F,
    CLOSE,
    HEADER,
    OPEN2,
    PAGE,
    PRESENT,
    PROCESS,
    SHARED_MEMORY,
)
from singularity_proxy.launcher.snapshot.protobuf import BYTES, VARINT, Field
from singularity_proxy.launcher.snapshot.relative_memory import RelativeMemory
from singularity_proxy.protocol import messages, names
from singularity_proxy.protocol.manifest import Manifest, Requirements
from singularity_proxy.store import PagesSocket, Store

Make = Callable[..., Pod]


# --- CRIU's side of the protocol --------------------------------------------------------------------------------------
def sent(processes: Sequence[tuple[int, Memory]], kind: int = PROCESS) -> bytes:
    """What CRIU sends of these processes: neighbouring pages in one entry."""
    out = b""
    for number, memory in processes:
        out += HEADER.pack(OPEN2, 0, 0, number << 8 | kind)
        pages = sorted(memory)
        while pages:
            run = [pages.pop(0)]
            while pages and pages[0] == run[-1] + 1:
                run.append(pages.pop(0))
            out += HEADER.pack(ADD_F | PRESENT << 16, len(run), run[0] * PAGE, number << 8 | kind)
            out += b"".join(memory[page] for page in run)
    return out


def memory_of(processes: Sequence[tuple[int, Memory]]) -> page_server.Memory:
    """Opens their memory: a file with each page at its address, as /proc/PID/mem shows it."""
    found = dict(processes)

    def opened(pid: int) -> RelativeMemory | None:
        if pid not in found:
            return None
        memory = os.memfd_create("memory")
        for number, content in found[pid].items():
            os.pwrite(memory, content, number * PAGE)
        return RelativeMemory(memory)

    return opened


def receive(
    folder: Path, data: bytes, bases: dict[int, list[int]], processes: Sequence[tuple[int, Memory]] = ()
) -> bytes:
    """Runs the server on `data`, beside processes with this memory. Returns what it answered."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=send, args=(ours, data))
        sender.start()
        disk = PageDisk(folder)
        try:
            family = page_server.Family(bases, memory_of(processes), page_server.hidden)
            page_server.receive(theirs, folder, family, disk)
        finally:
            disk.close()
            theirs.shutdown(socket.SHUT_RDWR)
            sender.join(120)
        answered = b""
        while part := ours.recv(100):
            answered += part
        return answered


def send(peer: socket.socket, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # of a server that has given up
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)


def closed(processes: Sequence[tuple[int, Memory]]) -> bytes:
    return sent(processes) + HEADER.pack(CLOSE, 0, 0, 0)


def page(number: int) -> bytes:
    return random.Random(number).randbytes(PAGE)


memories = st.dictionaries(st.integers(1, 60), st.integers(0, 3).map(page), max_size=40)


@settings(max_examples=120, deadline=None)
@given(st.lists(memories, min_size=1, max_size=5), st.data())
def test_any_family_has_the_memory_it_had(
    tmp_path_factory: pytest.TempPathFactory, found: list[Memory], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("images")
    pids = range(10, 10 + len(found))
    bases = {pid: data.draw(st.lists(st.integers(9, pid - 1), max_size=2), label=f"bases of {pid}") for pid in pids}
    processes = list(zip(pids, found, strict=True))
    answered = receive(folder, closed(processes), bases, processes)
    assert answered == b"\0" * len(found) + struct.pack("=i", 0)
    shared_pages.prepare(folder)
    shared_pages.prepare(folder)  # the container may be started again
    for pid, memory in processes:
        assert restored(folder, f"pagemap-{pid}.img") == memory


def test_a_page_is_written_once_for_three_generations(tmp_path: Path) -> None:
    memory = {number: page(number) for number in range(300)}
    child = {**memory, 7: page(1000), 400: page(1001)}
    grandchild = {**child, 8: page(1002)}
    stranger = dict(memory)
    family = [(10, memory), (11, child), (12, grandchild), (13, stranger)]
    receive(tmp_path, closed(family), {11: [10], 12: [11], 13: [1]}, family)
    sizes = {p.name: p.stat().st_size // PAGE for p in tmp_path.glob("pages-*.img")}
    assert [sizes[f"pages-{page_images.FIRST_ID + i}.img"] for i in range(4)] == [300, 2, 1, 300]
    assert json.loads((tmp_path / page_images.SHARED).read_text()) == {"11": 10, "12": 11}
    shared_pages.prepare(tmp_path)
    for pid, wanted in family:
        assert restored(tmp_path, f"pagemap-{pid}.img") == wanted


@pytest.mark.parametrize("lost", [range(300), range(100, 101), range(299, 300)], ids=["all", "a page", "the last"])
def test_memory_that_cannot_be_read_is_written_twice_and_not_believed(tmp_path: Path, lost: range) -> None:
    """A base that nobody may read, or whose memory has a hole meanwhile: what differs is written."""
    memory = {number: page(number) for number in range(300)}
    there = {number: content for number, content in memory.items() if number not in lost}
    receive(tmp_path, closed([(10, memory), (11, memory)]), {11: [10]}, [(10, there)] if there else [])
    size = (tmp_path / f"pages-{page_images.FIRST_ID + 1}.img").stat().st_size // PAGE
    assert size >= len(lost)
    shared_pages.prepare(tmp_path)
    assert restored(tmp_path, "pagemap-11.img") == memory


def test_shared_memory_is_nobodys_child(tmp_path: Path) -> None:
    memory = {1: page(1)}
    data = sent([(10, memory)]) + sent([(10, memory)], SHARED_MEMORY) + HEADER.pack(CLOSE, 0, 0, 0)
    receive(tmp_path, data, {10: [10]})
    assert restored(tmp_path, "pagemap-shmem-10.img") == memory


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "closed the connection"),
        (closed([(10, {1: page(1)})])[:-40], "closed the connection"),
        (HEADER.pack(99, 0, 0, 0), "no command of its page server"),
        (HEADER.pack(ADD_F | PRESENT << 16, 1, PAGE, 0) + page(1), "pages of no image"),
        (HEADER.pack(ADD_F | PRESENT << 16, 1 << 62, PAGE, 0), "no command of its page server"),
    ],
    ids=["nothing", "cut off", "unknown", "no image", "too many pages"],
)
def test_a_broken_stream_is_never_accepted(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(DumpError, match=why):
        receive(tmp_path, data, {})


@pytest.mark.criu
def test_a_disk_that_fills_up_ends_the_server_and_nothing_is_accepted(tmp_path: Path) -> None:
    memory = {number: page(number) for number in range(600)}
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True)
    try:
        with pytest.raises(OSError, match="No space left on device"):
            receive(tmp_path, closed([(10, memory)]), {})
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    "text", ['{"11"', "[]", '{"11": "10"}', '{"x": 1}', '{"11": 11}', '{"11": 99}', '{"11": true}']
)
def test_a_damaged_family_is_refused_in_words(tmp_path: Path, text: str) -> None:
    family = [(10, {1: page(1)}), (11, {1: page(1)})]
    receive(tmp_path, closed(family), {11: [10]}, family)
    (tmp_path / page_images.SHARED).write_text(text)
    with pytest.raises(RestoreError):
        shared_pages.prepare(tmp_path)


RELATIVES = """
import os, subprocess, sys, time
forked = [os.fork() or time.sleep(60) for _ in range(2)]
other = subprocess.Popen(["sleep", "60"])
print(os.getpid(), *forked, other.pid, flush=True)
sys.stdin.read()
for pid in [*forked, other.pid]:
    os.kill(pid, 9)
"""


def test_relatives_are_those_that_were_forked_and_no_program_of_its_own() -> None:
    with subprocess.Popen([sys.executable, "-c", RELATIVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            parent, first, second, other = map(int, process.stdout.readline().split())
            comm = Path(f"/proc/{other}/comm")
            waits.until(lambda: comm.read_text().strip() == "sleep", "it has become another program")
            found = page_server.bases([second, other, first, parent])
        finally:
            process.stdin.close()
    assert found == {parent: [], first: [parent], second: [first, parent], other: []}


# --- mappings ---------------------------------------------------------------------------------------------------------
def mapping(start: int, end: int, status: int = 1 << 9, flags: int = 0) -> Field:
    parts = [(1, start), (2, end), (3, 0), (4, 0), (5, 3), (6, flags), (7, status), (8, 2**64 - 1)]
    return Field(14, BYTES, protobuf.encode(Field(number, VARINT, value) for number, value in parts))


def mappings(path: Path) -> list[tuple[int, int]]:
    [entry] = protobuf.messages(path.read_bytes(), path.read_bytes()[:8])
    found = [
        {f.number: f.value for f in protobuf.fields(bytes(f.value))} for f in protobuf.fields(entry) if f.number == 14
    ]  # type: ignore[arg-type]
    return [(int(m[1]), int(m[2])) for m in found]


def test_private_memory_is_cut_where_any_of_the_family_begins_or_ends(tmp_path: Path) -> None:
    begin = protobuf.magic(0x57492820)
    grown = [
        Field(1, VARINT, 7),
        mapping(0x1000, 0x9000),
        mapping(0xA000, 0xF000, status=1),
        mapping(0xF000, 0x20000, flags=0x100),
    ]
    small = [Field(1, VARINT, 8), mapping(0x1000, 0x5000), mapping(0xB000, 0xC000)]
    for number, entry in ((10, grown), (11, small)):
        (tmp_path / f"mm-{number}.img").write_bytes(protobuf.image(begin, [protobuf.encode(entry)]))
    assert shared_pages.split(tmp_path) == 1
    assert mappings(tmp_path / "mm-10.img") == [(0x1000, 0x5000), (0x5000, 0x9000), (0xA000, 0xF000), (0xF000, 0x20000)]
    assert mappings(tmp_path / "mm-11.img") == [(0x1000, 0x5000), (0xB000, 0xC000)]
    assert shared_pages.split(tmp_path) == 0


# --- real processes ---------------------------------------------------------------------------------------------------
MIB = 1 << 20
FAMILY = """
import hashlib, os, sys, time
def work(name):
    n = 0
    own = bytearray(1 << 20)
    while not os.path.exists("end"):
        n += 1
        own[n % len(own)] = n % 251
        with open(name + ".n", "w") as out:
            out.write(str(n))
        time.sleep(0.01)
    with open(name + ".sum", "w") as out:
        out.write(hashlib.sha256(large).hexdigest())
large = bytearray(os.urandom(48 << 20))
if not os.path.exists("large.sum"):
    with open("large.sum", "w") as out:
        out.write(hashlib.sha256(large).hexdigest())
heap = [bytes(5000) for _ in range(1000)]
children = []
for child in range(4):
    pid = os.fork()
    if not pid:
        if child == 3 and not os.fork():
            work("grandchild")
            os._exit(0)
        work(f"child-{child}")
        os._exit(0)
    children.append(pid)
heap += [bytes(5000) for _ in range(2000)]
work("parent")
for pid in children:
    os.waitpid(pid, 0)
"""
NAMES = ["parent", "child-0", "child-1", "child-2", "child-3", "grandchild"]


def fresh() -> messages.Plan:
    return messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)


def again(generation: int) -> messages.Plan:
    return messages.Plan("restore", generation, 1, [0], "127.0.0.1", 29501, generation, "c")


@pytest.fixture
def run(make_pod: Make, rootfs: Path, criu_bundle: Path) -> Iterator[Callable[..., Pod]]:
    def make(name: str, plan: messages.Plan, source: Pod | Callable[[Pod], None] | None = None) -> Pod:
        command = ["python3", "family.py"]
        pod = make_pod(name, rootfs=rootfs, torch=None, plan=plan, command=command, criu=criu_bundle)
        (pod.volumes / "source/family.py").write_text(FAMILY)
        if isinstance(source, Pod):
            pod.bring(source, "c", 0)
        elif source is not None:
            source(pod)
        return pod.start()

    yield make


def counts(pod: Pod) -> list[int]:
    paths = [pod.work(0) / f"cwd/{name}.n" for name in NAMES]
    return [int(path.read_text() or 0) if path.exists() else 0 for path in paths]


@pytest.mark.criu
def test_a_family_moves_with_its_sharing(run: Callable[..., Pod]) -> None:
    """Three moves: as much memory as at first, one copy of what is shared in each image, and the bits."""
    pod = run("pod-1", fresh())
    until(lambda: min(counts(pod)) > 3, "all work", pod)
    first = pod.ranks_mib()
    assert 48 < first < 130, "the family shares its memory at first"
    for generation in (2, 3, 4):
        assert dump_anywhere(pod, generation).kind == "dumped", pod.log()
        images = pod.image("c", 0)
        size = sum(path.stat().st_size for path in images.glob("pages-*.img"))
        assert size < 110 * MIB, f"{size >> 20} MiB: of six processes with 48 MiB each, one copy is enough"
        at = counts(pod)
        pod.terminate()
        pod.wait_event("terminating")
        pod.sidecar.command("exit")
        assert pod.wait() == 143, pod.log()
        pod = run(f"pod-{generation}", again(generation), pod)
        pod.wait_event("restored")
        until(lambda: all(now > before for now, before in zip(counts(pod), at, strict=True)), "all go on", pod)  # noqa: B023
        assert pod.ranks_mib() < 1.1 * first + 5
    (pod.work(0) / "cwd/end").touch()
    assert pod.wait() == 0, pod.log()
    sums = {(pod.work(0) / f"cwd/{name}.sum").read_text() for name in [*NAMES, "large"]}
    assert len(sums) == 1


@pytest.mark.criu
def test_a_family_moves_over_a_stream(run: Callable[..., Pod], tmp_path: Path) -> None:
    """Nothing of its pages stays on the disk, and what it shares comes back shared."""
    store = Store(f"file://{tmp_path}/store")
    pod = run("pod-1", fresh())
    until(lambda: min(counts(pod)) > 3, "all work", pod)
    first = pod.ranks_mib()
    pod.wait_event("started")
    whole = threading.Event()
    pages = PagesSocket(pod.volumes / "run" / names.PAGES_FILE)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(
            store.put_ranks, "team", "train", "c", {0: pod.image("c", 0)}, growing=lambda: not whole.is_set(),
            below=pod.volumes / "images", pages=pages,
        )  # fmt: skip
        try:
            event = dump_anywhere(pod, 5, stream=True)
        finally:
            whole.set()
        assert event.kind == "dumped", pod.log()
        made = put.result(120)
    assert not any(path.stat().st_size for path in pod.image("c", 0).glob("pages-*.img"))
    assert 48 * MIB < made.bytes < 110 * MIB, "one copy of what six processes share"
    at = counts(pod)
    pod.terminate()
    pod.wait_event("terminating")
    pod.sidecar.command("exit")
    assert pod.wait() == 143, pod.log()
    manifest = Manifest(
        id="c", namespace="team", job="train", attempt=1, generation=5, step=1, world_size=1, engine="process",
        created_at=1.0, ranks=made.images, requirements=Requirements(architecture="x86_64", cpu_flags_digest=""),
    )  # fmt: skip

    def bring(target: Pod) -> None:
        store.fetch_ranks(manifest, {0: target.image("c", 0)})

    pod = run("pod-2", again(5), bring)
    pod.wait_event("restored")
    until(lambda: all(now > before for now, before in zip(counts(pod), at, strict=True)), "all go on", pod)
    assert pod.ranks_mib() < 1.1 * first + 5
    (pod.work(0) / "cwd/end").touch()
    assert pod.wait() == 0, pod.log()
    assert len({(pod.work(0) / f"cwd/{name}.sum").read_text() for name in [*NAMES, "large"]}) == 1


@pytest.mark.criu
def test_a_sidecar_that_dies_fails_the_dump_and_a_second_one_takes_it(run: Callable[..., Pod], tmp_path: Path) -> None:
    pod = run("pod", fresh())
    until(lambda: min(counts(pod)) > 3, "all work", pod)
    pages = PagesSocket(pod.volumes / "run" / names.PAGES_FILE)

    def die() -> None:
        peer, _ = pages.listener.accept()
        with peer:
            peer.recv(8 * MIB)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(die)
        event = dump_anywhere(pod, 5, stream=True)
    assert event.kind == "dump_failed" and "page server" in event.message, pod.log()
    pages.close()
    store, whole = Store(f"file://{tmp_path}/store"), threading.Event()
    pages = PagesSocket(pod.volumes / "run" / names.PAGES_FILE)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(
            store.put_ranks, "team", "train", "c", {0: pod.image("c", 0)}, growing=lambda: not whole.is_set(),
            below=pod.volumes / "images", pages=pages,
        )  # fmt: skip
        try:
            event = dump_anywhere(pod, 5, stream=True)  # the same generation, asked for by the next sidecar
        finally:
            whole.set()
        assert event.kind == "dumped", pod.log()
        assert put.result(120).bytes > 48 * MIB
    pod.sidecar.command("resume", generation=5)
    at = counts(pod)
    until(lambda: all(now > before for now, before in zip(counts(pod), at, strict=True)), "all go on", pod)


@pytest.mark.criu
def test_the_longest_name_of_a_checkpoint_has_room(run: Callable[..., Pod]) -> None:
    """Addresses of unix sockets have at most 107 bytes."""
    pod = run("pod", fresh())
    until(lambda: min(counts(pod)) > 3, "all work", pod)
    pod.wait_event("started")
    fields = {"generation": 5, "checkpoint_id": "c" * 63, "remaining_s": 60, "anywhere": True}
    pod.sidecar.command("dump", **fields)
    assert pod.wait_event("dumped", "dump_failed").kind == "dumped", pod.log()


@pytest.mark.criu
@pytest.mark.parametrize("after", [0, 1, 30 * MIB], ids=["at once", "at the first page", "in the midst"])
def test_a_page_server_that_dies_fails_the_dump_and_nothing_else(run: Callable[..., Pod], after: int) -> None:
    pod = run("pod", fresh())
    until(lambda: min(counts(pod)) > 3, "all work", pod)
    over = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not over.is_set() and not killed:
            if sum(path.stat().st_size for path in pod.image("c", 0).glob("pages-*.img")) >= after:
                killed.extend(servers(pod))
                for number in killed:
                    os.kill(number, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        event = dump_anywhere(pod, 5)
    finally:
        over.set()
        killer.join(120)
    assert killed and event.kind == "dump_failed", pod.log()
    pod.sidecar.command("resume", generation=5)
    at = counts(pod)
    until(lambda: all(now > before for now, before in zip(counts(pod), at, strict=True)), "all go on", pod)
    assert dump_anywhere(pod, 6).kind == "dumped", pod.log()


def servers(pod: Pod) -> list[int]:
    """Other pods may be on this machine, of other tests."""
    found = []
    for entry in pod.processes():
        with contextlib.suppress(OSError):
            if b"snapshot.page_server" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
