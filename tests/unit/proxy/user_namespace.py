"""A container in a user namespace, as a container runtime makes it for a pod with `hostUsers: false`.

Root of the namespace is a uid of the host that owns nothing. All that the container sees of the host's files is mounted
with its ids mapped: what is root's on the disk is root's in there, and stays root's on the disk.

`python user_namespace.py START POD ROOTFS FOLDERS PROGRAM...`: START is the first uid; FOLDERS, a JSON object of name
-> path, and the container's root file system are mounted below STAGED; PROGRAM runs as root of the namespace, with
namespaces of its own for mounts, processes, names, IPC and network. Nobody in there may make another user namespace,
as on nodes where AppArmor keeps them from processes without privilege.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path

STAGED = Path("/mnt")
UIDS = 65536
"""As many as a kubelet gives to each pod."""
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (1 << bit for bit in (17, 26, 27, 28, 29, 30))
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _CLONE, _RECURSIVE, _MOVE_FROM_FD = -100, 0x1000, 1, 0x8000, 4
_IDMAP = 0x100000
_PRIVATE, _REC = 1 << 18, 16384
_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: object) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def holder(start: int) -> int:
    """PID of a process in a new user namespace, which has a network namespace of its own with loopback up. It ends with
    this process."""
    ready_out, ready_in = os.pipe()
    go_out, go_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _check(libc.unshare(_NEWUSER), "user namespace")
        os.write(ready_in, b"x")
        os.read(go_out, 1)
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of the user forgets it
        _check(libc.unshare(_NEWNET), "network namespace")
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14s", b"lo", 1, b""))  # SIOCSIFFLAGS: up
        os.write(ready_in, b"x")
        signal.pause()
    os.read(ready_out, 1)
    for kind in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{kind}").write_text(f"0 {start} {UIDS}")
    os.write(go_in, b"x")
    os.read(ready_out, 1)
    for end in (ready_out, ready_in, go_out, go_in):
        os.close(end)
    return pid


def bind(source: Path, target: Path, namespace: int) -> None:
    """Mount `source` at `target` with the ids of the user namespace (a descriptor of it)."""
    tree = _check(libc.syscall(_OPEN_TREE, _AT_FDCWD, str(source).encode(), _CLONE), source)
    wanted = struct.pack("QQQQ", _IDMAP, 0, 0, namespace)
    _check(libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, wanted, len(wanted)), f"ids of {source}")
    words = (tree, b"", _AT_FDCWD, str(target).encode(), _MOVE_FROM_FD)
    _check(libc.syscall(_MOVE_MOUNT, *words), target)
    os.close(tree)


def stage(pod: Path, rootfs: str, folders: dict[str, str], namespace: int, start: int) -> None:
    """Mount below STAGED what the container needs of this machine: root in there cannot enter this user's folders.

    :param rootfs: folders, the uppermost first, with colons between them
    """
    lower = {f"lower/{number}": path for number, path in enumerate(rootfs.split(":"))}
    _check(libc.mount(b"tmpfs", str(STAGED).encode(), b"tmpfs", 0, b"mode=755"), STAGED)
    for name, source in {**lower, **folders}.items():
        target = STAGED / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        bind(Path(source), target, namespace)
    # What the container changes belongs to it: the overlay is this machine's, and not mapped.
    for name in ("upper", "overlay"):
        os.chown(pod / name, start, start)
    for name in ("own", "root"):
        (STAGED / name).mkdir()
    options = f"lowerdir={':'.join(str(STAGED / name) for name in lower)},upperdir={pod}/upper,workdir={pod}/overlay"
    _check(libc.mount(b"overlay", str(STAGED / "own").encode(), b"overlay", 0, options.encode()), "overlay")


def main() -> None:
    start, pod, rootfs = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    folders, program = json.loads(sys.argv[4]), sys.argv[5:]
    libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _check(libc.unshare(_NEWNS), "mount namespace")
    _check(libc.mount(b"none", b"/", None, _REC | _PRIVATE, None), "private mounts")
    pid = holder(start)
    namespaces = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")}
    stage(pod, rootfs, folders, namespaces["user"], start)
    for kind, flag in (("user", _NEWUSER), ("net", _NEWNET)):
        _check(libc.setns(namespaces[kind], flag), kind)
        os.close(namespaces[kind])
    # This process keeps the namespaces; whoever looks for the container finds one child.
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of the user forgets it
    Path("/proc/sys/user/max_user_namespaces").write_text("0")  # of this namespace and those below it
    _check(libc.unshare(_NEWNS | _NEWPID | _NEWIPC | _NEWUTS), "namespaces")
    child = os.fork()
    if child == 0:
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.execvp(program[0], program)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
