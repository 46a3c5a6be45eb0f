"""Real ranks over gloo: a nursery process with torch forks them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
ENTER = r"""
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
mkdir -p /mnt/root/opt/torch /mnt/root/dev /mnt/root/proc "/mnt/root$FOLDER" "/mnt/root$REPO"
mount --bind "$TORCH" /mnt/root/opt/torch
mount --bind "$REPO" "/mnt/root$REPO"
mount --bind /dev /mnt/root/dev
mount --bind /proc /mnt/root/proc
mount --rbind "$FOLDER" "/mnt/root$FOLDER"
exec chroot /mnt/root python3 "$@"
"""
Run = Callable[..., list[dict[str, Any]]]


def command(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Of a Python with torch that sees `folder`, and its environment; skips where there is none."""
    env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    rootfs, torch = (os.environ.get(f"SINGULARITY_TEST_{name}", "") for name in ("ROOTFS", "TORCH"))
    if rootfs and torch and os.geteuid() == 0:
        env |= {"ROOTFS": rootfs, "TORCH": torch, "FOLDER": str(folder), "REPO": str(ROOT)}
        env["PYTHONPATH"] = f"{ROOT}:{HERE}:/opt/torch"
        return ["unshare", "--mount", "sh", "-ec", ENTER, "sh"], env
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch: SINGULARITY_TEST_ROOTFS and SINGULARITY_TEST_TORCH are not set, or this is not root")
    return [sys.executable], {**env, "PYTHONPATH": f"{ROOT}:{HERE}"}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the nursery sees too."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def run(shared: Path) -> Iterator[Run]:
    """`run(world, program, **arguments)`: what each rank returned, or raised. A rank that raises fails the test, unless
    `raises` is true."""
    words, env = command(shared)
    log = shared / "log"
    with log.open("wb") as errors:
        nursery = subprocess.Popen(
            [*words, str(HERE / "nursery.py"), str(shared)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert nursery.stdin is not None and nursery.stdout is not None

        def make(world: int, program: str, raises: bool = False, **arguments: Any) -> list[dict[str, Any]]:
            nursery.stdin.write(json.dumps({"world": world, "program": program, "arguments": arguments}) + "\n")
            nursery.stdin.flush()
            line = nursery.stdout.readline()
            assert line, log.read_text(errors="replace")
            found = json.loads(line)
            bad = [each for each in found if each["code"]]
            assert raises or not bad, "\n".join(each.get("trace", str(each)) for each in bad)
            return found if raises else [each["returned"] for each in found]

        yield make
        nursery.kill()  # it has no more ranks, and nothing of its own
        nursery.wait(30)


@pytest.fixture
def root(shared: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Of the checkpoints of one test."""
    path = shared / request.node.name.replace("/", "-")
    yield path
    shutil.rmtree(path, ignore_errors=True)
