"""The facts of this machine for the manifest, and whether a checkpoint fits it. Pure, except for reading
/proc/cpuinfo."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from ..errors import RestoreRefusedError
from ..protocol import names
from ..protocol.manifest import Manifest, Requirements
from ..protocol.messages import Needs, Through

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_EXTENSIONS = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA3",
    "avx_vnni": "AVXVNNI",
    "avx512f": "AVX512F",
    "avx512bw": "AVX512BW",
    "avx512cd": "AVX512CD",
    "avx512dq": "AVX512DQ",
    "avx512vl": "AVX512VL",
    "avx512_vnni": "AVX512VNNI",
    "avx512_bf16": "AVX512BF16",
    "avx512_fp16": "AVX512FP16",
    "amx_tile": "AMXTILE",
    "amx_int8": "AMXINT8",
    "amx_bf16": "AMXBF16",
}
"""Flag of /proc/cpuinfo -> name by node feature discovery. Libraries choose other code for these flags at their start,
and node feature discovery labels them by default."""


def _flags(cpuinfo: str) -> set[str]:
    """Feature flags of the first processor in the text of /proc/cpuinfo; none if it names none."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def cpu_flags_digest(cpuinfo: str) -> str:
    """sha256 of the sorted feature flags of the first processor in the text of /proc/cpuinfo; "" if it names none."""
    flags = _flags(cpuinfo)
    return hashlib.sha256(" ".join(sorted(flags)).encode()).hexdigest() if flags else ""


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def requirements() -> Requirements:
    """Of a checkpoint taken on this machine."""
    return Requirements(platform.machine(), cpu_flags_digest(_cpuinfo()))


def needs(machine: str = "", cpuinfo: str = "") -> Needs:
    """Of a checkpoint taken on this machine, or on one with these facts."""
    machine, flags = machine or platform.machine(), _flags(cpuinfo or _cpuinfo())
    known = sorted(name for flag, name in _EXTENSIONS.items() if flag in flags)
    return Needs(_ARCHITECTURES.get(machine, machine), known)


def through(manifest: Manifest, engine: str, world_size: int, here: Requirements) -> tuple[Through, str]:
    """What of the checkpoint a pod of `engine` goes on from, and a warning, or why not from the processes; "" for none.

    Processes go first: all of the program comes back. State runs on any machine and with any number of ranks.
    Raises RestoreRefusedError if neither can run here.
    """
    state = manifest.engine != names.ENGINE_PROCESS and engine != names.ENGINE_PROCESS
    if manifest.engine == names.ENGINE_STATE or engine == names.ENGINE_STATE:
        if state:
            return "state", ""
        raise RestoreRefusedError(
            f"checkpoint {manifest.id} was made with engine {manifest.engine!r}, this job has engine {engine!r}: "
            f"submit the job with engine={manifest.engine!r}, or begin from a checkpoint of the other engine"
        )
    try:
        warning = _check_processes(manifest, world_size, here)
    except RestoreRefusedError as error:
        if not state:
            raise
        warning = str(error)
    return ("state" if state and warning else "process"), warning


def _check_processes(manifest: Manifest, world_size: int, here: Requirements) -> str:
    """Raise RestoreRefusedError if process images cannot run here; return a warning, "" for none."""
    where = f"checkpoint {manifest.id}"
    if manifest.world_size != world_size:
        raise RestoreRefusedError(
            f"{where} has world size {manifest.world_size}, this job has {world_size}: a process image keeps its world "
            "size, submit the job with the same one"
        )
    if manifest.requirements.architecture != here.architecture:
        raise RestoreRefusedError(
            f"{where} was taken on {manifest.requirements.architecture}, this node is {here.architecture}: "
            "choose flavors of one architecture"
        )
    wanted = manifest.requirements.cpu_flags_digest
    if wanted and here.cpu_flags_digest and wanted != here.cpu_flags_digest:
        return f"{where} was taken on a CPU with other features: the restore can fail on a missing instruction set"
    return ""
