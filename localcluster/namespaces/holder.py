"""First process of a cluster's namespaces: everything of the cluster lives in them, and ends when this process ends.

Started as a program by `sandbox`: `python holder.py NAME ROOT KEEP...`. It makes PID, mount and network namespaces. It
puts its own /run, /var/log and /var/lib over the host's (kubelet, containerd and CNI have paths there that no flag
changes). It puts a writable layer over /etc (Kueue reads /etc/kueue), and binds ROOT and each KEEP back in. Then it
writes its host PID to ROOT/run/holder and sleeps. Orphans of the cluster become its children; SIGCHLD is ignored, so
the kernel reaps them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

COVERED = ("/run", "/var/log", "/var/lib")


def unshare(flags: int) -> None:
    """Python has os.unshare only since 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def private_view(keep: list[Path]) -> None:
    """Mounts of this namespace. `keep`: directories of the host that stay visible where they are."""
    # Slave: the host's mounts reach us and never the other way. Shared on top: kubelet's mounts reach containers.
    mount("--make-rslave", "/")
    mount("--make-rshared", "/")
    mount("-t", "proc", "proc", "/proc")
    covered = [path for path in keep if any(path.is_relative_to(cover) for cover in COVERED)]
    held = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in covered]
    for cover in COVERED:
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", cover)
    for layer in ("upper", "work"):
        Path("/run/etc", layer).mkdir(parents=True)
    mount("-t", "overlay", "-o", "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work", "overlay", "/etc")
    for path, descriptor in zip(covered, held, strict=True):
        path.mkdir(parents=True, exist_ok=True)
        # The path names the covering file system by now; only the descriptor still leads to the host's directory.
        mount("--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{descriptor}", str(path))
        os.close(descriptor)


def main() -> None:
    root, keep = Path(sys.argv[2]), [Path(argument) for argument in sys.argv[2:]]
    unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET)
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child:
        os.close(ready_write)
        if os.read(ready_read, 1) != b"+":
            sys.exit("the first process of the namespaces ended early")
        (root / "run").mkdir(parents=True, exist_ok=True)
        draft = root / "run" / "holder.tmp"
        draft.write_text(str(child))
        draft.rename(root / "run" / "holder")
        os._exit(0)
    os.close(ready_read)
    private_view(keep)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(ready_write, b"+")
    os.close(ready_write)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
