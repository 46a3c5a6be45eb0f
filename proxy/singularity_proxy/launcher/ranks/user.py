"""The user that a rank runs as: the one its job's owner asks for. The container itself is root, for CRIU.

This module does what a container runtime would do for that user. It sets the primary group and further groups, HOME,
and the owner of the files that the platform has made for the rank. Files of the job's owner keep their owner.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...protocol import names
from ..errors import CommandError
from ..paths import Paths
from . import accounts, process_scan

_WANTED = re.compile(r"(\d*):(\d*):((?:\d+(?:,\d+)*)?)(:strict)?")
_LARGEST = (1 << 31) - 1
"""Kubernetes takes no more."""


@dataclass(frozen=True)
class User:
    """:param groups: the further ones, without `gid`"""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str = ""
    """"": the image's passwd does not know the uid."""
    home: str = "/"

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """HOME, USER, LOGNAME, where the job does not set them. `base`: the container's.

        HOME is always there: a container runtime sets the one of the container's user, who is not ours.
        """
        root = accounts.by_uid(0)
        runtimes = "/" if root is None else root.home
        found = {"HOME": self.home} if base.get("HOME", runtimes) == runtimes else {}
        if self.name:
            found |= {name: self.name for name in ("USER", "LOGNAME") if not base.get(name)}
        return found


def wanted(env: Mapping[str, str], largest: int = _LARGEST) -> User | None:
    """The user of names.ENV_RUN_AS; None: the container's. Raises CommandError.

    :param largest: id that there is in the container
    """
    text = env.get(names.ENV_RUN_AS)
    if not text:
        return None
    found = _WANTED.fullmatch(text)
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if found is None or any(number > _LARGEST for number in numbers):
        raise CommandError(
            f"{names.ENV_RUN_AS} = {text!r}: wanted uid:gid:group,group, with ':strict' or without, such as "
            "1000:1000:; it is made of the pod's securityContext, and not to be set by hand"
        )
    if any(number > largest for number in numbers):
        raise CommandError(
            f"{names.ENV_RUN_AS} = {text!r}: this pod has a user namespace of its own with ids up to {largest}. Give "
            "the program's user and groups such ids in the securityContext, or ask for privileges 'node'"
        )
    uid, gid, groups, strict = found.groups()
    further = {int(number) for number in groups.split(",") if number}
    known = accounts.by_uid(int(uid or 0))
    if known is None:
        return User(int(uid or 0), int(gid or 0), tuple(sorted(further)))
    primary = int(gid or known.gid)
    if not strict:  # supplementalGroupsPolicy Merge: those that the image's /etc/group says, too
        further |= {*accounts.groups(known.name)} - {primary}
    return User(known.uid, primary, tuple(sorted(further)), known.name, known.home)


def give(paths: Paths, rank: int, uid: int, gid: int) -> None:
    """Give a rank's user the files that the platform has made for the rank, and let it write the barrier page.

    The folders stay root's, so that no name in them that root reads and writes can become a link to something else.
    """
    if not (uid or gid):
        return
    for folder in (paths.run, paths.work(rank).parent, paths.images("any").parent):
        folder.chmod(0o755)  # a kubelet makes them for everybody to write
    log = paths.log(rank)
    log.touch()
    for path in (paths.control(rank), log):
        os.chown(path, uid, gid)
    # The page stays root's: a sidecar without capabilities must be able to open it once more.
    barrier = paths.run / names.PAGE_FILE
    os.chown(barrier, -1, gid)
    barrier.chmod(0o660)


def give_tree(paths: Paths, rank: int, user: User) -> None:
    """`give` with all that is in the rank's directory before its program runs: cwd, TMPDIR, the job's files, copied."""
    give(paths, rank, user.uid, user.gid)
    for path in paths.work(rank).rglob("*"):
        os.chown(path, user.uid, user.gid, follow_symlinks=False)


def ids(pids: Sequence[int], proc: Path = process_scan.PROC) -> dict[int, tuple[int, ...]]:
    """PID -> real, effective, saved uid, real, effective, saved gid; without those that have ended."""
    found = {}
    for pid in pids:
        try:
            lines = (proc / str(pid) / "status").read_text().splitlines()
        except OSError:
            continue
        words = {line.split(":")[0]: line.split()[1:4] for line in lines if line.startswith(("Uid:", "Gid:"))}
        found[pid] = tuple(int(word) for word in (*words["Uid"], *words["Gid"]))
    return found


def several(pids: Sequence[int], proc: Path = process_scan.PROC) -> str:
    """Which processes of one rank run as different users, or as two users at once; "" if all run as the same user.

    CRIU asks for the limits of each process (prlimit(2)). Without CAP_SYS_RESOURCE, which launchers do not have, the
    kernel allows that only if all ids of the process are the caller's real ids. CRIU has one real uid.
    """
    found = ids(pids, proc)
    users: dict[tuple[int, ...], int] = {}
    for pid, numbers in found.items():
        users.setdefault(numbers, pid)
    if len(users) == 1:
        (numbers,) = users
        if len({*numbers[:3]}) == len({*numbers[3:]}) == 1:
            return ""
    return " and ".join(
        f"{process_scan.name(pid, proc)} of uid {_said(n[:3])}, gid {_said(n[3:])}" for n, pid in users.items()
    )


def _said(numbers: Sequence[int]) -> str:
    """One number, or real/effective/saved."""
    return str(numbers[0]) if len({*numbers}) == 1 else "/".join(map(str, numbers))
