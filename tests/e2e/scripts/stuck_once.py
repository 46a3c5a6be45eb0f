"""Ranks that cannot be stopped together in their first attempt; a later one ends at once.

They join their group, and then stay in one call of native code for 45 s. That is longer than a slow machine needs to
bring a job of high priority and to let a budget of 10 s pass.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch.distributed as dist

FOLDER = Path("/shared/e2e/stuck_once")


def main() -> None:
    dist.init_process_group("gloo")
    mark = FOLDER / f"{os.environ['SINGULARITY_JOB']}-{dist.get_rank()}"
    if mark.exists():
        print("done", flush=True)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    mark.touch()
    print("45 seconds in native code, no step boundary", flush=True)
    ctypes.CDLL(None).system(b"sleep 45")
    print("done", flush=True)


if __name__ == "__main__":
    main()
