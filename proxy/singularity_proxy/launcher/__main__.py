"""Pid 1 of the training container: `AGENT_DIR/launcher/start [COMMAND...]`, which executes this with our own Python.

Without COMMAND, the environment has the command. An adopted Job keeps its own argv, after ours.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence

if __name__ == "__main__":
    # Nothing here uses the name service: it would load libraries that the container's /etc/nsswitch.conf names.
    sys.modules["pwd"] = sys.modules["grp"] = None  # type: ignore[assignment]

from ..protocol import exit_codes, names
from .device import probe
from .errors import CommandError, LauncherError
from .paths import Paths
from .snapshot import engines
from .supervise import Supervisor, say
from .tools import Tools

ENVIRONMENT = 3
"""Descriptor with the container's environment: `start` keeps it away from everything that it executes."""


def environment(descriptor: int = ENVIRONMENT) -> dict[str, str]:
    """As the kernel keeps it: NAME=value, each with a zero byte behind it."""
    with open(descriptor, "rb") as file:
        words = file.read().split(b"\0")
    return {os.fsdecode(name): os.fsdecode(value) for name, sign, value in (w.partition(b"=") for w in words) if sign}


def main(argv: Sequence[str], given: Mapping[str, str] | None = None, paths: Paths | None = None) -> int:
    """Exit code of the container: one of `protocol.exit_codes`.

    :param argv: the user's command; empty: it stands in the environment
    :param given: the container's environment, if it is not at ENVIRONMENT
    :param paths: where things lie, if not where a pod has them
    """
    try:
        env = environment() if given is None else given
        paths = paths or Paths()
        tools = Tools(paths.tools)
        engine = engines.of(env, paths)
        engine.prepare()
        wish = env.get(names.ENV_PROBE)
        if wish == names.PROBE_GPUS:
            return probe.main(tools.criu(), env)
        if wish:
            raise CommandError(f"{names.ENV_PROBE} = {wish!r}: only {names.PROBE_GPUS!r} can be probed")
        return Supervisor(env, paths, engine, argv).run()
    except LauncherError as error:
        say(str(error))
        return error.exit_code
    except Exception as error:  # ours: Python's own code for it would be taken for the program's
        say(f"{type(error).__name__}: {error}")
        traceback.print_exc()
        return exit_codes.PROTOCOL


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # daemon threads may sit in a request to the sidecar
