"""`python -m localcluster.prepare`: everything that takes long and needs no running cluster, into the cache.

Needs the standard library only: `make` runs it while the virtual environment is being installed.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from . import debian_tools, host
from .cache import Progress
from .clock import Clock
from .config import cache_dir
from .errors import LocalClusterError
from .images import gobuild, other_kubernetes, rootfs


@dataclass(frozen=True)
class Prepared:
    """What tests without a cluster run in."""

    rootfs: Path
    torch: Path
    helm: Path
    fake_gcs: Path
    tools: dict[str, Path]
    apiserver: Path
    etcd: Path
    kueue_crds: Path


def prepare(progress: Progress, test_servers: bool = True) -> Prepared:
    """Build and download what is not in the cache.

    :param test_servers: also what only tests and benchmarks need (a server of the gs protocol: a minute). Without it,
        that server and the tools may be missing where the answer says
    :raises LocalClusterError: not root, no Go, no space, a build or download failed
    """
    host.check_root()
    cache = cache_dir()
    host.check(cache, progress)
    # Go compiles, the other one mostly downloads: together they take hardly longer than Go alone.
    with ThreadPoolExecutor(max_workers=2) as pool:
        programs = pool.submit(_programs, cache, progress, test_servers)
        folders = pool.submit(lambda: (rootfs.debian(cache, progress), rootfs.torch(cache, progress)))
        binaries, fake_gcs = programs.result()
        apiserver, etcd = (Path(binaries[name]) for name in ("kube-apiserver", "etcd"))
        debian, torch = folders.result()
        return Prepared(
            rootfs=debian,
            torch=torch,
            helm=Path(binaries["helm"]),
            fake_gcs=fake_gcs / "fake-gcs-server",
            tools={tool.name: _tool(tool, cache, progress, test_servers) for tool in debian_tools.TOOLS},
            apiserver=apiserver,
            etcd=etcd,
            kueue_crds=gobuild.folder(gobuild.KUEUE, cache) / "crds",
        )


def _tool(tool: debian_tools.Tool, cache: Path, progress: Progress, make: bool) -> Path:
    return debian_tools.made(tool, cache, progress) if make else debian_tools.path(tool, cache)


def _programs(cache: Path, progress: Progress, test_servers: bool) -> tuple[gobuild.Binaries, Path]:
    """The cluster's programs by name, and the folder of the server of the gs protocol."""
    binaries = gobuild.build_all(cache, progress)
    if test_servers:
        gobuild.build(gobuild.FAKE_GCS, cache, progress)
    return binaries, gobuild.folder(gobuild.FAKE_GCS, cache)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m localcluster.prepare", description=__doc__)
    parser.add_argument("--env", action="store_true", help="print the environment of tests that need the folders")
    parser.add_argument("--kubernetes", metavar="v1.33.13", help="with --env: an API server of this version instead")
    parser.add_argument("--demo", action="store_true", help="nothing that only tests and benchmarks need")
    arguments = parser.parse_args()
    try:
        say = Clock(lambda text: print(text, file=sys.stderr, flush=True)).say
        made = prepare(say, test_servers=arguments.env or not arguments.demo)
        if arguments.kubernetes:
            made = replace(made, apiserver=other_kubernetes.apiserver(arguments.kubernetes, cache_dir(), say))
    except LocalClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.env:
        print(f"SINGULARITY_TEST_ROOTFS={made.rootfs} SINGULARITY_TEST_TORCH={made.torch}")
        print(f"SINGULARITY_HELM={made.helm} SINGULARITY_FAKE_GCS={made.fake_gcs}")
        print(f"SINGULARITY_APISERVER={made.apiserver} SINGULARITY_ETCD={made.etcd}")
        print(f"SINGULARITY_KUEUE_CRDS={made.kueue_crds}")
        print(" ".join(f"SINGULARITY_{name.upper()}={path}" for name, path in made.tools.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
