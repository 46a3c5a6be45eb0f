"""Holds what its arguments name (JSON: a list of [kind, ...]), all hard to restore, and says how it is when asked.

A file `ask-N` asks; the answer is `state-N`, one value for each thing held, the same before and after a move.
"""

import ctypes
import fcntl
import json
import mmap
import os
import socket
import sys
import time
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
SHARED, PRIVATE = mmap.MAP_SHARED, mmap.MAP_PRIVATE


def memfd(seals, flags, closed):
    """Content that was sealed, mapped to read."""
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.write(fd, b"abc" * 5000)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    found = mmap.mmap(fd, 15000, flags, mmap.PROT_READ) if flags else None
    if closed:
        os.close(fd)
    return lambda: [found and found[:6].decode(), None if closed else fcntl.fcntl(fd, fcntl.F_GET_SEALS)]


def death(signal):
    """The signal for the death of its parent."""
    libc.prctl(1, signal)
    return lambda: "alive"


def widow(listens, path_stays):
    """The accepted end of a connection whose other end is closed."""
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    path = f"/tmp/{listens}-{path_stays}.sock"
    server.bind(path)
    server.listen()
    client.connect(path)
    accepted, _ = server.accept()
    client.close()
    if not listens:
        server.close()
    if not path_stays:
        Path(path).unlink()
    return lambda: [accepted.recv(1).decode(), server.fileno() >= 0]


def opened(path, mode):
    """A file, read up to its 10th byte."""
    file = open(path, mode, buffering=0)  # noqa: SIM115
    file.seek(10)
    return lambda: [file.tell(), "" if mode == "ab" else os.pread(file.fileno(), 6, 0).decode()]


def appends(path):
    """Writes a line whenever it is asked."""
    file = open(path, "ab", buffering=0)  # noqa: SIM115
    return lambda: file.write(b"a line\n")


def mapped(path, access, closed):
    """A file, mapped."""
    file = open(path, "r+b" if access == mmap.ACCESS_WRITE else "rb")  # noqa: SIM115
    found = mmap.mmap(file.fileno(), 0, access=access)
    if closed:
        file.close()
    return lambda: [len(found), found[:6].decode()]


held = [globals()[kind](*given) for kind, *given in json.loads(sys.argv[1])]
number = 0
while True:
    if Path(f"ask-{number}").exists():
        Path(f"state-{number}.tmp").write_text(json.dumps([how() for how in held]))
        Path(f"state-{number}.tmp").rename(f"state-{number}")
        number += 1
    time.sleep(0.01)
