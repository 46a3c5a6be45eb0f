"""What the driver cannot save, and a GPU of another type: refused with the sentence that the documentation promises."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from singularity_proxy.launcher.device.backend import Cuda, DeviceRecord, NoDevices
from singularity_proxy.launcher.device.driver import Device
from singularity_proxy.launcher.device.fake import FakeDriver, FakeProcess
from singularity_proxy.launcher.errors import DumpError, RestoreError

from ..kit import Kit, PartError, Result, environment

PROMISED = "it does not support managed memory, CUDA IPC and MPS"
MANAGED = """
import ctypes, sys, torch
torch.ones(1, device="cuda")
cuda, where = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
code = cuda.cuMemAllocManaged(ctypes.byref(where), ctypes.c_size_t(4096), 1)
print(code, flush=True)
sys.stdin.read()
"""
IPC = """
import sys, torch
from torch.multiprocessing.reductions import reduce_tensor
held = torch.ones(1 << 20, device="cuda")
print(0, flush=True)
reduce_tensor(held)  # takes an IPC handle
torch.cuda.synchronize()
sys.stdin.read()
"""
PLAIN = """
import sys, torch
torch.ones(1, device="cuda")
print(0, flush=True)
sys.stdin.read()
"""
MPS = "nvidia-cuda-mps-control"
MPS_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
CONTROL_S = 20.0
"""So long may its daemon take until clients find it."""


def run(kit: Kit, result: Result) -> None:
    _tried(kit, result, "managed memory", MANAGED, {})
    _tried(kit, result, "CUDA IPC", IPC, {})
    with _mps(kit) as variables:
        if variables is None:
            result.note(f"MPS: this machine has no {MPS}, so that nothing can be refused")
        else:
            _tried(kit, result, "MPS", PLAIN, variables)
    record = DeviceRecord([2], [Device("GPU-0", "NVIDIA ZX81", 1 << 30)], ["GPU-0"])
    cuda = Cuda(FakeDriver(kit.devices(), {}))
    result.check("a GPU of another type is refused", "needs the same type of GPU" in _refusal(cuda, record, kit))
    result.check("a pod without a GPU is refused", "this pod has no GPU" in _refusal(NoDevices(), record, kit))
    result.sentence = "what cannot be saved is refused"


def _tried(kit: Kit, result: Result, name: str, program: str, variables: Mapping[str, str]) -> None:
    """Suspend `program`, which has what the driver does not save; `variables`: of its environment."""
    with _subject(kit, program, variables) as (cuda, pid, ready):
        if not ready:
            result.note(f"{name}: this driver does not give it, so that nothing can be refused")
            return
        text = ""
        try:
            cuda.suspend({0: [pid]}, time.time() + 60, {0: kit.folder / "nowhere"})
            cuda.resume([pid])
        except DumpError as error:
            text = str(error)
        if text:
            result.check(f"{name} is refused with the sentence", PROMISED in text, text)
        else:
            result.note(f"{name}: this driver saves it; the documentation says that it refuses")


def _refusal(cuda: Cuda | NoDevices, record: DeviceRecord, kit: Kit) -> str:
    try:
        cuda.restore({2: os.getpid()}, record, 0, kit.folder)
    except RestoreError as error:
        return str(error)
    return ""


@contextmanager
def _mps(kit: Kit) -> Iterator[Mapping[str, str] | None]:
    """Variables that make a program a client of MPS, None where there is none.

    The daemon is ours alone: it has a directory of its own, and no setting of the GPU is changed. It stays in the
    foreground and in our process group, so that it ends with the part, whatever happens.
    """
    if kit.fake or MPS_DIRECTORY in os.environ:  # the machine's own is on
        yield {}
        return
    program = shutil.which(MPS)
    if program is None:
        yield None
        return
    folder = kit.folder / "mps"
    folder.mkdir()
    variables = {MPS_DIRECTORY: str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    daemon = subprocess.Popen([program, "-f"], env=environment() | variables, stdin=subprocess.DEVNULL)
    try:
        _control_socket(folder, daemon, kit)
        yield variables
    finally:
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()


def _control_socket(folder: Path, daemon: subprocess.Popen[bytes], kit: Kit) -> None:
    """Return when clients find the daemon. Raises PartError."""
    until = time.monotonic() + min(CONTROL_S, kit.left)
    while not (folder / "control").exists():
        if daemon.poll() is not None:
            raise PartError(f"{MPS} ended with code {daemon.returncode}")
        if time.monotonic() > until:
            raise PartError(f"{MPS} has made no control file in {folder} after {CONTROL_S:.0f} s")
        time.sleep(0.05)


@contextmanager
def _subject(kit: Kit, program: str, variables: Mapping[str, str]) -> Iterator[tuple[Cuda, int, bool]]:
    """Backend, PID, and whether the program has got what it wanted.

    :param variables: of its environment, beside the kit's own
    """
    if kit.fake:
        pid = os.getpid()
        driver = FakeDriver(kit.devices(), {pid: FakeProcess({})})
        driver.fail[("Checkpoint", pid)] = "CUDA_ERROR_NOT_SUPPORTED"
        yield _Any(driver), pid, True
        return
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment() | dict(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            assert child.stdout is not None
            yield Cuda(kit.driver()), child.pid, child.stdout.readline().strip() == "0"
        finally:
            child.kill()


class _Any(Cuda):
    def _holds_a_device(self, pid: int) -> bool:
        return True
