"""The launcher's side of `health_process`: one process tells of all GPUs while the launcher lives.

Each of its lines is a text for the launcher's log, or the state of the GPUs as JSON. It is not trusted with more.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping

from ...protocol import decode
from ...protocol.messages import Gpus
from .. import reap
from ..tools import Tools
from . import libraries, nvml

LIBRARY = "libnvidia-ml.so.1"
LONGEST = 64 << 10
"""Bytes of a line."""
MOST_TEXTS = 64
Tell = Callable[[Gpus], None]
Say = Callable[[str], None]


def start(tell: Tell, say: Say, tools: Tools) -> None:
    """Watch in a process and a thread of their own. Nothing happens where there is no NVML."""
    path = libraries.find(LIBRARY)
    if path is not None and nvml.library() is not None:
        given = (tools.python("device.health_process", path), tools.environment(), tell, say)
        threading.Thread(target=follow, args=given, name="gpus", daemon=True).start()


def follow(argv: list[str], env: Mapping[str, str], tell: Tell, say: Say) -> None:
    """Pass on what the process says until it ends."""
    try:
        process = reap.spawn(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        say(f"nothing is known of the GPUs' health: {error}")
        return
    assert process.stdout is not None
    texts = 0
    try:
        while line := process.stdout.readline(LONGEST):
            found = decode.message(Gpus, line, LONGEST)
            if not isinstance(found, decode.Unreadable):
                tell(found)
            elif not line.startswith(b"{") and texts < MOST_TEXTS:
                texts += 1
                text = line.decode(errors="replace").rstrip("\n")
                say("".join(letter if letter.isprintable() else "?" for letter in text))
    finally:
        process.kill()
        process.wait()
        reap.forget(process)
