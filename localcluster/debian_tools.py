"""Programs that only tests need, each out of a package of Debian that would install more: nothing is installed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from .cache import Progress, made_once
from .errors import CommandError
from .shell import run_logged


@dataclass(frozen=True)
class Tool:
    """`path`: where the package has the program; `room` for people."""

    package: str
    path: str
    room: str

    @property
    def name(self) -> str:
        return Path(self.path).name


PROMTOOL = Tool("prometheus", "usr/bin/promtool", "20 MB")
"""Evaluates the chart's alerts."""
APPARMOR_PARSER = Tool("apparmor", "sbin/apparmor_parser", "1.5 MB")
"""Reads the chart's AppArmor profile; the kernel need not know AppArmor."""
TOOLS = (PROMTOOL, APPARMOR_PARSER)


def path(tool: Tool, cache: Path) -> Path:
    """Where it is once it was made."""
    return cache / tool.name / tool.name


def made(tool: Tool, cache: Path, progress: Progress) -> Path:
    """The program, of the version that this machine's Debian has.

    :raises CommandError: apt has no such package, or does not reach its mirror
    """
    log = cache / "logs" / f"{tool.name}.log"

    def make(draft: Path) -> None:
        download = ["apt-get", "download", tool.package]
        try:
            run_logged(download, log, cwd=draft, timeout=600)
        except CommandError:
            run_logged(["apt-get", "update"], log, timeout=600)
            run_logged(download, log, cwd=draft, timeout=600)
        (package,) = draft.glob("*.deb")
        run_logged(["dpkg-deb", "--extract", package, draft / "all"], log, timeout=120)
        (draft / "all" / tool.path).rename(draft / tool.name)
        shutil.rmtree(draft / "all")
        package.unlink()

    return made_once(cache / tool.name, make, what=f"{tool.name} ({tool.room})", progress=progress) / tool.name
