"""`python -m localcluster.prepare`: everything that takes long and needs no running cluster, into the cache.

Needs the standard library only: `make` runs it while the virtual environment is being installed.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import build, host, rootfs
from .cache import Progress
from .clock import Clock
from .config import cache_dir
from .errors import LocalClusterError


@dataclass(frozen=True)
class Prepared:
    """What tests without a cluster run in."""

    rootfs: Path
    torch: Path
    helm: Path
    fake_gcs: Path


def prepare(progress: Progress) -> Prepared:
    """Build and download what is not in the cache.

    :raises LocalClusterError: not root, no Go, no space, a build or download failed
    """
    host.check_root()
    cache = cache_dir()
    host.check(cache, progress)
    # Go compiles, the other one mostly downloads: together they take hardly longer than Go alone.
    with ThreadPoolExecutor(max_workers=2) as pool:
        programs = pool.submit(lambda: (build.build_all(cache, progress), build.build(build.FAKE_GCS, cache, progress)))
        folders = pool.submit(lambda: (rootfs.debian(cache, progress), rootfs.torch(cache, progress)))
        binaries, fake_gcs = programs.result()
        return Prepared(*folders.result(), Path(binaries["helm"]), fake_gcs / "fake-gcs-server")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m localcluster.prepare", description=__doc__)
    parser.add_argument("--env", action="store_true", help="print the environment of tests that need the folders")
    arguments = parser.parse_args()
    try:
        made = prepare(Clock(lambda text: print(text, file=sys.stderr, flush=True)).say)
    except LocalClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.env:
        print(f"SINGULARITY_TEST_ROOTFS={made.rootfs} SINGULARITY_TEST_TORCH={made.torch}")
        print(f"SINGULARITY_HELM={made.helm} SINGULARITY_FAKE_GCS={made.fake_gcs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
