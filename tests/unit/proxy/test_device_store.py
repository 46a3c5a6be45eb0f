"""Device memory of ranks that share a GPU, on its way to the store and back: what they have in common goes once."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from store_samples import JOB, MIB, NAMESPACE, manifest, noise

from singularity_proxy.launcher.device.backend import Cuda, DeviceRecord
from singularity_proxy.launcher.device.driver import Device
from singularity_proxy.launcher.device.fake import FakeDriver, FakeProcess
from singularity_proxy.store import Store, chunking
from singularity_proxy.store.backend import Backend

OLD = Device("GPU-00000000-0000-0000-0000-000000000000", "NVIDIA H200", 139 << 30)
NEW = [Device(f"GPU-{n:08d}-1111-0000-0000-000000000000", "NVIDIA H200", 139 << 30) for n in range(2)]
COMMON = noise(1, 24 * MIB)
"""Parameters and optimizer state of replicas: three packs."""
PRIVATE = 192 << 10
LINE = 64
"""Bytes; CUDA's allocators hand out multiples of more."""


def memory(rank: int) -> bytes:
    """What a rank has on the GPU: a small part of its own before and after the common one, which so lies elsewhere."""
    return noise(10 + rank, PRIVATE + LINE * (37 * rank + 5)) + COMMON + noise(20 + rank, PRIVATE) + bytes(MIB)


class Traffic:
    """Counts what moves between this process and the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self.bytes_written = self.bytes_read = 0
        write, view = Backend.write, Backend.view

        def counted_write(backend: Backend, relative: str, data: bytes, **options: bool) -> None:
            self.written[relative] += 1
            self.bytes_written += len(data)
            write(backend, relative, data, **options)

        def counted_view(backend: Backend, relative: str, begin: int | None, end: int | None) -> memoryview | None:
            data = view(backend, relative, begin, end)
            self.read[relative] += 1
            self.bytes_read += len(data or b"")
            return data

        monkeypatch.setattr(Backend, "write", counted_write)
        monkeypatch.setattr(Backend, "view", counted_view)

    def forget(self) -> None:
        self.written.clear()
        self.read.clear()
        self.bytes_written = self.bytes_read = 0


def packs(count: Counter[str]) -> dict[str, int]:
    return {path: times for path, times in count.items() if "/packs/" in path}


class SharedGpu:
    """Ranks that have a process each on one GPU, suspended, with their memory in their images."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder = folder
        self.pids = {rank: 11 + rank for rank in range(ranks)}
        for pid in self.pids.values():
            (folder / "proc" / str(pid) / "fd").mkdir(parents=True)
            (folder / "proc" / str(pid) / "fd/3").symlink_to("/dev/nvidia0")
            (folder / "proc" / str(pid) / "status").write_text(f"NSpid:\t{pid}\t2\n")
        self.driver = FakeDriver([OLD], {pid: FakeProcess({OLD.uuid: memory(r)}) for r, pid in self.pids.items()})
        made = Cuda(self.driver, folder / "proc", copy=True)
        self.images = {rank: folder / f"rank-{rank}" for rank in self.pids}
        made.suspend({rank: [pid] for rank, pid in self.pids.items()}, time.time() + 60, self.images)
        self.records = {rank: made.record([pid], [OLD.uuid]) for rank, pid in self.pids.items()}

    def restore(self, targets: dict[int, Path], gpu: Device) -> None:
        """Into a new pod with one GPU, from images that came from the store; everything must be as it was."""
        there = FakeDriver([gpu], {100 + rank: self.driver.processes[self.pids[rank]] for rank in targets})
        for place, (rank, images) in enumerate(targets.items()):
            record = self.records[rank]
            assert isinstance(record, DeviceRecord) and record.copied
            Cuda(there, copy=True).restore({2: 100 + rank}, record, place, images)
            assert there.processes[100 + rank].memory == {gpu.uuid: memory(rank)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


def test_what_ranks_of_one_gpu_have_in_common_is_written_and_read_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SharedGpu(tmp_path / "pod", ranks=3)
    traffic = Traffic(monkeypatch)
    put = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g1", gpu.images)
    one = len(COMMON)
    own = 3 * 2 * (PRIVATE + chunking.LARGEST)  # and the chunks at the edges of what is common
    assert put.bytes > 3 * one and one < traffic.bytes_written < 1.01 * one + own
    assert set(packs(traffic.written).values()) == {1}
    made = manifest(put.images)
    store.write_manifest(made)

    traffic.forget()
    targets = {rank: tmp_path / f"new/rank-{rank}" for rank in range(3)}
    store.fetch_ranks(made, targets)
    assert packs(traffic.read) == dict.fromkeys({f"jobs/{NAMESPACE}/{JOB}/packs/{p.name}" for i in made.ranks
                                                 for p in i.packs}, 1)  # fmt: skip
    assert traffic.bytes_read < 1.01 * one + own
    gpu.restore(targets, NEW[0])


def test_of_what_a_pod_reads_nothing_is_for_ranks_elsewhere(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pod becomes two: each reads the common part once and its own rank's part."""
    gpu = SharedGpu(tmp_path / "pod", ranks=2)
    made = manifest(store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g1", gpu.images).images)
    traffic = Traffic(monkeypatch)
    for rank in range(2):
        traffic.forget()
        targets = {rank: tmp_path / f"new/rank-{rank}"}
        store.fetch_ranks(made, targets)
        assert packs(traffic.read) == {f"jobs/{NAMESPACE}/{JOB}/packs/{p.name}": 1 for p in made.ranks[rank].packs}
        gpu.restore(targets, NEW[rank])


def test_ranks_of_two_pods_with_a_gpu_each_store_it_once_too(store: Store, tmp_path: Path) -> None:
    """The second pod finds what the first has stored."""
    gpu = SharedGpu(tmp_path / "pods", ranks=2)
    puts = [store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g1", {r: gpu.images[r]}, (r, 2)) for r in range(2)]
    assert puts[1].bytes_stored < 2 * PRIVATE + 0.01 * len(COMMON) + 64 * 1024
    store.fetch_ranks(manifest([p.images[0] for p in puts]), targets := {r: tmp_path / f"n/{r}" for r in range(2)})
    gpu.restore(targets, NEW[0])
