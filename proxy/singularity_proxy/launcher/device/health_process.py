"""`python -m _singularity.launcher.device.health_process LIBRARY`: what NVML says, from a process without rights.

NVIDIA's library comes from the node, as far as a launcher can see. It only tells of health, so it gets nothing for it:
no capability, no file of root's, no new privilege.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

from ...protocol.messages import to_json
from ..ranks import libc, privileges, seccomp
from . import nvml, watch

NOBODY = 65534
_PDEATHSIG = 1


def harmless() -> None:
    """Give up all that a library could use; it ends with the thread that has started it. Raises OSError."""
    if os.geteuid() == 0:  # a launcher of the state engine has nothing to give up
        privileges.drop([NOBODY, NOBODY])
    seccomp.apply()
    c = libc.load()
    libc.check(c.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "no signal at the launcher's end")


def main(path: str) -> int:
    nvml.library()  # its files may be root's
    harmless()
    library = nvml.load(path)
    if library is None:
        return 1
    with contextlib.suppress(BrokenPipeError):
        for each in nvml.read(library):
            print(each.line(), flush=True)
        watch.watch(library, lambda now: print(to_json(now), flush=True), threading.Event())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
