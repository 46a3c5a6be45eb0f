"""The processes of pods, as the nodes see them: all nodes are processes of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from kueue_integration.kube.resources import Object

LAUNCHER = "_singularity.launcher"
"""The module that pid 1 of a training container runs."""


def of_pods(pods: Iterable[Object]) -> Iterator[tuple[Path, list[str]]]:
    """(/proc/PID, argv) of each process of each container, without those that have just ended."""
    uids = {str(pod["metadata"]["uid"]) for pod in pods}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            group = (entry / "cgroup").read_text()
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(uid in group for uid in uids):
            yield entry, words


def launchers(pods: Iterable[Object]) -> list[Path]:
    """/proc/PID of the launcher of each pod."""
    return [entry for entry, words in of_pods(pods) if LAUNCHER in words]
