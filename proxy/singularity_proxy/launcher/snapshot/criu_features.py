"""`python -m _singularity.launcher.snapshot.criu_features TOOLS`: what CRIU finds out about this kernel, on stdout.

CRIU keeps it in /run, and on a tmpfs only: it gets one, in a mount namespace that ends with this process. Two of its
probes cannot be made later. One loads libxtables, which ends a process whose real and effective uid differ; one starts
programs of the container by their names.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..ranks import mounts
from ..tools import Tools

CACHE = Path("/run/criu.kdat")


def main() -> int:
    tools = Tools(Path(sys.argv[1]))
    mounts.unshare(mounts.NEWNS)
    mounts.private("/")
    CACHE.parent.mkdir(exist_ok=True)
    mounts.tmpfs(CACHE.parent, "mode=755")
    argv = tools.criu("check", "--feature", "mem_dirty_track")
    done = subprocess.run(argv, env=tools.environment(), stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if not CACHE.exists():
        print(f"criu check ended with {done.returncode} and left no {CACHE}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(CACHE.read_bytes())
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
