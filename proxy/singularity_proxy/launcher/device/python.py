"""A Python that has torch, and with which rights it runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..ranks import privileges, seccomp


@dataclass(frozen=True)
class Python:
    """:param env: its environment; None: ours
    :param become: called in the new process before it executes anything
    """

    program: str
    env: Mapping[str, str] | None = None
    become: Callable[[], None] | None = None

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Raises OSError, SubprocessError."""
        return subprocess.Popen(
            [self.program, *words], env=self.env, preexec_fn=self.become,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip


OURS = Python(sys.executable)


def of_image(env: Mapping[str, str]) -> Python:
    """The container's own, as a rank would run it: the image is its owner's, who gets none of our capabilities.

    :param env: the container's
    """
    return Python(shutil.which("python3", path=env.get("PATH")) or "python3", dict(env), _as_a_rank)


def _as_a_rank() -> None:
    privileges.drop([])
    seccomp.apply()
