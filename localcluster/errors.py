"""Every error that this package raises on purpose derives from `LocalClusterError`.

    LocalClusterError
        HostError
        ConfigError
        CommandError
        BuildError
        NotReadyError
"""

from __future__ import annotations

from pathlib import Path


class LocalClusterError(Exception):
    """Base class. The message is a sentence that says what to do."""


class HostError(LocalClusterError):
    """This machine cannot run a cluster as it is: not root, no Go, no space, an unsupported cgroup set-up."""


class ConfigError(LocalClusterError, ValueError):
    """A name, path or number that the caller gave is not usable."""


class CommandError(LocalClusterError):
    """A program that we ran failed; the message carries its last words."""


class BuildError(LocalClusterError):
    """A part, root file system or image could not be made."""


class NotReadyError(LocalClusterError):
    """A part did not become ready in time, or died while we waited."""


def log_tail(log: Path, lines: int = 12) -> str:
    """Last `lines` lines of `log`, indented; "" when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(f"    {line[:400]}" for line in text.splitlines()[-lines:])
