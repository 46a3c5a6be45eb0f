"""`python3 -m gpukit [PART...]`, started by the script `run` of the kit."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from . import runner

ROOT = Path(__file__).resolve().parents[2]
"""The kit's folder; this is code/gpukit/__main__.py."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="run", description="Shows whether processes with GPUs can be moved here.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(runner.PARTS)}; default: all")
    parser.add_argument("--out", type=Path, help="folder of the report, default gpu-kit below the temporary folder")
    parser.add_argument("--again", action="store_true", help="run what an earlier run has finished again")
    parser.add_argument("--fake", action="store_true", help="the fake driver even where there is a GPU")
    parser.add_argument("--part", choices=runner.PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = [name for name in given.parts if name not in runner.PARTS]
    if unknown:
        parser.error(f"part {unknown[0]!r} is none of {', '.join(runner.PARTS)}")
    if given.part:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return runner.part(ROOT, given.part, given.answer, given.limit, given.fake)
    if os.geteuid() != 0:
        parser.error("root is needed: the driver and CRIU let nobody else look into processes")
    fake = given.fake or not any(Path("/dev").glob("nvidia[0-9]*"))
    if fake:
        print("There is no GPU: all parts run against the fake driver.", flush=True)
    out = given.out or Path(tempfile.gettempdir()) / "gpu-kit"
    return runner.run(ROOT, out.resolve(), given.parts, fake, given.again)


if __name__ == "__main__":
    sys.exit(main())
