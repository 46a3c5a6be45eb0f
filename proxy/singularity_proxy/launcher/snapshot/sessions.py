"""Sessions whose leader has ended, as every daemon has that forked twice: such a process joins the session of its rank.

CRIU would make a leader of that number, which ends once it has started its children. They would then belong to process
1 of the slot, and the next checkpoint would leave them behind. No terminal hangs on these sessions, and process groups
stay as they are.
"""

from __future__ import annotations

from pathlib import Path

from . import files_image, protobuf
from .protobuf import Field, encode, fields

TREE = "pstree.img"
_BEGIN = protobuf.magic(0x50273030)
_PID, _SESSION = 1, 4
"""Fields of pstree_entry."""


def join(images: Path) -> None:
    """Rewrite the dumped rank's processes.

    :raises DumpError: the image is not as CRIU 4 writes it
    """
    files_image.rewrite(images / TREE, joined)


def joined(data: bytes) -> bytes:
    """pstree.img without sessions that nobody leads. The first process leads one. Pure. Raises ValueError."""
    found = [list(fields(entry)) for entry in protobuf.messages(data, _BEGIN)]
    if not found:
        raise ValueError("it has no process")
    leaders = {f.value for entry in found for f in entry if f.number == _PID}
    own = next((f.value for f in found[0] if f.number == _SESSION), 0)

    def changed(field: Field) -> Field:
        lost = field.number == _SESSION and field.value not in leaders
        return Field(field.number, field.kind, own) if lost else field

    return protobuf.image(_BEGIN, (encode(map(changed, entry)) for entry in found))
