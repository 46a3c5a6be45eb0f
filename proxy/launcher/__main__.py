"""`python3 -m _singularity.launcher [COMMAND...]`: pid 1 of the training container.

Without COMMAND the command stands in the environment. A Job that was adopted keeps its own argv, behind ours.
"""

from __future__ import annotations

import os
import sys

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
