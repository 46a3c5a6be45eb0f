"""Device state through suspend, resume and restore. The driver's contract runs on the fake, on a real one if there."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import device_figures
import pytest

from singularity_proxy.agent import gpu_names
from singularity_proxy.launcher import device
from singularity_proxy.launcher.device import backend, copies, cycle, libraries, nvml, remap
from singularity_proxy.launcher.device.backend import Cuda, DeviceRecord, NoDevices
from singularity_proxy.launcher.device.copies import Copies
from singularity_proxy.launcher.device.driver import (
    CheckpointArgs,
    CudaDriver,
    Device,
    DriverError,
    GpuPair,
    LockArgs,
    RestoreArgs,
    State,
    UnlockArgs,
)
from singularity_proxy.launcher.device.fake import FakeDriver, FakeProcess
from singularity_proxy.launcher.errors import CommandError, DumpError, RestoreError

GIB = 1 << 30
H200 = [Device(f"GPU-{n:08d}-0000-0000-0000-000000000000", "NVIDIA H200", 139 * GIB) for n in range(4)]
OTHER = [Device(f"GPU-{n:08d}-1111-0000-0000-000000000000", "NVIDIA H200", 139 * GIB) for n in range(4)]
A100 = [Device("GPU-00000000-2222-0000-0000-000000000000", "NVIDIA A100-SXM4-80GB", 80 * GIB)]


# --- the contract of a driver ---------------------------------------------------------------------------------------
class Subject:
    """A driver, a process that uses its device, how to see what the process holds there, and how many bytes it is."""

    def __init__(self, driver: Any, pid: int, content: Any, size: int) -> None:
        self.driver, self.pid, self.content, self.size = driver, pid, content, size


PROGRAM = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
tensor = torch.arange(min(int(sys.argv[1]), free // 2) // 8, device="cuda", dtype=torch.int64)
torch.cuda.synchronize()
print(torch.cuda.memory_reserved(), flush=True)
for line in sys.stdin:
    print(int(tensor.sum().item()), flush=True)
"""


BOTH = ["fake", pytest.param("real", marks=pytest.mark.gpu)]


@pytest.fixture(params=BOTH)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with the(request.param, 8 << 20) as made:
        yield made


@pytest.fixture(params=BOTH)
def large(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """With enough on its device to tell how fast it comes and goes."""
    with the(request.param, 4 * GIB) as made:
        yield made


@contextlib.contextmanager
def the(kind: str, size: int) -> Iterator[Subject]:
    """A fake subject, or a real one with up to `size` bytes on its device."""
    if kind == "fake":
        process = FakeProcess({H200[0].uuid: b"weights"})
        yield Subject(FakeDriver(H200[:1], {7: process}), 7, lambda: process.memory, 7)
        return
    driver = CudaDriver(ctypes.CDLL("libcuda.so.1"))
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert child.stdin is not None and child.stdout is not None
    stdin, stdout = child.stdin, child.stdout

    def content() -> str:
        stdin.write("sum\n")
        stdin.flush()
        return stdout.readline()

    try:
        yield Subject(driver, child.pid, content, int(stdout.readline()))
    finally:
        child.kill()
        child.wait(30)
        stdin.close()
        stdout.close()


def test_state_goes_to_host_memory_and_comes_back(subject: Subject) -> None:
    before = subject.content()
    driver, pid = subject.driver, subject.pid
    assert driver.state(pid) is State.RUNNING
    driver.lock(pid, 30_000)
    assert driver.state(pid) is State.LOCKED
    driver.checkpoint(pid)
    assert driver.state(pid) is State.CHECKPOINTED
    driver.restore(pid, {})
    assert driver.state(pid) is State.LOCKED
    driver.unlock(pid)
    assert driver.state(pid) is State.RUNNING
    assert subject.content() == before


def test_verbs_out_of_order_are_refused(subject: Subject) -> None:
    driver, pid = subject.driver, subject.pid
    with pytest.raises(DriverError, match="cuCheckpointProcessCheckpoint: CUDA_ERROR_"):
        driver.checkpoint(pid)
    with pytest.raises(DriverError, match="cuCheckpointProcessRestore: CUDA_ERROR_"):
        driver.restore(pid, {})
    driver.lock(pid, 30_000)
    with pytest.raises(DriverError, match="cuCheckpointProcessLock: CUDA_ERROR_"):
        driver.lock(pid, 1000)
    driver.unlock(pid)


def test_a_process_without_a_device_is_refused(subject: Subject) -> None:
    with pytest.raises(DriverError):
        subject.driver.lock(1, 1000)


def test_a_device_has_a_uuid_a_name_and_memory(subject: Subject) -> None:
    [first, *_] = subject.driver.devices()
    assert first.uuid.startswith("GPU-") and len(first.uuid) == 40 and first.name and first.memory > GIB


@pytest.mark.parametrize("who", ["driver", "own"])
def test_what_a_way_there_and_back_takes(large: Subject, who: str, tmp_path: Path) -> None:
    """The figures of `make test-gpu`; on the fake driver only that they can be had."""
    before, driver = large.content(), large.driver
    how = f"{driver.devices()[0].name}, copies of the {'driver' if who == 'driver' else 'launcher (own)'}"
    if who == "own" and not driver.lends():
        device_figures.lines.append(f"{how}: not with this driver, it needs CUDA 13.4 or newer")
        return
    took = cycle.measure(driver, large.pid, large.size, lambda: Copies(tmp_path, 2) if who == "own" else None)
    assert large.content() == before
    assert re.fullmatch(r".+: lock [\d.]+ s, checkpoint .+ GB/s, restore .+ GB/s, unlock [\d.]+ s", took.line(how))
    if isinstance(driver, CudaDriver):
        device_figures.lines.append(took.line(how))


# --- the backend ----------------------------------------------------------------------------------------------------
@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """PIDs 11, 12 (rank 0) and 21 (rank 1) hold a GPU open, 13 does not; their PIDs in the slot are 2, 3, 2 and 4."""
    held = ((11, 2, "/dev/nvidia0"), (12, 3, "/dev/nvidia-uvm"), (21, 2, "/dev/nvidia1"), (13, 4, "/x"))
    for pid, inner, target in held:
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder / "3").symlink_to(target)
        (tmp_path / str(pid) / "status").write_text(f"Name:\tpython3\nNSpid:\t{pid}\t{inner}\n")
    return tmp_path


RANKS = {0: [11, 12, 13], 1: [21]}
IMAGES = {0: Path("/nowhere"), 1: Path("/nowhere")}
"""Nothing is copied there, but by the tests that have folders of their own."""


def world(devices: list[Device] | None = None) -> FakeDriver:
    devices = devices or H200[:2]
    owners = {11: 0, 12: 0, 21: 1}
    memory = {pid: {devices[place % len(devices)].uuid: b"state of %d" % pid} for pid, place in owners.items()}
    return FakeDriver(devices, {pid: FakeProcess(held) for pid, held in memory.items()})


def far() -> float:
    return time.time() + 60


def test_only_processes_with_cuda_state_count(proc: Path) -> None:
    driver = world()
    del driver.processes[12]  # holds the device for NVML only
    assert Cuda(driver, proc).users([11, 12, 13, 99]) == [11]


def test_all_are_locked_before_the_first_is_copied(proc: Path) -> None:
    driver = world()
    Cuda(driver, proc).suspend(RANKS, far(), IMAGES)
    verbs = [verb for verb, _ in driver.calls if verb in ("Lock", "Checkpoint")]
    assert verbs == ["Lock"] * 3 + ["Checkpoint"] * 3
    assert {process.state for process in driver.processes.values()} == {State.CHECKPOINTED}
    assert all(not process.memory for process in driver.processes.values())


def test_suspended_ranks_go_on_in_place(proc: Path) -> None:
    driver = world()
    before = {pid: dict(process.memory) for pid, process in driver.processes.items()}
    made = Cuda(driver, proc)
    made.suspend(RANKS, far(), IMAGES)
    for pid in (11, 12, 21):
        (proc / str(pid) / "fd" / "3").unlink()  # as the driver leaves it
    for pids in RANKS.values():
        made.resume(pids)
    assert {pid: process.memory for pid, process in driver.processes.items()} == before
    assert {process.state for process in driver.processes.values()} == {State.RUNNING}
    calls = list(driver.calls)
    made.resume(RANKS[0])  # once more: nothing is suspended
    assert driver.calls == calls


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"busy": 21}, "rank 1: its device was still busy when the time for the checkpoint was over"),
        ({"fail": ("Checkpoint", 12)}, "rank 0: the driver cannot checkpoint it"),
        ({"fail": ("Lock", 11)}, "rank 0: the driver cannot lock it"),
    ],
    ids=["busy", "checkpoint", "lock"],
)
def test_when_one_cannot_be_suspended_all_go_on(proc: Path, fault: dict[str, Any], text: str) -> None:
    driver = world()
    if "busy" in fault:
        driver.processes[fault["busy"]].busy = True
    else:
        driver.fail[fault["fail"]] = "CUDA_ERROR_NOT_SUPPORTED"
    with pytest.raises(DumpError, match=text):
        Cuda(driver, proc).suspend(RANKS, far(), IMAGES)
    assert {process.state for process in driver.processes.values()} == {State.RUNNING}
    assert all(process.memory for process in driver.processes.values())


def test_a_rank_that_cannot_get_its_device_back_is_named(proc: Path) -> None:
    driver = world()
    made = Cuda(driver, proc)
    made.suspend(RANKS, far(), IMAGES)
    driver.fail["Restore", 12] = "CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(DumpError, match=r"process 12 could not get its device back \(.*CUDA_ERROR_OUT_OF_MEMORY"):
        made.resume(RANKS[0])
    assert driver.processes[11].state is State.RUNNING


def moved(source: FakeDriver, devices: list[Device], pids: dict[int, int]) -> FakeDriver:
    """What CRIU does: the processes, suspended, come to life in a pod with other devices under other PIDs."""
    return FakeDriver(devices, {new: source.processes[old] for old, new in pids.items()})


def test_a_rank_moves_to_other_gpus(proc: Path, tmp_path: Path) -> None:
    source = world()
    made = Cuda(source, proc)
    made.suspend(RANKS, far(), IMAGES)
    records = {0: made.record(RANKS[0], [H200[0].uuid]), 1: made.record(RANKS[1], [H200[1].uuid])}
    for rank, record in records.items():
        assert record is not None
        folder = tmp_path / f"rank-{rank}"
        folder.mkdir()
        device.write(folder, record)
        assert device.read(folder) == record
    target = moved(source, OTHER[:2], {11: 111, 12: 112, 21: 121})
    there = Cuda(target)
    assert records[0] is not None and records[1] is not None
    there.restore({2: 111, 3: 112}, records[0], 0, IMAGES[0])
    there.restore({2: 121}, records[1], 1, IMAGES[0])
    assert target.processes[111].memory == {OTHER[0].uuid: b"state of 11"}
    assert target.processes[112].memory == {OTHER[0].uuid: b"state of 12"}
    assert target.processes[121].memory == {OTHER[1].uuid: b"state of 21"}
    assert {process.state for process in target.processes.values()} == {State.RUNNING}


def test_two_ranks_meet_on_one_gpu(proc: Path) -> None:
    """One GPU per pod before, two ranks in a pod with one GPU afterwards."""
    source = world(H200[:1])
    made = Cuda(source, proc)
    made.suspend(RANKS, far(), IMAGES)
    target = moved(source, OTHER[:1], {11: 111, 12: 112, 21: 121})
    there = Cuda(target)
    for place, (rank, pids) in enumerate({0: {2: 111, 3: 112}, 1: {2: 121}}.items()):
        record = made.record(RANKS[rank], [H200[0].uuid])
        assert record is not None
        assert there.restore(pids, record, place, IMAGES[0]) == {H200[0].uuid: OTHER[0].uuid}
    assert all(process.memory.keys() == {OTHER[0].uuid} for process in target.processes.values())


def test_a_rank_without_device_state_has_no_record(proc: Path, tmp_path: Path) -> None:
    made = Cuda(world(), proc)
    made.suspend({0: [13]}, far(), IMAGES)
    assert made.record([13], []) is None
    assert device.read(tmp_path) is None


def test_processes_that_are_missing_are_named() -> None:
    record = DeviceRecord([2, 5], H200[:1], [])
    with pytest.raises(RestoreError, match=r"processes \[5\] had state on a device"):
        Cuda(world()).restore({2: 111}, record, 0, IMAGES[0])


def test_of_a_rank_that_was_not_asked_all_devices_count(proc: Path) -> None:
    made = Cuda(world(), proc)
    made.suspend(RANKS, far(), IMAGES)
    record = made.record(RANKS[1], None)
    assert record is not None and record.used == [device.uuid for device in record.devices]


def test_the_driver_may_refuse_a_restore(proc: Path) -> None:
    source = world()
    made = Cuda(source, proc)
    made.suspend(RANKS, far(), IMAGES)
    record = made.record(RANKS[1], [H200[1].uuid])
    assert record is not None
    target = moved(source, OTHER[:2], {21: 121})
    target.fail["Restore", 121] = "CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(RestoreError, match=r"process 2 did not get its device state back .*OUT_OF_MEMORY"):
        Cuda(target).restore({2: 121}, record, 0, IMAGES[0])


def test_a_pod_without_devices_refuses_device_state() -> None:
    record = DeviceRecord([2], H200[:1], [H200[0].uuid])
    with pytest.raises(RestoreError, match="state on NVIDIA H200, this pod has no GPU"):
        NoDevices().restore({2: 2}, record, 0, IMAGES[0])
    none = NoDevices()
    none.suspend(RANKS, far(), IMAGES)
    none.resume([1])
    assert none.users([os.getpid()]) == [] and none.record([1], []) is None


@pytest.mark.parametrize("text", ["", "{}", '{"pids": [1], "devices": [{}], "used": []}', '{"pids": 3}', "[]"])
def test_a_spoilt_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / backend.RECORD).write_text(text)
    with pytest.raises(RestoreError, match="the image is incomplete"):
        device.read(tmp_path)


def test_this_machine_has_the_backend_it_should_have() -> None:
    expected = "cuda" if any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"
    assert device.find({}).name == expected


# --- which GPU takes whose place ------------------------------------------------------------------------------------
def test_every_old_gpu_has_a_new_one() -> None:
    found = remap.pairs(H200, [H200[2].uuid], OTHER, 2)
    assert found[H200[2].uuid] == OTHER[2].uuid
    assert sorted(found) == [d.uuid for d in H200] and len(set(found.values())) == 4


def test_ranks_of_one_pod_spread_over_its_gpus() -> None:
    places = [remap.pairs(H200[:1], [H200[0].uuid], OTHER[:2], place)[H200[0].uuid] for place in range(4)]
    assert places == [OTHER[0].uuid, OTHER[1].uuid, OTHER[0].uuid, OTHER[1].uuid]


def test_a_rank_with_two_gpus_gets_two() -> None:
    used = [H200[0].uuid, H200[1].uuid]
    second = remap.pairs(H200[:2], used, OTHER, 1)
    assert [second[name] for name in used] == [OTHER[2].uuid, OTHER[3].uuid]


def test_too_few_gpus_are_named() -> None:
    with pytest.raises(RestoreError, match=r"state on 2 GPUs, this pod has 1: give its pods nvidia.com/gpu: 2"):
        remap.pairs(H200, [H200[0].uuid, H200[1].uuid], OTHER[:1], 0)


def test_another_type_of_gpu_is_named() -> None:
    with pytest.raises(RestoreError, match=r"taken on NVIDIA H200 \(139 GiB\); this pod has NVIDIA A100"):
        remap.pairs(H200[:1], [H200[0].uuid], A100, 0)


# --- health ---------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
def test_the_health_of_a_real_gpu() -> None:
    library = nvml.library()
    assert library is not None
    vars(library)["nvmlLib"] = ctypes.CDLL("libnvidia-ml.so.1")
    [first, *_] = nvml.read(library)
    assert first.memory_total > GIB and first.sound


# --- copies of our own ------------------------------------------------------------------------------------------------
def folders(path: Path) -> dict[int, Path]:
    return {rank: path / f"image-{rank}" for rank in RANKS}


def test_device_memory_is_copied_into_the_image_and_back(subject: Subject, tmp_path: Path) -> None:
    """The contract of a driver that lends memory."""
    if not subject.driver.lends():
        pytest.skip("needs a driver of CUDA 13.4 or newer")
    before, driver, pid = subject.content(), subject.driver, subject.pid
    made = Copies(tmp_path, 2)
    driver.lock(pid, 30_000)
    driver.checkpoint(pid, made)
    assert driver.state(pid) is State.CHECKPOINTED and made.complete and not made.problem
    assert [path.name for path in tmp_path.iterdir()] == [f"device-2-{driver.devices()[0].uuid}.bin"]
    driver.restore(pid, {}, Copies(tmp_path, 2))  # as another launcher reads it
    assert driver.state(pid) is State.LOCKED
    driver.unlock(pid)
    assert subject.content() == before


def test_ranks_move_with_device_memory_in_their_images(proc: Path, tmp_path: Path) -> None:
    source = world(H200[:2])
    made = Cuda(source, proc, copy=True)
    made.suspend(RANKS, far(), folders(tmp_path))
    assert all(set(*process.saved.values()) == {0} for process in source.processes.values()), "nothing of it is theirs"
    target = moved(source, OTHER[:1], {11: 111, 12: 112, 21: 121})
    for place, (rank, pids) in enumerate({0: {2: 111, 3: 112}, 1: {2: 121}}.items()):
        record = made.record(RANKS[rank], [H200[rank].uuid])
        assert record is not None and record.copied
        device.write(folders(tmp_path)[rank], record)
        assert device.read(folders(tmp_path)[rank]) == record
        Cuda(target).restore(pids, record, place, folders(tmp_path)[rank])
    assert {pid: process.memory for pid, process in target.processes.items()} == {
        pid: {OTHER[0].uuid: b"state of %d" % (pid - 100)} for pid in (111, 112, 121)
    }
    target.lending = False
    assert record is not None
    with pytest.raises(RestoreError, match=r"this pod's driver cannot take it back: it needs CUDA 13\.4"):
        Cuda(target).restore({2: 121}, record, 0, folders(tmp_path)[1])


def test_copied_ranks_go_on_in_place_even_when_their_image_has_gone(proc: Path, tmp_path: Path) -> None:
    driver = world()
    before = {pid: dict(process.memory) for pid, process in driver.processes.items()}
    made = Cuda(driver, proc, copy=True)
    made.suspend(RANKS, far(), folders(tmp_path))
    for folder in folders(tmp_path).values():
        shutil.rmtree(folder)  # it was uploaded
    for pids in RANKS.values():
        made.resume(pids)
    assert {pid: process.memory for pid, process in driver.processes.items()} == before
    driver.lending = False
    plain = Cuda(driver, proc, copy=True)
    plain.suspend(RANKS, far(), folders(tmp_path))
    assert not any(folder.exists() for folder in folders(tmp_path).values()), "the driver copies"


def test_no_room_for_copies_is_a_failed_dump_and_loses_nothing(proc: Path, tmp_path: Path) -> None:
    driver = world()
    images = folders(tmp_path)
    images[1].write_text("no folder")
    with pytest.raises(DumpError, match=r"no room for 11 bytes of device memory in .*image-1/device-2-GPU"):
        Cuda(driver, proc, copy=True).suspend(RANKS, far(), images)
    assert all(process.state is State.RUNNING for process in driver.processes.values())
    assert {*driver.processes[21].memory.values()} == {b"state of 21"}


def test_what_was_copied_in_part_is_never_put_back(proc: Path, tmp_path: Path) -> None:
    driver = world()
    driver.stops_copying = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(DumpError, match="cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS"):
        Cuda(driver, proc, copy=True).suspend(RANKS, far(), folders(tmp_path))
    assert {process.state for process in driver.processes.values()} == {State.CHECKPOINTED}


def test_a_copy_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "device-2-GPU-1.bin").write_bytes(b"four")
    with pytest.raises(ValueError, match=r"GPU-1\.bin has 4 bytes, the driver wants 5"):
        Copies(tmp_path, 2).content("GPU-1", 5)
    with pytest.raises(ValueError, match=r"GPU-2\.bin: .*No such file"):
        Copies(tmp_path, 2).content("GPU-2", 5)


def test_who_copies_is_said_by_a_word() -> None:
    assert [copies.wanted({}), copies.wanted({copies.ENV_COPIES: "own"})] == [False, True]
    with pytest.raises(CommandError, match=r"SINGULARITY_DEVICE_COPIES = 'yes': wanted own"):
        device.find({copies.ENV_COPIES: "yes"})


class Library:
    """libcuda, where it lends memory: a "GPU" is memory of this process, and calls are written down."""

    def __init__(self) -> None:
        self.memory = [ctypes.create_string_buffer(b"first", 5), ctypes.create_string_buffer(b"other", 5)]
        self.calls: list[str] = []
        self.pairs: list[tuple[str, str]] = []
        self.fails: dict[str, int] = {}
        self._parts = (copies.PerDevice * 2)()
        for number, (part, memory) in enumerate(zip(self._parts, self.memory, strict=True)):
            part.pointer, part.size, part.stream = ctypes.addressof(memory), 5, 70 + number
        self._info = copies.Info(99, self._parts, 2)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name.removeprefix("cu").removesuffix("_v2"))
            getattr(self, f"_{name}", lambda *a: None)(*(_plain(each) for each in arguments))
            return self.fails.get(name, 0)

        return call

    def _cuGetErrorName(self, code: int, out: Any) -> None:
        out.value = b"CUDA_ERROR_NOT_READY" if code == 600 else None

    def _cuDriverGetVersion(self, out: Any) -> None:
        out.value = 13050

    def _cuDeviceGetCount(self, out: Any) -> None:
        out.value = 2

    def _cuDeviceGet(self, out: Any, number: int) -> None:
        out.value = number

    def _cuDeviceGetName(self, out: Any, size: int, device: int) -> None:
        assert len(out) == size
        out.value = b"NVIDIA H200"

    def _cuDeviceTotalMem_v2(self, out: Any, device: int) -> None:
        out.value = 139 << 30

    def _cuDeviceGetUuid_v2(self, out: Any, device: int) -> None:
        out.bytes = (ctypes.c_ubyte * 16)(*[device] * 16)

    def _cuStreamGetDevice(self, stream: int, out: Any) -> None:
        out.value = stream - 70

    def _cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        out.value = 500 + device

    def _cuCtxPushCurrent_v2(self, context: int) -> None:
        assert context in (500, 501)

    def _cuCheckpointProcessGetState(self, pid: int, out: Any) -> None:
        out.value = 2

    def _cuCheckpointProcessLock(self, pid: int, arguments: Any) -> None:
        assert (pid, arguments.timeoutMs, arguments.reserved0, list(arguments.reserved1)) == (7, 250, 0, [0] * 7)

    def _cuCheckpointProcessCheckpoint(self, pid: int, arguments: Any) -> None:
        if arguments.customStorageInfo_out:
            ctypes.c_void_p.from_address(arguments.customStorageInfo_out).value = ctypes.addressof(self._info)

    def _cuCheckpointProcessRestore(self, pid: int, arguments: Any) -> None:
        listed = arguments.gpuPairs[: arguments.gpuPairsCount]
        self.pairs = [(bytes(pair.oldUuid.bytes).hex(), bytes(pair.newUuid.bytes).hex()) for pair in listed]
        self._cuCheckpointProcessCheckpoint(pid, arguments)

    def _cuMemcpyDtoHAsync_v2(self, host: int, pointer: int, size: int, stream: int) -> None:
        ctypes.memmove(host, pointer, size)

    def _cuMemcpyHtoDAsync_v2(self, pointer: int, host: int, size: int, stream: int) -> None:
        ctypes.memmove(pointer, host, size)

    def _cuCheckpointOperationComplete(self, handle: int) -> None:
        assert handle == 99


def _plain(argument: Any) -> Any:
    """What a C function would see: the thing that is pointed at, or the number."""
    if hasattr(argument, "_obj"):
        return argument._obj
    return argument.value if isinstance(argument, ctypes._SimpleCData) else argument


def test_the_driver_lends_memory_copies_and_is_told(tmp_path: Path) -> None:
    library = Library()
    driver = CudaDriver(library)
    assert driver.lends()
    names = [f"GPU-{uuid.UUID(bytes=bytes([n] * 16))}" for n in range(2)]
    library.calls.clear()
    driver.checkpoint(7, Copies(tmp_path, 7))
    one = ["StreamGetDevice", "CtxPushCurrent", "DeviceGetUuid", "MemcpyDtoHAsync", "CtxPopCurrent"]
    held = ["DeviceGetCount", "DeviceGet", "DeviceGet", *["DevicePrimaryCtxRetain"] * 2]
    left = ["CheckpointOperationComplete", *["DevicePrimaryCtxRelease"] * 2]
    assert library.calls == [*held, "CheckpointProcessCheckpoint", *one, *one, *left]
    assert [(tmp_path / f"device-7-{name}.bin").read_bytes() for name in names] == [b"first", b"other"]

    for memory in library.memory:
        ctypes.memset(memory, 0, 5)
    swapped = dict(zip(names, reversed(names), strict=True))  # each GPU takes the place of the other
    driver.restore(7, swapped, Copies(tmp_path, 7))
    assert [memory.raw for memory in library.memory] == [b"other", b"first"]
    (tmp_path / f"device-7-{names[0]}.bin").write_bytes(b"sho")
    library.calls.clear()
    with pytest.raises(DriverError, match="has 3 bytes, the driver wants 5"):
        driver.restore(7, {}, Copies(tmp_path, 7))
    assert library.calls[-3:] == left, "the operation is ended all the same"


def test_the_driver_is_asked_in_its_own_terms() -> None:
    library = Library()
    driver = CudaDriver(library)
    first, second = driver.devices()
    assert (first.name, first.memory, first.uuid) == ("NVIDIA H200", 139 << 30, f"GPU-{uuid.UUID(int=0)}")
    assert driver.state(7) is State.CHECKPOINTED
    driver.lock(7, 250)
    driver.checkpoint(7)
    driver.restore(7, {first.uuid: second.uuid, second.uuid: first.uuid})
    assert library.pairs == [("00" * 16, "01" * 16), ("01" * 16, "00" * 16)]
    driver.unlock(7)
    library.fails = {"cuCheckpointProcessUnlock": 600}
    with pytest.raises(DriverError, match="cuCheckpointProcessUnlock: CUDA_ERROR_NOT_READY") as raised:
        driver.unlock(7)
    assert raised.value.code == "CUDA_ERROR_NOT_READY"
    library.fails = {"cuInit": 9999}
    with pytest.raises(DriverError, match="cuInit: error 9999"):
        CudaDriver(library)
    with pytest.raises(DriverError, match="older than 570"):
        CudaDriver(SimpleNamespace())


def test_the_drivers_structures_are_as_large_as_its_headers_say() -> None:
    """cuda.h of CUDA 13: each has 64 bytes, a pair of UUIDs 32."""
    sizes = {kind: ctypes.sizeof(kind) for kind in (LockArgs, CheckpointArgs, RestoreArgs, UnlockArgs)}
    assert set(sizes.values()) == {64} and ctypes.sizeof(GpuPair) == 32
    assert (RestoreArgs.gpuPairsCount.offset, RestoreArgs.customStorageInfo_out.offset) == (8, 16)


# --- where the driver's libraries are ---------------------------------------------------------------------------------
MOUNTED = """
20 1 0:1 / / ro - overlay overlay rw,upperdir=/u
21 20 0:2 /usr/lib/libcuda.so.580.65 {at}/usr/lib/libcuda.so.580.65 ro,nosuid - ext4 /dev/sda ro
22 20 0:2 /usr/lib/libnvidia-ml.so.580.65 {at}/usr/lib/libnvidia-ml.so.580.65 rw,nosuid - ext4 /dev/sda rw
23 20 0:2 / {at}/volume ro - ext4 /dev/sda ro
24 20 0:2 /home/kubernetes/bin/nvidia {at}/usr/local/nvidia ro master:1 - ext4 /dev/sda ro
"""
HOST = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65"
SHOWN = {
    # What the runtime mounts: of the node, of the driver's own container, of a node that has its files elsewhere.
    f"{HOST} @ ro - ext4 /dev/sda1 rw": True,
    f"{HOST} @ ro,nosuid,nodev,relatime master:7 - xfs /dev/nvme0n1p1 rw,attr2": True,
    f"{HOST} @ ro - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d": True,
    "/root/usr/lib64/libcuda.so.1 @ ro - btrfs /dev/sda3 rw,subvol=/root": True,
    "/ostree/deploy/os/deploy/1.0/usr/lib64/libcuda.so @ ro - ext4 /dev/sda4 rw": True,
    # What the kubelet mounts: folders of its own, memory, servers, the root of a claim, an image as a volume.
    f"/var/lib/kubelet/pods/1-2/volumes/kubernetes.io~empty-dir/x{HOST} @ ro - ext4 /dev/sda1 rw": False,
    f"/pods/1-2/volumes/kubernetes.io~configmap/x{HOST} @ ro - ext4 /dev/sdb rw": False,
    f"/var/lib/kubelet/pods/1-2/volume-subpaths/x{HOST} @ ro - ext4 /dev/sda1 rw": False,
    f"{HOST} @ ro - tmpfs tmpfs rw": False,
    f"{HOST} @ ro - nfs4 server:/x rw": False,
    f"{HOST} @ ro - fuse.s3fs s3fs rw": False,
    f"{HOST} @ ro - overlay overlay ro,lowerdir=/a:/b": False,
    f"/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs{HOST} @ ro - ext4 /dev/sda1 rw": False,
    f"/var/lib/containers/storage/overlay/0a/merged{HOST} @ ro - ext4 /dev/sda1 rw": False,
    "/ @ ro - ext4 /dev/sdb rw": False,
    "/libcuda.so.1 @ ro - ext4 /dev/sdb rw": False,
    "/usr/lib/libcuda.so.1/x @ ro - ext4 /dev/sdb rw": False,
    f"{HOST} @ rw - ext4 /dev/sda1 rw": False,
}


@pytest.mark.parametrize(("shown", "good"), SHOWN.items(), ids=SHOWN)
def test_a_volume_is_told_from_what_the_runtime_mounts(tmp_path: Path, shown: str, good: bool) -> None:
    """As /proc/self/mountinfo has it, at the same place."""
    library = tmp_path / "libcuda.so.580.65"
    library.write_text("")
    table = tmp_path / "mountinfo"
    table.write_text("20 1 0:1 / / rw - overlay overlay rw\n21 20 8:1 " + shown.replace("@", str(library)) + "\n")
    assert libraries.find("libcuda.so.1", table) == (str(library) if good else None)


def test_of_two_mounts_in_one_place_the_upper_one_counts(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.580.65"
    library.write_text("")
    lines = [f"{n} 20 8:1 {HOST} {library} ro - {kind} x rw" for n, kind in ((21, "ext4"), (22, "tmpfs"))]
    table = tmp_path / "mountinfo"
    table.write_text("\n".join(lines))
    assert libraries.find("libcuda.so.1", table) is None


def test_the_drivers_libraries_are_what_is_mounted_and_read_only(tmp_path: Path) -> None:
    for name in ("usr/lib/libcuda.so.580.65", "usr/lib/libnvidia-ml.so.580.65", "volume/libnvidia-ml.so.1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTED.format(at=tmp_path))
    assert libraries.find("libcuda.so.1", table) == str(tmp_path / "usr/lib/libcuda.so.580.65")
    assert libraries.find("libnvidia-ml.so.1", table) is None, "a rank could write the one, and has brought the other"
    lib64 = tmp_path / "usr/local/nvidia/lib64"
    lib64.mkdir(parents=True)
    (lib64 / "libnvidia-ml.so.1").symlink_to(tmp_path / "volume/libnvidia-ml.so.1")
    assert libraries.find("libnvidia-ml.so.1", table) is None
    (lib64 / "libnvidia-ml.so.1").unlink()
    (lib64 / "libnvidia-ml.so.580.65").write_text("")
    (lib64 / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.65")
    assert libraries.find("libnvidia-ml.so.1", table) == str(lib64 / "libnvidia-ml.so.580.65")
    assert libraries.find("libcuda.so.1", tmp_path / "none") is None


def test_a_library_that_nobody_mounted_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find", lambda name: None)
    with pytest.raises(DriverError, match="the container runtime has mounted none"):
        CudaDriver()


# --- the agent ------------------------------------------------------------------------------------------------------
def test_the_agent_tells_which_gpus_hold_memory() -> None:
    cuda = SimpleNamespace(
        device_count=lambda: 3,
        memory_reserved=lambda n: 100 if n == 2 else 0,
        current_device=lambda: 0,
        get_device_properties=lambda n: SimpleNamespace(uuid=f"uuid-{n}"),
    )
    assert json.dumps(gpu_names.used_devices(cuda)) == '["GPU-uuid-0", "GPU-uuid-2"]'
