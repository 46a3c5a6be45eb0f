"""`python3 -m _singularity.launcher [COMMAND...]`: pid 1 of the training container.

Without COMMAND the command stands in the environment. A Job that was adopted keeps its own argv, behind ours.
"""

from __future__ import annotations

import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - the image's Python, not ours
    print(f"[launcher] the image's python3 is {sys.version.split()[0]}; Python 3.10 or newer is needed", flush=True)
    sys.exit(2)

from .errors import LauncherError
from .supervise import Supervisor, say


def main() -> int:
    """Exit code of the container: the ranks', or one of `protocol.names.EXIT_*`, or 2 for a bad command."""
    try:
        return Supervisor(os.environ, sys.argv[1:]).run()
    except LauncherError as error:
        say(str(error))
        return error.exit_code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # daemon threads may sit in a request to the sidecar
