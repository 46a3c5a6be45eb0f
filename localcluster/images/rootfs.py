"""The two big folders that pods are made of: a Debian root file system and an environment with torch.

Both are made from public sources into the cache; a change of the recipe makes a new one beside the old.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..cache import Progress, digest, made_once, tree_digest
from ..errors import HostError
from ..shell import run, run_logged

SUITE = "forky"
"""The Debian release of the agent image."""
PACKAGES = ("busybox-static", "python3", "python3-venv", "ca-certificates", "libnet9", "libnl-3-200", "libprotobuf-c1")
"""The last three are libraries of CRIU, which is built here: see `criu`."""
CRIU_RECIPE = ("images/build-criu", "images/criu")
CHECKOUT = Path(__file__).resolve().parents[2]
UNUSED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
"""Emptied: nearly half of the files, which every node would import."""
SCRIPTS = Path("/usr/share/debootstrap/scripts")

TORCH_PACKAGES = ("torch==2.15.0", "numpy")
TORCH_PYTHON = "3.14"
"""The suite's Python."""
DEBIAN_12 = ("bookworm", ("python3",))
DEBIAN_12_PYTHON = "3.11"
"""For torches without wheels for the suite's Python."""
TORCH_PLATFORM = "x86_64-manylinux_2_28"
TORCH_MOUNT = "/opt/torch"
"""Where pods see it; the bytecode names its sources so."""
UV = "uv>=0.9"


def mirror(targets: str) -> str:
    """URL of the Debian mirror that this machine's own apt uses: the one that is known to be reachable from here.

    :param targets: lines `LABEL|SITE` of `apt-get indextargets`; the label is empty before the first update
    :raises HostError: there is none
    """
    sites = [line.split("|", 1) for line in targets.splitlines() if "|" in line]
    for label, site in sites:
        if label == "Debian" or (not label and site and not site.rstrip("/").endswith("-security")):
            return site
    raise HostError("apt knows no mirror of Debian: add one to /etc/apt/sources.list and run `apt-get update`")


def debian(cache: Path, progress: Progress, suite: str = SUITE, packages: Sequence[str] = PACKAGES) -> Path:
    """Root file system with CRIU, Python and venv: base of the images, and a place to run CRIU tests in.

    :param suite: another Debian release, for tests of the agent in images of other people
    :raises CommandError: debootstrap failed; the message names its log
    :raises HostError: this machine's apt knows no mirror of Debian
    """
    recipe = [criu_key()] if suite == SUITE else []
    key = digest([suite, *packages, "without", *UNUSED, *recipe])
    log = cache / "logs" / "debootstrap.log"

    def make(draft: Path) -> None:
        # A debootstrap older than the suite has no script for it; all of them are the one for sid.
        script: list[str | Path] = [] if (SCRIPTS / suite).exists() else [SCRIPTS / "sid"]
        source = mirror(run(["apt-get", "indextargets", "--format", "$(LABEL)|$(SITE)"]))
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", suite, draft, source, *script]
        # debootstrap mounts /proc in there: in a mount namespace of its own nothing stays mounted if it is killed.
        run_logged(["unshare", "--mount", "--propagation", "private", *command], log, timeout=1800)
        if recipe:
            shutil.copy(criu(cache, draft, source, progress), draft / "usr/sbin/criu")
        for folder in UNUSED:
            for entry in (draft / folder).iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()

    what = f"a Debian {suite} root file system (about 1 minute)"
    return made_once(cache / "rootfs" / f"{suite}-{key}", make, what=what, progress=progress)


def criu_key() -> str:
    """Changes with the version of CRIU, its patches, and the way it is built."""
    return tree_digest(CHECKOUT, [CHECKOUT / name for name in CRIU_RECIPE])


_BUILD_CRIU = """
mount --make-rprivate /
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
cd "$2/root"
mount -t proc proc proc
mount --rbind /dev dev
cp /etc/resolv.conf etc/resolv.conf
if [ -f "$4" ]; then mkdir -p etc/ssl/certs; cp "$4" etc/ssl/certs/ca-certificates.crt; fi
mkdir -p build made
mount --bind "$3/images" build
mount --bind "$2" made
CRIU_SOURCES=$5 chroot . /build/build-criu /build/criu /made/criu
"""


def criu(cache: Path, root: Path, source: str, progress: Progress) -> Path:
    """The program CRIU, built from its source with our patches.

    :param root: a fresh root file system of SUITE; it is not changed
    :param source: a mirror of Debian, which has CRIU's source
    :raises CommandError: the build failed; the message names its log
    """
    log = cache / "logs" / "criu.log"

    def make(draft: Path) -> None:
        words: list[str | Path] = [root, draft, CHECKOUT, "/etc/ssl/certs/ca-certificates.crt", source]
        run_logged(["unshare", "--mount", "sh", "-euc", _BUILD_CRIU, "sh", *words], log, timeout=1800)
        for name in ("upper", "work", "root"):
            shutil.rmtree(draft / name)

    what = "CRIU from its source (about 2 minutes)"
    return made_once(cache / "tools" / f"criu-{criu_key()}", make, what=what, progress=progress) / "criu"


def torch(
    cache: Path,
    progress: Progress,
    packages: Sequence[str] = TORCH_PACKAGES,
    root: Path | None = None,
    python: str = TORCH_PYTHON,
) -> Path:
    """Folder of site-packages with torch for the root file system's Python, 5 GB; not bound to where it lies.

    :param packages: another torch, for tests of the agent in it
    :param root: another root file system, whose Python is `python`
    :raises CommandError: uv failed; the message names its log
    """
    root = root or debian(cache, progress)
    key = digest([python, TORCH_PLATFORM, TORCH_MOUNT, *packages])
    log = cache / "logs" / "torch.log"

    def make(draft: Path) -> None:
        _install(cache, draft, packages, log, progress, python)
        # Pods mount it read-only: without bytecode every rank of every attempt compiles torch again, for seconds.
        compileall = ["python3", "-m", "compileall", "-q", "-j", "0", "-s", "/mnt", "-p", TORCH_MOUNT, "/mnt"]
        script = f'mount --bind "$1" "$2/mnt" && exec chroot "$2" {" ".join(compileall)}'
        run_logged(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", draft, root],
            log,
            timeout=1800,
        )

    what = f"an environment with {packages[0]} (5 GB, about 3 minutes and the download)"
    return made_once(cache / "torch" / f"{python}-{key}", make, what=what, progress=progress)


def beside_torch(cache: Path, packages: Sequence[str], progress: Progress) -> Path:
    """Folder of site-packages with `packages`, for the same Python, and for use together with the folder of torch.

    :raises CommandError: uv failed; the message names its log
    """
    key = digest([TORCH_PYTHON, TORCH_PLATFORM, *TORCH_PACKAGES, *packages])
    log = cache / "logs" / "beside-torch.log"

    def make(draft: Path) -> None:
        never = draft / "overrides.txt"
        never.write_text("torch; sys_platform == 'never'\n")
        _install(cache, draft, ["--overrides", str(never), *packages], log, progress)

    what = f"an environment with {', '.join(packages)}"
    return made_once(cache / "torch" / f"beside-{key}", make, what=what, progress=progress)


def _install(
    cache: Path, target: Path, arguments: Sequence[str], log: Path, progress: Progress, python: str = TORCH_PYTHON
) -> None:
    uv = _uv(cache, progress)
    words = ["--only-binary", ":all:", "--python-version", python, "--python-platform", TORCH_PLATFORM]
    command: list[str | Path] = [uv, "pip", "install", *words, "--target", target, *arguments]
    run_logged(command, log, env=_uv_environment(os.environ), timeout=3600)


def _uv(cache: Path, progress: Progress) -> Path:
    """uv installs for a Python that is not here, which pip does only half; it comes from PyPI."""

    def make(draft: Path) -> None:
        log = cache / "logs" / "uv.log"
        run_logged([sys.executable, "-m", "venv", draft / "venv"], log, timeout=120)
        pip: list[str | Path] = [
            draft / "venv/bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        run_logged([*pip, UV], log, timeout=600)

    # uv is one native program: that the rename breaks the environment around it does not matter.
    return made_once(cache / "tools" / f"uv-{digest([UV])}", make, what="uv", progress=progress) / "venv/bin/uv"


def _uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """uv brings its own certificates; behind an intercepting proxy it needs the machine's, as pip has them."""
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    result = dict(environ)
    if bundle.exists():
        result.setdefault("SSL_CERT_FILE", str(bundle))
    return result
