"""The signal that the rank's first process gets when its parent dies (PR_SET_PDEATHSIG): it is left out of its image.

That parent is process 1 of the slot, with which all processes end anyway. But CRIU, which has the process as its child
while it restores it, ends: the signal would come then. Other processes keep theirs. Fields: `criu-core.proto`,
`pstree.proto` of CRIU 4.2.
"""

from __future__ import annotations

from pathlib import Path

from . import files_image, protobuf
from .protobuf import Field, encode, fields

TREE = "pstree.img"
_TREE, _CORE = protobuf.magic(0x50273030), protobuf.magic(0x55053847)
_PID, _PARENT, _THREADS = 1, 2, 5
"""Fields of pstree_entry."""
_THREAD_CORE = 5
"""Field of core_entry."""
_SIGNAL = 8
"""Field of thread_core_entry."""


def leave_out(images: Path) -> None:
    """Rewrite the dumped rank's first process, each of its threads.

    :raises DumpError: the image is not as CRIU 4 writes it
    """
    threads: list[int] = []

    def look(data: bytes) -> bytes:
        threads.extend(first_threads(data))
        return data

    files_image.rewrite(images / TREE, look)
    for thread in threads:
        files_image.rewrite(images / f"core-{thread}.img", without_signal)


def first_threads(data: bytes) -> list[int]:
    """Threads of the first process in pstree.img. Pure. Raises ValueError."""
    for entry in protobuf.messages(data, _TREE):
        found = list(fields(entry))
        if not any(f.number == _PARENT and f.value for f in found):
            return [f.value for f in found if f.number in (_PID, _THREADS) and isinstance(f.value, int)]
    raise ValueError("it has no process")


def without_signal(data: bytes) -> bytes:
    """core-*.img of a thread that gets no signal. Pure. Raises ValueError."""

    def changed(field: Field) -> Field:
        if field.number != _THREAD_CORE:
            return field
        kept = [f for f in fields(files_image.of_bytes(field)) if f.number != _SIGNAL]
        return Field(field.number, field.kind, encode(kept))

    return protobuf.image(_CORE, (encode(map(changed, fields(entry))) for entry in protobuf.messages(data, _CORE)))
