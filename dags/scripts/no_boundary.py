"""A program that never takes an optimizer step and never calls a collective.

There is no point at which its ranks could be stopped together, so a checkpoint that is asked for cannot be had and the
deadline has to end the attempt. Prints one line per second of work; a run that is left alone ends by itself.

    python3 no_boundary.py --seconds 60
"""

from __future__ import annotations

import argparse
import hashlib
import time


def main() -> None:
    parser = argparse.ArgumentParser(description="Work without step boundaries.")
    parser.add_argument("--seconds", type=int, default=60, help="time until a normal end")
    args = parser.parse_args()
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
