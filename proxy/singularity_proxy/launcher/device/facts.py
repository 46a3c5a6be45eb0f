"""Facts of this machine for checkpoints of processes with GPUs, and sentences about what will not work on it.

Standard library only; torch is asked in a process of its own, which may fail without harm.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...protocol import names, user_namespace
from .driver import CudaDriver, DriverError
from .python import OURS, Python

OLDEST_DRIVER, OLDEST_CUDA = (570,), (12, 8)
CALLS = ("Lock", "Checkpoint", "Restore", "Unlock", "GetState", "GetRestoreThreadId")
CAPABILITIES = {
    "SYS_ADMIN": 21, "NET_ADMIN": 12, "SYS_TIME": 25, "SYS_PTRACE": 19, "SYS_CHROOT": 18, "SETPCAP": 8,
}  # fmt: skip
"""What CRIU needs, by number."""
FEATURES = ("pagemap_scan", "mem_dirty_track", "timens")
TOOLS = ("unshare", "mount")
"""Programs that put a launcher into its own container, where no container runtime does."""
LIBRARY = "libcuda.so.1"
_ASK_TORCH = """
import json, torch
nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else ()
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available(),
                  "nccl": list(nccl)}))
"""


@dataclass
class Facts:
    """`problems`: a sentence for each thing that will not work, and what to do."""

    gpus: list[dict[str, Any]] = field(default_factory=list)
    driver: str = ""
    api: int = 0
    """CUDA version of the driver, 13040 for 13.4."""
    calls: dict[str, bool] = field(default_factory=dict)
    own_copies: bool = False
    python: str = platform.python_version()
    torch: dict[str, Any] = field(default_factory=dict)
    kernel: str = platform.release()
    criu: dict[str, Any] = field(default_factory=dict)
    capabilities: dict[str, bool] = field(default_factory=dict)
    seccomp: str = ""
    tools: dict[str, bool] = field(default_factory=dict)
    memory_gb: float = 0.0
    shm_gb: float = 0.0
    cores: int = len(os.sched_getaffinity(0))
    problems: list[str] = field(default_factory=list)


def gather(
    criu: Sequence[str], python: Python = OURS, library: str | None = LIBRARY, tools: Sequence[str] = TOOLS
) -> Facts:
    """Examine this machine; takes seconds. Never raises because of a finding.

    :param criu: argv prefix that runs CRIU
    :param library: what to open for the driver's library; None: it is not here
    :param tools: programs that have to be there
    """
    found = Facts()
    looks: dict[str, Callable[[], None]] = {
        "gpus": lambda: _gpus(found, library), "torch": lambda: _torch(found, python),
        "process": lambda: _process(found, tools), "machine": lambda: _machine(found),
    }  # fmt: skip
    for name, look in looks.items():
        try:
            look()
        except Exception as error:  # a fact that cannot be had must not hide the others
            found.problems.append(f"{name} could not be looked at: {type(error).__name__}: {error}")
    _criu(found, criu)
    return found


def _gpus(found: Facts, library: str | None) -> None:
    text = Path("/proc/driver/nvidia/version")
    version = re.search(r"Module\s.*?(\d+(?:\.\d+)+)", text.read_text()) if text.exists() else None
    found.driver = version.group(1) if version else ""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        found.problems.append("There is no NVIDIA GPU here: no /dev/nvidia0")
        return
    if found.driver and tuple(map(int, found.driver.split(".")))[:1] < OLDEST_DRIVER:
        found.problems.append(f"The driver is {found.driver}; the checkpoint API came with 570: install a newer one")
    if library is None:
        found.problems.append("No driver's library is mounted read-only here: the NVIDIA container runtime brings them")
        return
    found.calls = _calls(library)
    missing = [name for name in CALLS[:5] if not found.calls.get(name)]
    if missing:
        found.problems.append(f"libcuda has no cuCheckpointProcess{missing[0]}: the driver is older than 570")
    try:
        driver = CudaDriver(ctypes.CDLL(library))
        found.gpus = [{"uuid": d.uuid, "name": d.name, "memory_gb": round(d.memory / 1e9, 1)} for d in driver.devices()]
        found.api = driver.version()
        found.own_copies = driver.lends()
    except (DriverError, OSError) as error:
        found.problems.append(f"The checkpoint API cannot be used: {error}")


def _calls(path: str) -> dict[str, bool]:
    """What the installed driver's library exports."""
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return {}
    known = {name: f"cuCheckpointProcess{name}" for name in CALLS} | {
        "OperationComplete": "cuCheckpointOperationComplete"
    }
    return {short: hasattr(library, name) for short, name in known.items()}


def _torch(found: Facts, python: Python) -> None:
    with python.start("-c", _ASK_TORCH) as process:
        try:
            said, complained = process.communicate(timeout=180)
        finally:
            process.kill()
    if process.returncode:
        last = (complained.strip().splitlines() or ["it said nothing"])[-1]
        found.problems.append(f"{python.program} has no torch that can be used: {last}")
        return
    found.torch = json.loads(said.strip().splitlines()[-1])
    version = tuple(map(int, re.findall(r"\d+", found.torch["version"])[:2]))
    if version < names.OLDEST_TORCH:
        oldest = ".".join(map(str, names.OLDEST_TORCH))
        found.problems.append(f"torch is {found.torch['version']}; {oldest} or newer is needed")
    cuda = found.torch["cuda"]
    if found.gpus and cuda is None:
        found.problems.append("torch is a build without CUDA: install one with CUDA 12.8 or newer")
    elif cuda is not None and tuple(map(int, cuda.split(".")[:2])) < OLDEST_CUDA:
        found.problems.append(f"torch is built for CUDA {cuda}; its checkpoint API came with 12.8")


def _process(found: Facts, tools: Sequence[str]) -> None:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    effective = int(status["CapEff"], 16)
    found.capabilities = {name: bool(effective >> number & 1) for name, number in CAPABILITIES.items()}
    found.seccomp = {"0": "off", "1": "strict", "2": "filter"}.get(status.get("Seccomp", "").strip(), "unknown")
    missing = [name for name, held in found.capabilities.items() if not held]
    if missing:
        found.problems.append(f"CRIU needs capabilities that this process does not have: {', '.join(missing)}")
    found.tools = {name: shutil.which(name) is not None for name in tools}
    absent = [name for name, there in found.tools.items() if not there]
    if absent:
        found.problems.append(f"{', '.join(absent)} not found: util-linux has them")


def _machine(found: Facts) -> None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            found.memory_gb = round(int(line.split()[1]) / 1e6, 1)
    shm = os.statvfs("/dev/shm")  # noqa: S108 - the kernel's name for it
    found.shm_gb = round(shm.f_bavail * shm.f_frsize / 1e9, 1)
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path("/tmp/nvidia-mps").exists():  # noqa: S108 - MPS's own
        found.problems.append("MPS seems to be on: the driver does not checkpoint its clients")
    held = max((gpu["memory_gb"] for gpu in found.gpus), default=0.0)
    if held > found.memory_gb:
        found.problems.append(
            f"A GPU has {held:.0f} GB, the host {found.memory_gb:.0f} GB free: the driver copies device memory into "
            "host memory, so no more than that can be saved"
        )


FILTERS = "seccomp_suspend"
"""Not in a user namespace, where the kernel refuses it: the filter of a rank stays in force during its dump there."""
USED = ("clone3_set_tid", FILTERS, "timerfd")
"""What dump and restore of ranks use. `criu check` looks for more, which no rank has: tun devices, for one."""


def _criu(found: Facts, criu: Sequence[str]) -> None:
    def run(*words: str) -> tuple[int, str]:
        try:
            done = subprocess.run([*criu, *words], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            return -1, str(error)
        return done.returncode, (done.stdout + done.stderr).strip()

    code, text = run("--version")
    version = re.search(r"Version:\s*(\S+)", text)
    found.criu = {"version": version.group(1) if version else None}
    if code:
        found.problems.append(f"CRIU cannot be started: {text[-300:]}")
        return
    code, text = run("check")
    found.criu["check"] = "looks good" if code == 0 else text.splitlines()[-1] if text else f"code {code}"
    found.criu["features"] = {name: run("check", "--feature", name)[0] == 0 for name in FEATURES}
    used = [name for name in USED if name != FILTERS or not user_namespace.inside()]
    missing = [name for name in used if run("check", "--feature", name)[0]]
    if missing:
        found.problems.append(f"CRIU misses {', '.join(missing)} here: see the kernel's configuration")
