"""What processes had in common at the dump, given to CRIU, and shared again after the restore.

`page_images` leaves pages out that the base of a process has. CRIU looks for them in the folder `parent`, where it
expects an earlier dump of the same process. We give it the image of the base under the name of the process:

    parent -> shared                  made here: the store takes no links
    shared/pagemap-PID.img            copy of pagemap-BASE.img
    shared/pages-N.img                link to the pages of the base
    shared/parent -> shared           what the base has from its own base lies one folder deeper

CRIU keeps memory shared only between mappings with equal bounds. A heap that grew after the fork has others, and each
child would get a copy. So mappings are cut wherever one of the tree begins or ends; pagemaps name addresses only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ...protocol import decode
from ...protocol.decode import Unreadable
from ..errors import RestoreError
from . import page_images, protobuf
from .protobuf import BYTES, Field, encode, fields

FOLDER: Final = "shared"
DEEPEST: Final = 64
"""Bases of bases: two for each generation of forked processes."""
LARGEST: Final = 4 << 20
_BEGIN_MM: Final = protobuf.magic(0x57492820)
_MAPPINGS: Final = 14
"""Field of mm_entry."""
_START, _END, _FLAGS, _STATUS = 1, 2, 6, 7
"""Fields of vma_entry."""
_ANONYMOUS_PRIVATE, _GUARD = 1 << 9, 1 << 16
"""Of its status."""
_GROWS_DOWN, _HUGE = 0x100, 0x40000
"""Of its flags."""


def prepare(images: Path) -> None:
    """Make a rank's images what CRIU can restore with the sharing intact. Again does no harm. Raises RestoreError."""
    try:
        data = (images / page_images.SHARED).read_bytes()
    except FileNotFoundError:
        return  # of one process, or of an earlier version
    bases = _bases(data, images)
    try:
        _lay(images, bases)
        if bases:
            split(images)
    except (OSError, ValueError) as error:
        raise RestoreError(f"{images}: memory that processes share cannot be prepared: {error}") from None


def _bases(data: bytes, images: Path) -> dict[int, int]:
    found = decode.json_value(data, LARGEST)
    if isinstance(found, Unreadable):
        raise RestoreError(f"{images / page_images.SHARED} cannot be used: {found.why}")
    bases: dict[int, int] = {}
    for pid, base in found.items() if isinstance(found, dict) else [("", None)]:
        if not (pid.isascii() and pid.isdigit()) or type(base) is not int:
            raise RestoreError(f"{images / page_images.SHARED} cannot be used: {pid!r}: {base!r} is no pair of PIDs")
        bases[int(pid)] = base
    return bases


def _lay(images: Path, bases: Mapping[int, int]) -> None:
    shutil.rmtree(images / FOLDER, ignore_errors=True)
    (images / "parent").unlink(missing_ok=True)
    for pid in bases:
        where, up, at = images, "", pid
        for _ in range(DEEPEST):
            if at not in bases:
                break
            at = bases[at]
            _link(FOLDER, where / "parent")
            where, up = where / FOLDER, f"../{up}"
            where.mkdir(exist_ok=True)
            pagemap = (images / f"pagemap-{at}.img").read_bytes()
            (where / f"pagemap-{pid}.img").write_bytes(pagemap)
            pages = f"pages-{_pages_id(pagemap)}.img"
            _link(f"{up}{pages}", where / pages)
        else:
            raise ValueError(f"process {pid} has more than {DEEPEST} bases before it")


def _link(target: str, path: Path) -> None:
    if not os.path.lexists(path):
        path.symlink_to(target)


def _pages_id(pagemap: bytes) -> int:
    head = next(protobuf.messages(pagemap, page_images.BEGIN))
    found = [f.value for f in fields(head) if f.number == page_images.HEAD_PAGES_ID]
    if len(found) != 1 or not isinstance(found[0], int):
        raise ValueError("a pagemap image names no file of pages")
    return found[0]


# --- mappings ---------------------------------------------------------------------------------------------------------
def split(images: Path) -> int:
    """Cut the mappings of all processes at each other's bounds. Returns the number of cuts.

    Raises OSError, ValueError.
    """
    paths = sorted(images.glob("mm-*.img"))
    found = {path: [list(fields(entry)) for entry in protobuf.messages(path.read_bytes(), _BEGIN_MM)] for path in paths}
    bounds = sorted({at for entries in found.values() for entry in entries for at in _bounds(entry)})
    cuts = 0
    for path, entries in found.items():
        changed = [list(_cut(entry, bounds)) for entry in entries]
        more = sum(map(len, changed)) - sum(map(len, entries))
        if more:
            path.write_bytes(protobuf.image(_BEGIN_MM, map(encode, changed)))
        cuts += more
    return cuts


def _bounds(entry: Iterable[Field]) -> Iterator[int]:
    for mapping in entry:
        if mapping.number == _MAPPINGS and (found := _private_memory(mapping)):
            yield from found


def _private_memory(mapping: Field) -> tuple[int, int] | None:
    """Bounds of a mapping that fork shares by copy-on-write, and that may be cut anywhere."""
    if not isinstance(mapping.value, bytes):
        raise ValueError("a mapping is no message")
    known = {f.number: f.value for f in fields(mapping.value) if isinstance(f.value, int)}
    status, flags = known.get(_STATUS, 0), known.get(_FLAGS, 0)
    if not status & _ANONYMOUS_PRIVATE or status & _GUARD or flags & (_GROWS_DOWN | _HUGE):
        return None
    return known[_START], known[_END]


def _cut(entry: Iterable[Field], bounds: Sequence[int]) -> Iterator[Field]:
    for mapping in entry:
        found = _private_memory(mapping) if mapping.number == _MAPPINGS else None
        inside = [at for at in bounds if found[0] < at < found[1]] if found else []
        if not found or not inside or not isinstance(mapping.value, bytes):
            yield mapping
            continue
        parts = list(fields(mapping.value))
        for low, high in zip([found[0], *inside], [*inside, found[1]], strict=True):
            ends = {_START: low, _END: high}
            yield Field(_MAPPINGS, BYTES, encode(Field(f.number, f.kind, ends.get(f.number, f.value)) for f in parts))
