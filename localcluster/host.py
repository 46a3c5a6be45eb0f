"""Is this a machine that can run a cluster? Says what is missing, and installs it where it knows how (Debian)."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from .cache import Progress
from .config import STATE_ROOT
from .errors import CommandError, HostError
from .images import gobuild
from .namespaces import cgroups
from .shell import run_logged

PACKAGES: Mapping[str, str] = {
    # runc is the one program that is built with C.
    "gcc": "gcc",
    "pkg-config": "pkgconf",
    "/usr/include/stdlib.h": "libc6-dev",
    "/usr/include/seccomp.h": "libseccomp-dev",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "/bin/busybox": "busybox-static",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
    "buildah": "buildah",
    # Only recommended by buildah, but a storage that was made beside it cannot be used without it any more.
    "/usr/lib/podman/netavark": "netavark",
    "ldd": "libc-bin",
}
"""Program or file -> Debian package that has it."""

INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_LEAST = 1024
"""Everything here runs as one user, and a cluster of three nodes takes some forty of Linux' usual 128. Without one CRIU
saves nothing ("Can't create inotify")."""

GIB = 1 << 30
SPACE_STATE = 4 * GIB
SPACE_CACHE = 6 * GIB
SPACE_CACHE_COLD = 16 * GIB
"""Go's and uv's caches, sources and results of a first build, the training environment: measured, rounded up."""


def check(cache: Path, progress: Progress) -> None:
    """Make sure that this machine can run a cluster.

    :raises HostError: it cannot; the message says why and what to do
    """
    check_root()
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise HostError(f"this machine is {platform.system()} {platform.machine()}: Linux on x86_64 is needed")
    cgroups.version()
    raise_inotify(progress)
    install_packages(cache, progress)
    missing = gobuild.missing(cache)
    if missing:
        gobuild.find_go()
    check_space(cache, SPACE_CACHE_COLD if missing else SPACE_CACHE if not any_rootfs(cache) else GIB)
    check_space(STATE_ROOT, SPACE_STATE)


def raise_inotify(progress: Progress, limit: Path = INOTIFY) -> None:
    """More inotify instances per user, until the next boot, where there are few. Says so, also when it may not."""
    try:
        present = int(limit.read_text())
        if present < INOTIFY_LEAST:
            limit.write_text(str(INOTIFY_LEAST))
            progress(f"fs.inotify.max_user_instances: {present} until now, {INOTIFY_LEAST} until the next boot")
    except (OSError, ValueError) as error:
        progress(f"{limit} cannot be raised to {INOTIFY_LEAST}, several clusters at once may run out: {error}")


def any_rootfs(cache: Path) -> bool:
    return (cache / "rootfs").is_dir() and any((cache / "rootfs").iterdir())


def check_root() -> None:
    """:raises HostError: not root"""
    if os.geteuid() != 0:
        raise HostError("a cluster needs root (namespaces, mounts, control groups): run it again with sudo")


def check_space(path: Path, wanted: int) -> None:
    """:param wanted: bytes

    :raises HostError: less is free where `path` is or will be
    """
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < wanted:
        raise HostError(
            f"the disk is too full: {existing} has {free / GIB:.1f} GiB free, {wanted / GIB:.0f} GiB are needed for "
            f"{path}; free some, or point SINGULARITY_CACHE to another disk"
        )


def missing_packages(packages: Mapping[str, str] | None = None) -> list[str]:
    """Debian packages whose program or file is not here; of PACKAGES by default."""
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
    found = []
    for needed, package in (PACKAGES if packages is None else packages).items():
        present = Path(needed).exists() if needed.startswith("/") else shutil.which(needed, path=search) is not None
        if not present:
            found.append(package)
    return sorted(set(found))


def install_packages(cache: Path, progress: Progress, packages: Mapping[str, str] | None = None) -> None:
    """Install what is missing of `packages` (program or file -> Debian package; PACKAGES by default) with apt.

    :raises HostError: not Debian, or apt fails
    """
    missing = missing_packages(packages)
    if not missing:
        return
    names = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise HostError(f"programs are missing and this is not Debian: install what its packages {names} contain")
    progress(f"installing Debian packages: {names}")
    log = cache / "logs" / "apt.log"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    try:
        try:
            run_logged(install, log, env=env, timeout=900)
        except CommandError:
            run_logged(["apt-get", "update"], log, env=env, timeout=600)
            run_logged(install, log, env=env, timeout=900)
    except CommandError as error:
        raise HostError(f"apt-get could not install {names}: {error}") from error
    still = missing_packages(packages)
    if still:
        raise HostError(f"apt-get installed {names}, yet these still lack their programs: {' '.join(still)}")
