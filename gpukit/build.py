"""`python -m gpukit.build`: the folder that is carried to a machine with a GPU, and the same as .tar.gz.

run                  the one command
code/                singularity_proxy, gpukit
agent/               what the agent image puts into a pod
site/                the packages of the store, for the Python named; what the machine has wins
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("blake3", "fsspec", "numpy", "backports.zstd; python_version < '3.14'", "nvidia-ml-py")
"""What the store and `nvml` import beside the standard library. torch brings most of it."""
LIMIT = 60_000_000
"""Bytes of the archive."""
PLATFORM = "x86_64-manylinux_2_28"


class BuildError(Exception):
    """The kit cannot be made. The message says why and what to do."""


def build(target: Path, python: str, rootfs: Path | None, packages: bool = True) -> Path:
    """Make the folder `target` and, beside it, the archive, which is returned. Raises BuildError.

    :param python: version of the machine's Python, `3.12`
    :param rootfs: a root file system that has CRIU; None: this machine has it
    :param packages: with them; without, the machine has to have them
    """
    shutil.rmtree(target, ignore_errors=True)
    for package in ("proxy/singularity_proxy", "gpukit"):
        _copy(REPOSITORY / package, target / "code" / Path(package).name)
    shutil.copy(REPOSITORY / "gpukit/run", target / "run")
    collect_agent(rootfs, target / "agent")
    if packages:
        _packages(target / "site", python)
    archive = target.with_name(target.name + ".tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(target, arcname=target.name)
    if archive.stat().st_size > LIMIT:
        raise BuildError(f"{archive} has {archive.stat().st_size} bytes, more than {LIMIT}: leave packages out")
    return archive


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))


_COLLECT = (
    '"$0/images/collect-launcher" "$1/launcher"; '
    '"$0/images/add-code" "$0/proxy/singularity_proxy" "$0/singularity_train" "$1"'
)
_IN_ROOTFS = """
mount --make-rprivate /
mount -t tmpfs tmpfs "$3"
mkdir "$3/upper" "$3/work" "$3/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$3/upper,workdir=$3/work" "$3/root"
mount -t proc proc "$3/root/proc"
mkdir "$3/root/code" "$3/root/made"
mount --bind "$0" "$3/root/code"
mount --bind "$1" "$3/root/made"
chroot "$3/root" sh -ec "$4" /code /made
"""


def collect_agent(rootfs: Path | None, target: Path) -> None:
    """AGENT_DIR of a pod, by the scripts that make the agent image. Raises BuildError.

    :param rootfs: a root file system that has CRIU, busybox and Python; None: this machine has them
    """
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        argv = ["sh", "-ec", _COLLECT, str(REPOSITORY), str(target)]
        if rootfs is not None:
            words = [str(REPOSITORY), str(target), str(rootfs), folder, _COLLECT]
            argv = ["unshare", "--mount", "sh", "-ec", _IN_ROOTFS, *words]
        done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"the agent cannot be collected: {done.stderr.strip()[-400:]}")


def _packages(target: Path, python: str) -> None:
    """For that Python, whatever this one is: no pip is needed on the machine."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise BuildError(f"uv is not beside {sys.executable}, nor on PATH: make the environment with `make ready`")
    argv = [
        uv, "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--no-config", "--target", str(target),
        "--python-version", python, "--python-platform", PLATFORM, *_wanted(python),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"packages for Python {python} cannot be had: {done.stderr.strip()[-400:]}")
    (target / "PYTHON").write_text(python + "\n")


def _wanted(python: str) -> list[str]:
    new = tuple(map(int, python.split("."))) >= (3, 14)
    return [name.partition(";")[0] for name in PACKAGES if not (new and ";" in name)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpukit.build", description=__doc__)
    parser.add_argument("--target", type=Path, default=REPOSITORY / "build/gpu-kit")
    parser.add_argument("--python", default="3.12", help="version of the machine's Python, default %(default)s")
    parser.add_argument("--rootfs", type=Path, default=os.environ.get("SINGULARITY_TEST_ROOTFS"))
    given = parser.parse_args()
    try:
        archive = build(given.target.resolve(), given.python, given.rootfs)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{given.target} and {archive}, {archive.stat().st_size / 1e6:.1f} MB, for Python {given.python}: bash run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
