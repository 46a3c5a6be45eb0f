"""A program that never takes an optimizer step and never calls a collective.

Prints one line per second of work; a run that is left alone ends by itself. It belongs to no process group, so it can
be stopped anywhere. With --native, which is for several ranks, it joins its group and then stays in one call of native
code. There is no point at which such ranks could be stopped together. So a requested checkpoint fails, and the deadline
has to end the attempt.

    python3 no_boundary.py --seconds 60
    torchrun --nproc-per-node 2 no_boundary.py --seconds 60 --native
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import time


class TimeSpec(ctypes.Structure):
    """C's struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def native(seconds: int) -> None:
    """One call that no signal ends early: waiting for a mutex that this thread holds already."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_timedlock(mutex, ctypes.byref(TimeSpec(int(time.time()) + seconds, 0)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Work without step boundaries.")
    parser.add_argument("--seconds", type=int, default=60, help="time until a normal end")
    parser.add_argument("--native", action="store_true", help="join the process group, then stay in one native call")
    args = parser.parse_args()
    if args.native:
        import torch.distributed

        torch.distributed.init_process_group("gloo")
        print(f"{args.seconds} seconds in native code, no step boundary", flush=True)
        native(args.seconds)
        print("done", flush=True)
        return
    start = time.monotonic()
    digest = b""
    for second in range(args.seconds):
        while time.monotonic() < start + second + 1:
            digest = hashlib.sha256(digest).digest()
            # Leaves most of a shared core to the others: the subject is the missing boundary, not the load.
            time.sleep(0.01)
        print(f"second {second + 1} of {args.seconds}, no step boundary", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
