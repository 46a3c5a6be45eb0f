"""The folder that training pods see as /shared: who may write where."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

STORE = "checkpoints"
"""Default checkpoint store, below the shared folder."""
_ACL = "system.posix_acl_default"
_VERSION, _ALL, _NOBODY = 2, 7, 0xFFFFFFFF
_TAGS = (0x01, 0x04, 0x20)
"""Owner, group, others."""


def prepare(shared: Path) -> None:
    """Make the folder and the store in it, so that pods of any user may write to both. Idempotent.

    Pods of the process engine are root, those of the state engine are not, and the first one makes the store's folders.
    So the store has a default ACL: all folders and files below it are for everybody, whoever makes them (acl(5)).
    """
    shared.mkdir(parents=True, exist_ok=True)
    shared.chmod(0o1777)
    store = shared / STORE
    store.mkdir(exist_ok=True)
    store.chmod(0o777)
    try:
        os.setxattr(store, _ACL, default_acl())
    except OSError as error:
        # Without ACLs a namespace's jobs have to be of one engine. The store's own error then says so.
        if error.errno != errno.ENOTSUP:
            raise


def default_acl() -> bytes:
    """Everything for everybody, as the kernel takes it (linux/posix_acl_xattr.h): a version, then tag, bits, id."""
    entries = [struct.pack("<HHI", tag, _ALL, _NOBODY) for tag in _TAGS]
    return struct.pack("<I", _VERSION) + b"".join(entries)
