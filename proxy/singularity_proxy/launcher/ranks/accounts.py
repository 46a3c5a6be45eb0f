"""The image's accounts, from its own files: the C library would load what the image's /etc/nsswitch.conf names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ETC = Path("/etc")


@dataclass(frozen=True)
class Account:
    """:param home: "/" where the image names none"""

    name: str
    uid: int
    gid: int
    home: str


def by_uid(uid: int, etc: Path | None = None) -> Account | None:
    """The entry of a user in the image's passwd; None: there is none."""
    for name, _, number, gid, _, home, *_ in _entries((etc or ETC) / "passwd", 6):
        if number.isdecimal() and gid.isdecimal() and int(number) == uid:
            return Account(name, uid, int(gid), home or "/")
    return None


def groups(name: str, etc: Path | None = None) -> set[int]:
    """The groups that the image's /etc/group counts a user among."""
    found = _entries((etc or ETC) / "group", 4)
    return {int(gid) for _, _, gid, members, *_ in found if gid.isdecimal() and name in members.split(",")}


def _entries(path: Path, least: int) -> Iterator[list[str]]:
    """The entries that have at least so many fields; nothing where there is no such file."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    yield from (words for line in lines if len(words := line.split(":")) >= least)
