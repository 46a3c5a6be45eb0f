"""An encrypted object of the store: AES-256-GCM in parts, each of which is read and verified alone. Pure functions.

    start   magic, id of the data key, salt, bytes of the first part as stored
    parts   each with 16 bytes that authenticate it: the first one, and those that it describes

Each object has a key of its own, which follows from data key and salt. So the number of the part is its nonce, and no
part can stand in for another. Whoever has no data key can neither read a part nor make one.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

MAGIC: Final = b"SGSEAL\x00\x01"
TAG: Final = 16
"""Bytes by which a part is longer than what it says."""
KEY_BYTES: Final = 32
_START: Final = struct.Struct("<8s8s16sI")
_NONCE: Final = 12
OVERHEAD: Final = _START.size + TAG
"""Bytes by which an object of one part is longer than what it says."""

KeyOf = Callable[[str], bytes]
"""Data key of this id. Raises StoreError."""


class SealError(ValueError):
    """The bytes were not written with this data key, or were altered. The message ends a sentence."""


def no_key(name: str) -> bytes:
    """A `KeyOf` of somebody who has none. Raises SealError."""
    raise SealError(f"is encrypted, with data key {name}")


class DataKey(NamedTuple):
    """`id`: 16 hex digits. What a job's content is encrypted with."""

    id: str
    key: bytes


class Cipher:
    """Of one object."""

    def __init__(self, key: bytes, salt: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # not before something is encrypted

        self._aead = AESGCM(hmac.digest(key, b"object" + salt, "sha256"))

    def encrypt(self, number: int, data: bytes | memoryview, start: bytes = b"") -> bytes:
        return self._aead.encrypt(number.to_bytes(_NONCE, "little"), data, start)

    def encrypt_into(self, number: int, data: memoryview, room: memoryview) -> memoryview:
        """The part in `room`, which does not overlap it: new memory for each costs as much as the encryption."""
        part = room[: len(data) + TAG]
        self._aead.encrypt_into(number.to_bytes(_NONCE, "little"), data, b"", part)
        return part

    def decrypt(self, number: int, data: bytes | memoryview, start: bytes = b"") -> bytes:
        """Raises SealError."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._aead.decrypt(number.to_bytes(_NONCE, "little"), data, start)
        except InvalidTag:
            raise SealError("was altered, or was not encrypted with its data key") from None


class Draft:
    """A new object."""

    def __init__(self, data_key: DataKey) -> None:
        self._id, self._salt = bytes.fromhex(data_key.id), os.urandom(16)
        self.cipher = Cipher(data_key.key, self._salt)

    def begin(self, first: bytes) -> bytes:
        """Start and first part."""
        start = _START.pack(MAGIC, self._id, self._salt, len(first) + TAG)
        return start + self.cipher.encrypt(0, first, start)


def sealed(data_key: DataKey | None, data: bytes) -> bytes:
    """An object of one part; without a key `data` itself."""
    return data if data_key is None else Draft(data_key).begin(data)


def key_id(data: bytes | memoryview) -> str:
    """Id of the data key of the object that begins so; "" if it is not encrypted."""
    if data[: len(MAGIC)] != MAGIC or len(data) < _START.size:
        return ""
    found: bytes = _START.unpack_from(data)[1]
    return found.hex()


def begin_size(data: bytes | memoryview) -> int:
    """Bytes of start and first part, as the start says; not verified. Only where `key_id` has found one."""
    size: int = _START.unpack_from(data)[3]
    return _START.size + size


def opened(data: bytes, key_of: KeyOf) -> tuple[bytes, Cipher | None]:
    """First part, and what decrypts the others: None, and `data` itself, if it is not encrypted.

    Raises SealError, and what `key_of` raises.
    """
    name = key_id(data)
    if not name:
        return data, None
    start, end = data[: _START.size], begin_size(data)
    if len(data) < end:
        raise SealError("ends too early")
    cipher = Cipher(key_of(name), _START.unpack_from(data)[2])
    return cipher.decrypt(0, memoryview(data)[_START.size : end], start), cipher
