"""The facts of this machine for the manifest, and whether a checkpoint fits it. Pure, except for reading
/proc/cpuinfo."""

from __future__ import annotations

import platform
from pathlib import Path

from ..errors import RestoreRefusedError
from ..protocol import cpu, names
from ..protocol.manifest import Manifest, Requirements
from ..protocol.messages import Needs, Through

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def requirements() -> Requirements:
    """Of a checkpoint taken on this machine."""
    return Requirements(platform.machine(), cpu.flags_digest(_cpuinfo()))


def needs(machine: str = "", cpuinfo: str = "") -> Needs:
    """Of a checkpoint taken on this machine, or on one with these facts."""
    machine = machine or platform.machine()
    return Needs(_ARCHITECTURES.get(machine, machine), cpu.extensions(cpuinfo or _cpuinfo()))


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
