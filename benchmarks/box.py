"""A container without a launcher: any command in the training root file system, with torch at hand."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localcluster.prepare import Prepared

HOME = "/bench"
"""Working directory: `folder/bench` of this machine."""
_ENTER = r"""
set -eu
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=$BOX/upper,workdir=$BOX/overlay" "$BOX/root"
cd "$BOX/root"
mkdir -p bench opt/torch opt/more dev/shm proc tmp
mount -t proc proc proc
mount --bind /dev dev
mount --bind "$TORCH" opt/torch
if [ -n "$MORE" ]; then mount --bind "$MORE" opt/more; fi
mount --bind "$BOX/bench" bench
exec chroot . env -i -C /bench $ENVIRONMENT $COMMAND
"""


def enter(
    made: Prepared,
    folder: Path,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    more: Path | None = None,
    path: Sequence[str] = (),
    **streams: Any,
) -> subprocess.Popen[Any]:
    """Run `command` in there. It is pid 1, and dies with the process that is returned.

    :param folder: of this container alone; its `bench` is what the command can read and write
    :param more: another folder of site-packages
    :param path: more of PYTHONPATH, first
    """
    for name in ("upper", "overlay", "root", "bench"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    variables = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": ":".join([*path, "/opt/torch", *(["/opt/more"] if more else [])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **(environment or {}),
    }
    words = [f"{key}={value}" for key, value in variables.items()]
    if any(" " in word for word in [*words, *command]):
        raise ValueError(f"command = {command}, environment = {words}: words with spaces do not get through")
    return subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER],
        env={
            "PATH": os.environ["PATH"],
            "ROOTFS": str(made.rootfs),
            "TORCH": str(made.torch),
            "MORE": str(more or ""),
            "BOX": str(folder),
            "ENVIRONMENT": " ".join(words),
            "COMMAND": " ".join(command),
        },
        **streams,
    )


class Box:
    """`enter` with its output in a file."""

    def __init__(self, made: Prepared, folder: Path, command: Sequence[str], more: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / "output.log"
        with self._output.open("ab") as out:
            environment = {"HOME": "/tmp", "HF_HUB_OFFLINE": "1"}
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            self._process = enter(made, folder, command, environment, more, **streams)

    def log(self) -> str:
        """What it and those before it in the same folder have printed."""
        return self._output.read_text(errors="replace")

    def alive(self) -> bool:
        return self._process.poll() is None

    def terminate(self) -> None:
        """SIGTERM to the command."""
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for pid in path.read_text().split():
            os.kill(int(pid), signal.SIGTERM)

    def wait(self, timeout: float) -> int:
        """Its exit code. Raises RuntimeError when it does not end."""
        deadline = time.monotonic() + timeout
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"it did not end within {timeout:.0f} s:\n{self.log()[-2000:]}")
            time.sleep(0.02)
        return int(self._process.returncode)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
