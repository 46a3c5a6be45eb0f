"""CRIU's image files: a magic number, then protobuf messages, each after its length.

Of a message only its fields are understood here. Source: criu 4.2, `images/*.proto`; https://criu.org/Images.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields on the wire."""
_COMMON = 0x54564319
"""Every image of CRIU begins with it, and with one of its own kind."""


@dataclass(frozen=True)
class Field:
    """:param value: of a varint, or the bytes of anything else"""

    number: int
    kind: int
    value: int | bytes


def magic(own: int) -> bytes:
    """What an image of this kind begins with."""
    return struct.pack("<II", _COMMON, own)


def messages(data: bytes, begin: bytes) -> Iterator[bytes]:
    """The messages of an image that begins with the magic `begin`. Raises ValueError."""
    if data[: len(begin)] != begin:
        raise ValueError(f"it begins with {data[:8]!r}")
    at = len(begin)
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at) if at + 4 <= len(data) else (len(data),)
        at += 4 + size
        if at > len(data):
            raise ValueError("it ends within a message")
        yield data[at - size : at]


def image(begin: bytes, found: Iterable[bytes]) -> bytes:
    """The inverse of `messages`."""
    return b"".join((begin, *(part for data in found for part in (struct.pack("<I", len(data)), data))))


def fields(data: bytes) -> Iterator[Field]:
    """The fields of a message, in order. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield Field(number, kind, value)
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(kind, -1)
        if size < 0 or at + size > len(data):
            raise ValueError(f"field {number} of kind {kind} goes beyond its message")
        yield Field(number, kind, data[at : at + size])
        at += size


def encode(message: Iterable[Field]) -> bytes:
    """The inverse of `fields`, for varints of the shortest form."""
    out = bytearray()
    for field in message:
        out += _shortest(field.number << 3 | field.kind)
        if isinstance(field.value, int):
            out += _shortest(field.value)
            continue
        if field.kind == BYTES:
            out += _shortest(len(field.value))
        out += field.value
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")


def _shortest(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
