"""promtool, which evaluates the chart's alerts in tests: out of Debian's package, which would install a server too."""

from __future__ import annotations

import shutil
from pathlib import Path

from .cache import Progress, made_once
from .errors import CommandError
from .shell import run_logged

PACKAGE = "prometheus"


def promtool(cache: Path, progress: Progress) -> Path:
    """The program, of the version that this machine's Debian has.

    :raises CommandError: apt has no such package, or does not reach its mirror
    """
    log = cache / "logs" / "promtool.log"

    def make(draft: Path) -> None:
        download = ["apt-get", "download", PACKAGE]
        try:
            run_logged(download, log, cwd=draft, timeout=600)
        except CommandError:
            run_logged(["apt-get", "update"], log, timeout=600)
            run_logged(download, log, cwd=draft, timeout=600)
        (package,) = draft.glob("*.deb")
        run_logged(["dpkg-deb", "--extract", package, draft / "all"], log, timeout=120)
        (draft / "all/usr/bin/promtool").rename(draft / "promtool")
        shutil.rmtree(draft / "all")
        package.unlink()

    return made_once(cache / "promtool", make, what="promtool (20 MB)", progress=progress) / "promtool"
