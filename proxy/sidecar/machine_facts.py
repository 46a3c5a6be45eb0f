"""What this machine is, for the manifest, and whether a checkpoint fits it: pure but for reading /proc/cpuinfo."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from ..errors import RestoreRefusedError
from ..protocol.manifest import Manifest, Requirements


def cpu_flags_digest(cpuinfo: str) -> str:
    """sha256 of the sorted feature flags of the first processor in the text of /proc/cpuinfo; "" if it names none."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return hashlib.sha256(" ".join(sorted(set(value.split()))).encode()).hexdigest()
    return ""


def requirements(python: str = "", image: str = "") -> Requirements:
    """Of a checkpoint taken on this machine."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    return Requirements(platform.machine(), cpu_flags_digest(text), python, image)


def check(manifest: Manifest, world_size: int, here: Requirements) -> str:
    """Raise RestoreRefusedError if the checkpoint cannot run here; return a warning, "" for none."""
    where = f"checkpoint {manifest.id}"
    if manifest.engine != "process":
        raise RestoreRefusedError(f"{where}: engine {manifest.engine!r} is not supported by this build")
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
