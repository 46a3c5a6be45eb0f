"""A program that cannot be saved: it traces a child of its own, and CRIU would have to be the tracer.

It appends a line to `OUTPUT/rank-N.lines` ten times a second, numbered from 0 in each process, until `OUTPUT/stop` is
there.
"""

import argparse
import ctypes
import os
import time
from pathlib import Path

PTRACE_SEIZE = 0x4206

parser = argparse.ArgumentParser()
parser.add_argument("--output")
output = Path(parser.parse_known_args()[0].output)

parent = os.getpid()
child = os.fork()
while not child:
    time.sleep(0.05)
    if os.getppid() != parent:
        os._exit(0)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(PTRACE_SEIZE, child, 0, 0) == 0, os.strerror(ctypes.get_errno())

number = 0
with (output / f"rank-{os.environ['RANK']}.lines").open("a", buffering=1) as lines:
    while not (output / "stop").exists():
        lines.write(f"{number}\n")
        number += 1
        time.sleep(0.1)
os.kill(child, 9)
