"""Checks that a restored rank is under the launcher's filter of system calls, and not merely under some filter.

A task may have several: the strictest verdict counts, so one of ours is enough, whatever the program has added. The
kernel shows the filters of a task to whoever has SYS_ADMIN on the machine. In a user namespace it shows none. There
the image says what CRIU is about to load, and only programs under no filter but ours have been dumped (`refusals`).
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...protocol import user_namespace
from ..errors import RestoreError
from ..ranks import process_scan, seccomp
from ..ranks.traced import Traced
from . import protobuf

FILE = "seccomp.img"
_BEGIN = protobuf.magic(0x64413049)
_FILTERS, _PROGRAM = 1, 1
"""Fields of seccomp_entry and of its seccomp_filter."""
_GET_FILTER = 0x420C
_LONGEST = 4096
"""Instructions of a filter, at most (BPF_MAXINSNS)."""
_ENDED = "ZX"


def check(rank: int, pids: Sequence[int], proc: Path = process_scan.PROC) -> None:
    """While restored processes stand still: check the filters of each of their threads.

    :param pids: all processes of the rank, as we see them
    :raises RestoreError: names the process
    """
    if user_namespace.inside():
        return
    for pid in pids:
        for task in sorted(int(entry.name) for entry in (proc / str(pid) / "task").iterdir()):
            if process_scan.stat_words(proc / str(pid) / "task" / str(task) / "stat")[0] in _ENDED:
                continue
            try:
                with Traced(task) as traced:
                    ours = any(known(program) for program in _programs(traced))
            except OSError as error:
                raise RestoreError(
                    f"rank {rank}: {process_scan.name(pid)}: its filter cannot be read: {error}"
                ) from None
            if not ours:
                raise RestoreError(_refused(rank, f"{process_scan.name(pid)} is under another filter of system calls"))


def check_image(rank: int, images: Path) -> None:
    """Before a restore in a user namespace: check all filters in the image.

    :raises RestoreError: one of them is not the launcher's, or the file cannot be read
    """
    path = images / FILE
    if not user_namespace.inside() or not path.exists():
        return  # without the file CRIU loads no filter, which `privileges.check` sees
    try:
        programs = list(_in_image(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise RestoreError(f"rank {rank}: {FILE} cannot be read: {error}") from None
    if not programs or not all(map(known, programs)):
        raise RestoreError(_refused(rank, f"{FILE} has another filter of system calls"))


def known(program: bytes) -> bool:
    """Whether a filter is one that a launcher has made."""
    return hashlib.sha256(program).hexdigest() in seccomp.KNOWN


def _refused(rank: int, what: str) -> str:
    return f"rank {rank}: {what}, which no rank may; the checkpoint was not made by this launcher, or has been changed"


def _programs(traced: Traced) -> Iterator[bytes]:
    """The filters of a task, the newest first, as the kernel keeps them. Raises OSError."""
    room = ctypes.create_string_buffer(_LONGEST * 8)
    number = 0
    while True:
        try:
            count = traced.ask(_GET_FILTER, ctypes.addressof(room), number)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        yield room.raw[: count * 8]
        number += 1


def _in_image(data: bytes) -> Iterator[bytes]:
    for entry in protobuf.messages(data, _BEGIN):
        for chain in protobuf.fields(entry):
            if chain.number == _FILTERS and isinstance(chain.value, bytes):
                for field in protobuf.fields(chain.value):
                    if field.number == _PROGRAM and isinstance(field.value, bytes):
                        yield field.value
