"""CRIU's images of a rank, rewritten between dump and restore; most of all the one of its open files.

Format: `fdinfo.proto` of CRIU 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import DumpError
from . import protobuf
from .protobuf import Field, encode, fields

FILES = "files.img"
BEGIN = protobuf.magic(0x56303138)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace an image file by what `change` makes of it.

    :raises DumpError: the image is not as CRIU 4 writes it
    """
    try:
        before = path.read_bytes()
        after = change(before)
        if after != before:
            path.write_bytes(after)
    except (ValueError, OSError) as error:
        raise DumpError(f"the image's {path.name} cannot be read: {error}; was it written by CRIU 4?") from None


def entries(data: bytes, kind: int) -> list[list[Field]]:
    """The fields of all files of one kind (its field of file_entry). Raises ValueError."""
    found = (list(fields(entry)) for entry in protobuf.messages(data, BEGIN))
    return [list(fields(of_bytes(f))) for entry in found for f in entry if f.number == kind]


def mapped(data: bytes, kind: int, change: Callable[[list[Field]], list[Field]]) -> bytes:
    """The image with `change` applied to the fields of all files of one kind. Raises ValueError."""
    found = (list(fields(entry)) for entry in protobuf.messages(data, BEGIN))
    return protobuf.image(BEGIN, (encode(_changed(f, kind, change) for f in entry) for entry in found))


def _changed(field: Field, kind: int, change: Callable[[list[Field]], list[Field]]) -> Field:
    if field.number != kind:
        return field
    return Field(field.number, field.kind, encode(change(list(fields(of_bytes(field))))))


def of_bytes(field: Field) -> bytes:
    """The content of a field that is no number. Raises ValueError."""
    if isinstance(field.value, int):
        raise ValueError(f"field {field.number} is no message")
    return field.value
