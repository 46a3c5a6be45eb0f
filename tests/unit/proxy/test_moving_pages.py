"""The kernel moves, merges and splits pages of a family while it is dumped, and no bit of it changes.

Pages are in common where their frames are while CRIU sends them (`page_frames`), or their bytes (`page_images`). Frames
change here all the time: `MADV_COLLAPSE` copies pages into huge ones, compaction moves them, and KSM merges equal ones
and splits them again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pod_harness import Pod
from pod_moves import dump_anywhere, until
from store_samples import manifest
from streamed_pod import MIB, uploading

from singularity_proxy.protocol import messages
from singularity_proxy.store import Store

pytestmark = pytest.mark.criu
KSM = Path("/sys/kernel/mm/ksm")
COMPACT = Path("/proc/sys/vm/compact_memory")
PROCESS_MADVISE, MADV_COLLAPSE = 440, 25
PAGE, HUGE = 4096, 2 << 20
FAMILY = """
import ctypes, hashlib, mmap, os, random, sys, time
ctypes.CDLL(None).prctl(67, 1, 0, 0, 0)  # PR_SET_MEMORY_MERGE
SIZE, PAGE = 24 << 20, 4096
chance = random.Random(5)
sorts = [chance.randbytes(PAGE) for _ in range(64)]
memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, SIZE, PAGE):  # half of it is equal in many places, and half of it nowhere
    memory[at : at + PAGE] = chance.choice(sorts) if chance.random() < 0.5 else chance.randbytes(PAGE)
def change(seed):
    mine = random.Random(seed)
    for at in mine.sample(range(0, SIZE, PAGE), SIZE // PAGE // 3):
        turn = mine.random()
        if turn < 0.4:  # another process has such a page elsewhere, and nearly such a page here
            memory[at : at + PAGE] = mine.choice(sorts)
        elif turn < 0.8:
            memory[at + mine.randrange(PAGE)] ^= 1
        else:
            memory[at : at + PAGE] = memory[at : at + PAGE]  # a frame of its own, with the same bytes
def work(name):
    own, n = hashlib.sha256(memory).hexdigest(), 0
    while not os.path.exists("end"):
        n += 1
        with open(name + ".n", "w") as out:
            out.write(str(n))
        time.sleep(0.01)
    with open(name + ".same", "w") as out:
        out.write(str(hashlib.sha256(memory).hexdigest() == own))
children = []
for child in range(3):
    pid = os.fork()
    if not pid:
        change(child)
        work(f"child-{child}")
        os._exit(0)
    children.append(pid)
work("parent")
for pid in children:
    os.waitpid(pid, 0)
"""
NAMES = ["parent", "child-0", "child-1", "child-2"]
libc = ctypes.CDLL(None, use_errno=True)


def family(pod: Pod) -> list[int]:
    found = []
    for entry in pod.processes():
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().split(b"\0")[:2] == [b"python3", b"family.py"]:
                found.append(int(entry.name))
    return found


def regions(pid: int) -> list[tuple[int, int]]:
    """Large private memory without a file: (address, bytes), whole huge pages."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0", line):
            low, high = -(-int(match[1], 16) // HUGE) * HUGE, int(match[2], 16) // HUGE * HUGE
            if high - low >= 4 * HUGE:
                found.append((low, high - low))
    return found


def frames(pid: int) -> list[int]:
    """Page frame of each page of its large regions; 0 where there is none."""
    found: list[int] = []
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        for low, size in regions(pid):
            data = os.pread(file.fileno(), size // PAGE * 8, low // PAGE * 8)
            found += [word & (1 << 55) - 1 if word >> 63 else 0 for (word,) in struct.iter_unpack("<Q", data)]
    return found


def collapse(pids: list[int]) -> None:
    """Ask the kernel to copy all of it into huge pages. What is in use by CRIU stays where it is."""

    class Part(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    for pid in pids:
        handle = os.pidfd_open(pid)
        try:
            for low, size in regions(pid):
                for at in range(low, low + size, HUGE):
                    libc.syscall(PROCESS_MADVISE, handle, ctypes.byref(Part(at, HUGE)), 1, MADV_COLLAPSE, 0)
        finally:
            os.close(handle)


class Unrest:
    """Threads that move pages of these processes all the time. `moved`: frames that were seen to change, by cause;
    `rounds`: how often each cause has come to its end."""

    def __init__(self, pids: list[int], causes: list[Callable[[list[int]], None]]) -> None:
        self._pids, self._over = pids, threading.Event()
        self.moved: Counter[str] = Counter()
        self.rounds: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run, args=(cause,)) for cause in causes]

    def __enter__(self) -> Unrest:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)

    def _run(self, cause: Callable[[list[int]], None]) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError):  # CRIU changes maps under way
                before = [frames(pid) for pid in self._pids]
                cause(self._pids)
                after = [frames(pid) for pid in self._pids]
                pairs = [pair for two in zip(before, after, strict=True) for pair in zip(*two, strict=False)]
                self.moved[cause.__name__] += sum(old != new for old, new in pairs)
                self.rounds[cause.__name__] += 1


def split_and_merge(_: list[int]) -> None:
    """All merged pages become several again, at once; then KSM merges until it has begun."""
    (KSM / "run").write_text("2")
    (KSM / "run").write_text("1")
    limit = time.monotonic() + 20
    while not int((KSM / "pages_sharing").read_text()) and time.monotonic() < limit:
        time.sleep(0.01)


def compact(_: list[int]) -> None:
    COMPACT.write_text("1")


@pytest.fixture
def merging() -> Iterator[None]:
    """KSM in a hurry, and as it was afterwards."""
    if not os.access(KSM / "run", os.W_OK):
        pytest.skip("this kernel has no KSM, or it may not be switched on here")
    before = {name: (KSM / name).read_text() for name in ("pages_to_scan", "sleep_millisecs", "run")}
    (KSM / "sleep_millisecs").write_text("0")
    (KSM / "pages_to_scan").write_text("20000")
    yield
    for name, value in before.items():
        (KSM / name).write_text(value)


def counts(pod: Pod) -> list[int]:
    paths = [pod.work(0) / f"cwd/{name}.n" for name in NAMES]
    return [int(path.read_text() or 0) if path.exists() else 0 for path in paths]


class Family:
    def __init__(self, make_pod: Callable[..., Pod], rootfs: Path, criu: Path, folder: Path) -> None:
        self._make, self._options = make_pod, {"rootfs": rootfs, "torch": None, "criu": criu}
        self.store = Store(f"file://{folder}/store")
        self.pod = self._pod("pod", messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)).start()
        until(lambda: min(counts(self.pod)) > 3, "all work", self.pod)

    def _pod(self, name: str, plan: messages.Plan) -> Pod:
        pod = self._make(name, plan=plan, command=["python3", "family.py"], **self._options)
        (pod.volumes / "source/family.py").write_text(FAMILY)
        return pod

    def dump(self, generation: int) -> int:
        """Bytes of its images."""
        with uploading(self.pod, self.store) as put:
            event = dump_anywhere(self.pod, generation, stream=True)
        assert event.kind == "dumped", event.message
        self.made = put.result(120)
        return self.made.bytes

    def move(self) -> None:
        at, old = counts(self.pod), self.pod
        old.terminate()
        old.wait_event("terminating")
        old.sidecar.command("exit")
        assert old.wait() == 143, old.log()
        self.pod = self._pod("back", messages.Plan("restore", 2, 1, [0], "127.0.0.1", 29501, 5, "c"))
        self.store.fetch_ranks(manifest(self.made.images), {0: self.pod.image("c", 0)})
        self.pod.start().wait_event("restored")
        until(lambda: all(n > b for n, b in zip(counts(self.pod), at, strict=True)), "all go on", self.pod)

    def end(self) -> list[str]:
        """Whether each has the memory that it had at first."""
        (self.pod.work(0) / "cwd/end").touch()
        assert self.pod.wait() == 0, self.pod.log()
        return [(self.pod.work(0) / f"cwd/{name}.same").read_text() for name in NAMES]


@pytest.fixture
def tree(make_pod: Callable[..., Pod], rootfs: Path, criu_bundle: Path, tmp_path: Path) -> Family:
    return Family(make_pod, rootfs, criu_bundle, tmp_path)


def moved_in(tree: Family, causes: list[Callable[[list[int]], None]]) -> Counter[str]:
    """Dump it while its pages move, and move it. Frames that changed meanwhile, by cause."""
    pids = family(tree.pod)
    assert len(pids) == len(NAMES) and all(regions(pid) for pid in pids)
    with Unrest(pids, causes) as unrest:
        until(lambda: len(unrest.rounds) == len(causes), "each cause has moved pages once", tree.pod)
        unrest.moved.clear()
        size = tree.dump(5)
    assert 24 * MIB < size < 90 * MIB, "what they have in common is written once"
    tree.move()
    assert tree.end() == ["True"] * len(NAMES)
    print(f"frames that changed: {dict(unrest.moved)}")
    return unrest.moved


def test_pages_that_are_moved_while_they_are_dumped(tree: Family) -> None:
    moved = moved_in(tree, [collapse, compact])
    if not moved.total():
        pytest.skip("this kernel moved no page: it has no compaction, and MADV_COLLAPSE of another needs Linux 6.1")


def test_pages_that_are_merged_and_split_while_they_are_dumped(tree: Family, merging: None) -> None:
    moved = moved_in(tree, [split_and_merge])
    assert moved["split_and_merge"], "KSM split and merged nothing"
