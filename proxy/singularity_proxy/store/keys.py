"""Keys of encryption: a data key for each job, wrapped by a key of the namespace.

    <job's folder>/keys/<data key>.<namespace's key>    the data key, wrapped: AES-256-GCM

The namespace's keys are the files of a folder, as a mounted Secret is one: 32 bytes each, also in base64. The file
whose name is last wraps; the others only unwrap. `NamespaceKeys` is what a service that keeps keys (KMS) would take the
place of: it wraps, it unwraps, and nobody else sees a key of the namespace.

A data key is used for all checkpoints of a job, so that content is stored once. A new one begins once the namespace has
a new key, and nothing that was encrypted with an older one is used again. Then the older ones are not needed any more
when the checkpoints from before are gone. `rewrap` instead goes on with the data keys that are there.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..errors import DamageError, KeyLostError
from ..protocol import names
from .backend import Backend
from .sealing import KEY_BYTES, DataKey

FOLDER: Final = "keys"
_NAME: Final = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{16})")
_NONCE: Final = 12
MOST_BYTES: Final = 4096
"""Of a wrapped key: a KMS' are longer than ours."""
log = logging.getLogger(__name__)


class NamespaceKeys:
    """:param folder: read at each use, for a Secret may change while it is mounted"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self) -> str:
        """Id of the key that wraps. Raises KeyLostError: there is none."""
        return next(reversed(self._read()))

    def wrap(self, data_key: DataKey) -> tuple[str, bytes]:
        """Id of the key that has wrapped it, and what it is now. Raises KeyLostError."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        name, key = self._read().popitem()
        nonce = os.urandom(_NONCE)
        return name, nonce + AESGCM(key).encrypt(nonce, data_key.key, _said_of(data_key.id))

    def unwrap(self, by: str, data_key: str, wrapped: bytes) -> DataKey:
        """The data key with this id. Raises KeyLostError (key `by` is not here), DamageError (it was altered)."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        keys = self._read()
        if by not in keys:
            raise KeyLostError(
                f"what was encrypted needs key {by} of the namespace, and {self.folder} has {', '.join(keys)}: put it "
                "back into the Secret, beside the others"
            )
        try:
            return DataKey(data_key, AESGCM(keys[by]).decrypt(wrapped[:_NONCE], wrapped[_NONCE:], _said_of(data_key)))
        except (InvalidTag, ValueError):
            raise DamageError(f"the wrapped data key {data_key}.{by} was altered") from None

    def _read(self) -> dict[str, bytes]:
        """By id, the one that wraps last. Raises KeyLostError."""
        found: dict[str, bytes] = {}
        try:
            files = sorted(p for p in self.folder.iterdir() if not p.name.startswith(".") and p.is_file())
            for file in files:
                key = _key(file.read_bytes())
                if key is None:
                    raise KeyLostError(f"{file}: must be {KEY_BYTES} random bytes, or their base64{_HOW}")
                found.pop(key_id(key), None)  # the last name counts
                found[key_id(key)] = key
        except OSError as error:
            raise KeyLostError(f"checkpoints are encrypted here, and {self.folder} cannot be read: {error}") from error
        if not found:
            raise KeyLostError(f"checkpoints are encrypted here, and the Secret at {self.folder} has no key{_HOW}")
        return found


_HOW = ": kubectl create secret generic NAME --from-literal=$(date +%F)=$(openssl rand -base64 32)"


def from_env(env: Mapping[str, str] = os.environ) -> NamespaceKeys | None:
    """None: nothing is encrypted here."""
    folder = env.get(names.ENV_STORE_KEYS)
    return NamespaceKeys(Path(folder)) if folder else None


def key_id(key: bytes) -> str:
    """What a key of a namespace is called; it says nothing of it."""
    return hashlib.sha256(b"singularity: key of a namespace" + key).hexdigest()[:16]


def is_wrapped(name: str) -> bool:
    """Whether a wrapped key may be called so."""
    return _NAME.fullmatch(name) is not None


class JobKeys:
    """Data keys of one job. Thread-safe. :param folder: of the job"""

    def __init__(self, backend: Backend, folder: str, ours: NamespaceKeys | None) -> None:
        self._backend, self._folder, self._ours = backend, folder, ours
        self._found: dict[str, DataKey] = {}

    def of(self, data_key: str) -> bytes:
        """The data key with this id. Raises KeyLostError, DamageError, StoreError."""
        if data_key not in self._found:
            self._found[data_key] = self._unwrapped(data_key)
        return self._found[data_key].key

    def writing(self) -> tuple[DataKey | None, frozenset[str]]:
        """The data key of an upload, and those whose content it may use again. None, and only "": it is not encrypted.

        Makes one if there is none. Pods that do so at the same time may each have their own: all can read both.
        Raises KeyLostError, StoreError.
        """
        if self._ours is None:
            return None, frozenset(("",))
        own = self._readable(self._ours.newest())
        if not own:
            made = DataKey(os.urandom(8).hex(), os.urandom(KEY_BYTES))
            self._found[made.id] = made
            self._write(made)
            own = sorted({made.id, *self._readable(self._ours.newest())})
        return DataKey(own[0], self.of(own[0])), frozenset(own)

    def _readable(self, by: str) -> list[str]:
        """Ids of data keys that this key of the namespace wraps, without those that somebody has altered."""
        found: list[str] = []
        for name in (name for name, other in self.wrapped() if other == by):
            with contextlib.suppress(DamageError):
                self.of(name)
                found.append(name)
        return found

    def rewrap(self) -> list[str]:
        """Wrap each data key by the namespace's newest key alone; ids of those for which that was to be done.

        Raises KeyLostError, DamageError, StoreError.
        """
        if self._ours is None:
            raise KeyLostError(f"{names.ENV_STORE_KEYS} is not set: it names the folder with the namespace's keys")
        newest, there = self._ours.newest(), self.wrapped()
        done: list[str] = []
        for name in sorted({name for name, _ in there}):
            if (name, newest) not in there:
                self._write(DataKey(name, self.of(name)))
            old = [by for other, by in there if other == name and by != newest]
            for by in old:
                self._backend.delete(f"{self._folder}/{FOLDER}/{name}.{by}")
            done += [name] if old else []
        return done

    def wrapped(self) -> list[tuple[str, str]]:
        """Ids of data key and of the namespace's key that wraps it, sorted. Raises StoreError."""
        found = (path.rsplit("/", 1)[1] for path in self._backend.find(f"{self._folder}/{FOLDER}"))
        return sorted((match[1], match[2]) for name in found if (match := _NAME.fullmatch(name)))

    def _write(self, data_key: DataKey) -> None:
        assert self._ours is not None
        by, wrapped = self._ours.wrap(data_key)
        self._backend.write(f"{self._folder}/{FOLDER}/{data_key.id}.{by}", wrapped)

    def _unwrapped(self, data_key: str) -> DataKey:
        by = [by for name, by in self.wrapped() if name == data_key]
        where = f"store {self._backend.url}: {self._folder}"
        if not by:
            raise DamageError(f"{where}/{FOLDER}: data key {data_key} is missing: what it encrypts cannot be read")
        if self._ours is None:
            raise KeyLostError(
                f"{where}: is encrypted, with key {by[0]} of the namespace, and no key is given here: switch "
                f"encryption on for this job; name the folder with the keys by {names.ENV_STORE_KEYS}; or ask in a "
                "pod, which has them (--where pod)"
            )
        lost: KeyLostError | None = None
        problem = ""
        for each in (*by, *by):  # a wire or a cache may have spoilt what came first
            try:
                data = self._backend.read(f"{self._folder}/{FOLDER}/{data_key}.{each}", MOST_BYTES)
                return self._ours.unwrap(each, data_key, data or b"")
            except KeyLostError as error:
                lost = KeyLostError(f"{where}: {error}")
            except DamageError as error:
                problem = f"{where}: {error}"
        # A file that somebody else has put there must not make a checkpoint count as damaged.
        raise lost or DamageError(problem)


def _key(data: bytes) -> bytes | None:
    if len(data) == KEY_BYTES:
        return data
    try:
        found = base64.b64decode(data.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == KEY_BYTES else None


def _said_of(data_key: str) -> bytes:
    return b"singularity: data key " + data_key.encode()
