"""Containers for the launcher without Kubernetes: own mount, PID and UTS namespace, overlay root, pivot_root.

Close to what a container runtime does where it matters to CRIU: the launcher is pid 1, its root is the root of its
mount namespace, volumes are mounts. Pods share the network of the host, as containers of one node's host network do.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from fake_sidecar import FakeSidecar

from proxy.protocol import messages, names

REPOSITORY = Path(__file__).resolve().parents[3]
TRAIN = "/opt/torch"

_ENTER = r"""
set -eu
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=$POD/upper,workdir=$POD/overlay" "$POD/root"
cd "$POD/root"
mkdir -p singularity opt/torch dev/shm proc tmp .old
mount -t proc proc proc
mount -t tmpfs tmpfs dev
for d in null zero full random urandom tty; do touch dev/$d; mount --bind /dev/$d dev/$d; done
mkdir dev/shm
mount -t tmpfs -o size=1g tmpfs dev/shm
if [ -n "$TORCH" ]; then mount --bind "$TORCH" opt/torch; mount -o remount,bind,ro opt/torch; fi
mount --rbind "$POD/singularity" singularity
if [ -n "$SHARED" ]; then mkdir -p shared; mount --bind "$SHARED" shared; fi
if [ -n "$CGROUP" ]; then
  echo 0 > "$CGROUP/cgroup.procs"
  mount -t tmpfs tmpfs sys; mkdir -p sys/fs/cgroup/memory; mount --bind "$CGROUP" sys/fs/cgroup/memory
fi
hostname "$NAME"
pivot_root . .old
cd /
umount -l /.old
exec env -i $ENVIRONMENT python3 -m _singularity.launcher
"""


def install_agent(lib: Path) -> None:
    """What the agent image's installer does: the injected package and sitecustomize beside it."""
    package = lib / "_singularity"
    for part in ("agent", "launcher", "protocol"):
        shutil.copytree(
            REPOSITORY / "proxy" / part,
            package / part,
            ignore=shutil.ignore_patterns("__pycache__", "sitecustomize.py"),
        )
    (package / "__init__.py").write_text("")
    shutil.copy(REPOSITORY / "proxy/agent/sitecustomize.py", lib / "sitecustomize.py")


def collect_criu(rootfs: Path, target: Path) -> None:
    """CRIU with its libraries, by the script that puts them into the agent image."""
    script = REPOSITORY / "images/collect-criu"
    mounts = 'mount --make-rprivate /; mount --bind "$1" "$0/mnt"; chroot "$0" sh -s /mnt'
    target.mkdir(parents=True)
    with script.open("rb") as text:
        subprocess.run(["unshare", "--mount", "sh", "-ec", mounts, str(rootfs), str(target)], stdin=text, check=True)


class Pod:
    """One container with its sidecar. Volumes lie in `folder/singularity`.

    :param plan: what a fake sidecar tells the launcher; None: there is a real one
    """

    def __init__(
        self,
        folder: Path,
        rootfs: Path,
        torch: Path | None,
        plan: messages.Plan | None,
        command: list[str],
        env: dict[str, str] | None = None,
        shared: Path | None = None,
        criu: Path | None = None,
        cgroup: Path | None = None,
    ) -> None:
        self.folder = folder
        self.name = folder.name
        for name in ("upper", "overlay", "root", *(f"singularity/{d}" for d in ("run", "work", "images", "source"))):
            (folder / name).mkdir(parents=True, exist_ok=True)
        install_agent(folder / "singularity/agent/lib")
        self.volumes = folder / "singularity"
        if criu is not None:
            shutil.copytree(criu, self.volumes / "agent/criu")
        self._rootfs, self._torch, self._shared, self._cgroup = rootfs, torch, shared, cgroup
        self._env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": f"/singularity/agent/lib:{TRAIN}",
            "PYTHONDONTWRITEBYTECODE": "1",
            names.ENV_COMMAND: json.dumps(command, separators=(",", ":")),
            names.ENV_POD: self.name,
            **(env or {}),
        }
        self._fake = None if plan is None else FakeSidecar(self.volumes / "run", plan.world_size, plan)
        self.process: subprocess.Popen[bytes] | None = None
        self.output = folder / "stdout.log"

    @property
    def sidecar(self) -> FakeSidecar:
        assert self._fake is not None
        return self._fake

    def start(self) -> Pod:
        words = [f"{key}={value}" for key, value in self._env.items()]
        assert not any(" " in word for word in words), "the harness passes the environment by words"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "sh", "-c", _ENTER],
                env={
                    "PATH": os.environ["PATH"],
                    "ROOTFS": str(self._rootfs),
                    "TORCH": str(self._torch or ""),
                    "SHARED": str(self._shared or ""),
                    "CGROUP": str(self._cgroup or ""),
                    "POD": str(self.folder),
                    "NAME": self.name,
                    "ENVIRONMENT": " ".join(words),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return self

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launcher_pid(self) -> int:
        """PID of the launcher as this process sees it."""
        assert self.process is not None
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + 10
        while not (children := path.read_text().split()):
            assert time.monotonic() < deadline, "the container has no process"
            time.sleep(0.01)
        return int(children[0])

    def terminate(self) -> None:
        """What the kubelet does first when the pod is deleted."""
        os.kill(self.launcher_pid(), signal.SIGTERM)

    def wait(self, timeout: float = 60) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def delete(self) -> None:
        """Kill what is left and remove the container's own files; volumes stay for the test to look at."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        if self._fake is not None:
            self._fake.close()

    def wait_event(self, *kinds: str, timeout: float = 120, skip: int = 0) -> messages.LauncherEvent:
        try:
            return self.sidecar.wait_event(*kinds, timeout=timeout, alive=self.alive, skip=skip)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- {self.name} ---\n{self.log()}") from None

    def wait_event_after_end(self, kind: str) -> messages.LauncherEvent:
        """The launcher has ended: what it said before."""
        return next(event for event in self.sidecar.events if event.kind == kind)

    def log(self) -> str:
        return self.output.read_text(errors="replace")

    def image(self, checkpoint_id: str, rank: int) -> Path:
        return self.volumes / "images" / checkpoint_id / f"rank-{rank}"

    def bring(self, source: Pod, checkpoint_id: str, rank: int) -> None:
        """What store and sidecar do between two attempts."""
        target = self.image(checkpoint_id, rank)
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--sparse=always", str(source.image(checkpoint_id, rank)), str(target)], check=True)

    def work(self, rank: int) -> Path:
        return self.volumes / "work" / f"rank-{rank}"
