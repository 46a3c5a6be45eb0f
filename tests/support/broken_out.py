"""What a process that has broken out of everything inside its container tries to do to the node."""

from __future__ import annotations

import json
import subprocess
import sys

ATTEMPTS = r"""
import ctypes, errno, json, os, sys

libc = ctypes.CDLL(None, use_errno=True)

def said(result):
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]

def core_pattern():
    with open("/proc/sys/kernel/core_pattern", "r+") as file:
        held = file.read()
        file.seek(0)
        file.write(held)

def disk():
    os.mknod("/tmp/disk", 0o600 | 0o060000, os.makedev(7, 0))
    os.close(os.open("/tmp/disk", os.O_RDONLY | os.O_NONBLOCK))

def outcome(attempt):
    try:
        attempt()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]

print(json.dumps({
    "write core_pattern": outcome(core_pattern),
    "open a disk of the node": outcome(disk),
    "set the clock": said(libc.syscall(164, 0, 0)),
    "swap on a file that is not there": said(libc.swapon(b"/nonexistent", 0)),
    "read the kernel's log": said(libc.klogctl(10, None, 0)),
    "watch a whole file system": said(libc.syscall(300, 0, 0)),
}))
"""
"""What root of a node may do. Nothing is changed: what is written is what was there."""
REFUSED = {"EPERM", "EACCES"}
_BECOMES = "import ctypes, errno, json, os; os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)"


def tried(launcher: int, own_users: bool) -> dict[str, str]:
    """What comes of ATTEMPTS for a process in the container of this launcher, with every capability that there is in
    there, under no filter, and with a /proc of its own without masks.

    :param launcher: its PID
    :param own_users: the container has a user namespace
    """
    namespaces = ["-m", "-p", "-n", "-u", "-i", *(["-U"] if own_users else [])]
    program = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "python3", "-c", ATTEMPTS]
    return _said(["nsenter", "-t", str(launcher), *namespaces, "--", *program])


def tried_by_nobody() -> dict[str, str]:
    """What comes of them for an unprivileged process of this machine."""
    return _said([sys.executable, "-c", _BECOMES + ATTEMPTS])


def _said(words: list[str]) -> dict[str, str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result
