"""Containers for the launcher without Kubernetes: own mount, PID, IPC and UTS namespace, overlay root, pivot_root.

Close to what a container runtime does where it matters to CRIU: the launcher is pid 1, its root is the root of its
mount namespace, volumes are mounts. Pods share the network of the host, as containers of one node's host network do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import user_namespace
from fake_sidecar import FakeSidecar
from waits import LIMIT_S, cpu_s, until

from singularity_proxy.launcher import tools
from singularity_proxy.protocol import messages, names

REPOSITORY = Path(__file__).resolve().parents[3]
TRAIN = "/opt/torch"

_ENTER = r"""
set -eu
mount --make-rprivate /
if [ -n "$OWN" ]; then mount --bind "$POD/own" "$POD/root"
else mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=$POD/upper,workdir=$POD/overlay" "$POD/root"; fi
cd "$POD/root"
mkdir -p singularity opt/torch dev/shm proc tmp .old
mount -t proc proc proc
mount -t tmpfs tmpfs dev
for d in null zero full random urandom tty; do touch dev/$d; mount --bind /dev/$d dev/$d; done
touch dev/termination-log
mount --bind "$SAID" dev/termination-log
mkdir dev/shm dev/pts dev/mqueue
mount -t tmpfs -o size=1g tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t mqueue mqueue dev/mqueue
if [ -n "$TORCH" ]; then mount --bind "$TORCH" opt/torch; mount -o remount,bind,ro opt/torch; fi
mount --rbind "$VOLUMES" singularity
mount --bind "$AGENT" singularity/agent
mount -o remount,bind,ro singularity/agent
if [ -n "$SHARED" ]; then mkdir -p shared; mount --bind "$SHARED" shared; fi
for pair in $MOUNTS; do
  from=${pair%%:*} to=./${pair#*:}
  if [ -d "$from" ]; then mkdir -p "$to"; else mkdir -p "${to%/*}"; touch "$to"; fi
  mount --bind "$from" "$to"
  mount -o remount,bind,ro "$to"
done
if [ -n "$CGROUP" ]; then
  echo 0 > "$CGROUP/cgroup.procs"
  mount -t tmpfs tmpfs sys; mkdir -p sys/fs/cgroup/memory; mount --bind "$CGROUP" sys/fs/cgroup/memory
fi
if [ -n "$SMALL" ]; then mount --bind usr usr; fi
hostname "$NAME"
pivot_root . .old
cd /
umount -l /.old
exec env -i $ENVIRONMENT "$SETPRIV" --bounding-set=-all$CAPABILITIES --inh-caps=-all $USER_WORDS "$LAUNCHER"
"""
_GIVEN = (
    "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod audit_write "
    "setfcap sys_admin net_admin sys_time sys_ptrace"
)
"""What a container runtime gives by default, and what the training container adds (`kueue_integration.pod`)."""


_AS = "--reuid={0} --regid={0} --clear-groups --no-new-privs"


def install_agent(lib: Path) -> None:
    """The folder that ranks import from: the injected package and sitecustomize beside it."""
    package = lib / "_singularity"
    for part in ("agent", "protocol"):
        ignored = shutil.ignore_patterns("__pycache__", "sitecustomize.py")
        shutil.copytree(REPOSITORY / "proxy/singularity_proxy" / part, package / part, ignore=ignored)
    (package / "__init__.py").write_text("")
    library = lib / "singularity_train"
    shutil.copytree(REPOSITORY / "singularity_train", library, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "proxy/singularity_proxy/agent/sitecustomize.py", lib / "sitecustomize.py")


def seal(agent: Path) -> None:
    """List the launcher's files anew, as if an agent image had been built with those that a test has changed."""
    launcher = agent / "launcher"
    digests = launcher / "digests"
    files = sorted(path for path in launcher.rglob("*") if path.is_file() and path != digests)
    digests.unlink()  # it may be a link to another agent's
    lines = (f"{hashlib.sha256(each.read_bytes()).hexdigest()}  ./{each.relative_to(launcher)}\n" for each in files)
    digests.write_text("".join(lines))


def stand_in(agent: Path, script: str) -> None:
    """Put `script` in the place of the loader, which starts all that the launcher runs; that one becomes `loader`."""
    loader = agent / "launcher" / tools.LOADER
    loader.rename(loader.with_name("loader"))
    loader.write_text(script)
    loader.chmod(0o755)
    seal(agent)


class Pod:
    """One container with its sidecar. Volumes lie in `folder/singularity`.

    :param plan: what a fake sidecar tells the launcher; None: there is a real one
    :param criu: what the agent image installs (`collect_agent`)
    :param uid: as a pod of the state engine has it: no root, no capability, no new privilege
    :param mounts: path in the container -> file or folder that is mounted there, read-only
    :param uids: first of 65,536 uids of the host that are the container's, as in a pod with `hostUsers: false`. None:
        its root is the host's
    :param small: a dump has little to look through: no connections of the host, and /usr is a volume
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
        small: bool = False,
        uid: int | None = None,
        mounts: Mapping[str, Path] | None = None,
        uids: int | None = None,
    ) -> None:
        self.folder = folder
        self.name = folder.name
        volumes = (f"singularity/{name}" for name in ("agent", "run", "work", "images", "source"))
        for name in ("upper", "overlay", "root", *volumes):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.volumes = folder / "singularity"
        assert criu is not None, "a pod without the launcher's tools does not start"
        self._agent, self._rootfs, self._torch, self._shared, self._cgroup = criu, rootfs, torch, shared, cgroup
        self._small, self._uid, self._mounts, self.uids = small, uid, mounts or {}, uids
        self._env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": f"/singularity/agent/lib:{TRAIN}",
            "PYTHONDONTWRITEBYTECODE": "1",
            names.ENV_COMMAND: json.dumps(command, separators=(",", ":")),
            names.ENV_POD: self.name,
            **(env or {}),
        }
        self._fake = None if plan is None else FakeSidecar(self.volumes / "run", plan.world_size, plan)
        if uid:  # kubelets make volumes for everybody to write; the sidecar has the same user as the launcher
            for path in (*self.volumes.iterdir(), *(self.volumes / "run").rglob("*")):
                path.chmod(0o777)
        self.process: subprocess.Popen[bytes] | None = None
        self.output = folder / "stdout.log"

    @property
    def sidecar(self) -> FakeSidecar:
        assert self._fake is not None
        return self._fake

    def start(self) -> Pod:
        words_of_environment = [f"{key}={value}" for key, value in self._env.items()]
        assert not any(" " in word for word in words_of_environment), "the harness passes the environment by words"
        said = self.folder / "said"
        said.touch()
        said.chmod(0o666)
        folders = {"AGENT": self._agent, "SAID": said, "VOLUMES": self.volumes}
        folders |= {key: path for key, path in (("TORCH", self._torch), ("SHARED", self._shared)) if path is not None}
        mounts = {f"mounts/{number}": source for number, source in enumerate(self._mounts.values())}
        argv = [
            "unshare",
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            *(["--net"] if self._small else []),
            "--fork",
            "--kill-child",
        ]
        if self.uids is not None:
            words = [str(self.uids), str(self.folder), str(self._rootfs)]
            given = json.dumps({name: str(path) for name, path in (folders | mounts).items()})
            argv = [sys.executable, str(Path(user_namespace.__file__)), *words, given]
            folders, mounts = ({name: user_namespace.STAGED / name for name in each} for each in (folders, mounts))
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*argv, "sh", "-c", _ENTER],
                env={
                    "PATH": os.environ["PATH"],
                    "ROOTFS": str(self._rootfs),
                    "OWN": "" if self.uids is None else "1",
                    "TORCH": "",
                    "SHARED": "",
                    **{name: str(path) for name, path in folders.items()},
                    "CGROUP": str(self._cgroup or ""),
                    "MOUNTS": " ".join(map("{}:{}".format, mounts.values(), self._mounts)),
                    "POD": str(self.folder if self.uids is None else user_namespace.STAGED),
                    "SMALL": "1" if self._small else "",
                    "NAME": self.name,
                    "ENVIRONMENT": " ".join(words_of_environment),
                    "CAPABILITIES": "" if self._uid else "".join(f",+{name}" for name in _GIVEN.split()),
                    "USER_WORDS": _AS.format(self._uid) if self._uid else "",
                    "SETPRIV": "/usr/bin/setpriv",
                    "LAUNCHER": f"{names.AGENT_DIR}/launcher/start",
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
        return int(until(lambda: path.read_text().split(), "the container has a process")[0])

    def processes(self) -> list[Path]:
        """`/proc/PID`, as this process sees them, of all processes of the pod."""
        namespace = Path(f"/proc/{self.launcher_pid()}/ns/uts").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # ended meanwhile
                if entry.name.isdigit() and (entry / "ns/uts").readlink() == namespace:
                    found.append(entry)
        return found

    def ranks_mib(self) -> float:
        """Memory of all processes in slots, shared pages counted once (`Pss`)."""
        outside = Path(f"/proc/{self.launcher_pid()}/ns/pid").readlink()
        total = 0
        for entry in self.processes():
            with contextlib.suppress(OSError):
                if (entry / "ns/pid").readlink() != outside:
                    found = re.search(r"^Pss:\s+(\d+) kB", (entry / "smaps_rollup").read_text(), re.MULTILINE)
                    total += int(found[1]) if found else 0
        return total / 1024

    def terminate(self) -> None:
        """What the kubelet does first when the pod is deleted."""
        os.kill(self.launcher_pid(), signal.SIGTERM)

    def cpu_s(self) -> int:
        """CPU time of all its processes, as a sign that it does not hang."""
        try:
            return cpu_s(self.processes()) if self.alive() else 0
        except OSError:  # it ends just now
            return 0

    def wait(self, timeout: float = LIMIT_S) -> int:
        """Exit code of the launcher, after all that is left to do.

        :param timeout: seconds in which it uses no processor
        """
        ended = lambda: not self.alive()  # noqa: E731
        until(ended, f"{self.name} has ended", limit_s=timeout, progress=self.cpu_s, detail=self.log)
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def delete(self) -> None:
        """Kill what is left and remove the container's own files; volumes stay for the test to look at."""
        if self.process is not None and self.process.poll() is None:
            if self._uid:  # the kernel forgets --kill-child where a process changes its user
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.launcher_pid(), signal.SIGKILL)
            self.process.kill()
            self.process.wait(120)
        if self._fake is not None:
            self._fake.close()

    def wait_event(self, *kinds: str, timeout: float = LIMIT_S, skip: int = 0) -> messages.LauncherEvent:
        try:
            return self.sidecar.wait_event(*kinds, timeout=timeout, alive=self.alive, skip=skip, progress=self.cpu_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- {self.name} ---\n{self.log()}") from None

    def wait_event_after_end(self, kind: str) -> messages.LauncherEvent:
        """The launcher has ended: what it said before."""
        return next(event for event in self.sidecar.events if event.kind == kind)

    def log(self) -> str:
        return self.output.read_text(errors="replace")

    def said(self) -> messages.LastWords:
        """What the pod's status would have as the message of the container's end."""
        return messages.from_json(messages.LastWords, (self.folder / "said").read_text(), messages.LAST_WORDS_BYTES)

    def image(self, checkpoint_id: str, rank: int) -> Path:
        return self.volumes / "images" / checkpoint_id / f"rank-{rank}"

    def bring(self, source: Pod, checkpoint_id: str, rank: int) -> None:
        """What store and sidecar do between two attempts."""
        target = self.image(checkpoint_id, rank)
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = ["cp", "-a", "--sparse=always", str(source.image(checkpoint_id, rank)), str(target)]
        copied = subprocess.run(copy, stderr=subprocess.PIPE, text=True, check=False)
        assert copied.returncode == 0, copied.stderr

    def forget(self, checkpoint_id: str) -> None:
        """The checkpoint is in the store: its images, 1.3 GB of a rank with torch, are not needed here any more."""
        shutil.rmtree(self.volumes / "images" / checkpoint_id)

    def work(self, rank: int) -> Path:
        return self.volumes / "work" / f"rank-{rank}"
