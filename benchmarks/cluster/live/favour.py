"""A replay's place in the machine's scheduler. A control plane that waits behind all else here is no control plane."""

from __future__ import annotations

from pathlib import Path

FAVOUR = -5
"""Like that of `nice`, for a session: with automatic groups a process's own counts within its session alone."""
PARTS = ("kube-apiserver", "etcd", "kueue", "kube-controller-manager", "kube-scheduler", "kwok")


def favour(root: Path, proc: Path = Path("/proc")) -> list[str]:
    """Favour this program and the parts of the control plane that have `root` in their arguments; names of these."""
    found: list[str] = []
    for entry in [proc / "self", *proc.iterdir()]:
        try:
            program, *arguments = (entry / "cmdline").read_text().split("\0")
            name = Path(program).name
            ours = name in PARTS and any(str(root) in one for one in arguments)
            if ours or entry.name == "self":
                (entry / "autogroup").write_text(str(FAVOUR))
            if ours:
                found.append(name)
        except (OSError, ValueError):
            continue  # it has ended, or there are no such groups
    return sorted(found)
