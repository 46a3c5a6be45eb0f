"""How ranks of the tests are run: in the training root file system, or by this Python where it has torch."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
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
