"""Part `cycle` once more, by root of a user namespace who is nobody on this machine: does the driver let it?

A pod with `hostUsers: false` is such a process. Not shown here: what the container toolkit mounts into such a pod.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from ..kit import Kit, PartError, Result, SkipPartError

NEW_USER = 0x10000000
FIRST, COUNT = 100_000, 65_536
"""uids of this machine that are those of the namespace."""
SPARE_S = 5.0


def run(kit: Kit, result: Result) -> None:
    answer = kit.folder / "answer.json"
    kit.folder.chmod(0o777)  # nobody writes there
    limit = str(max(1.0, kit.left - SPARE_S))
    argv = [sys.executable, "-m", "gpukit", "--part", "cycle", "--answer", str(answer), "--limit", limit]
    code = _as_nobody([*argv, *(["--fake"] if kit.fake else [])])
    try:
        found = Result.from_dict(json.loads(answer.read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        raise PartError(f"the process in the namespace ended with code {code} and no answer") from None
    result.checks, result.figures, result.notes = found.checks, found.figures, found.notes
    result.check("lock, checkpoint, restore and unlock in a user namespace", found.status == "passed", found.sentence)
    result.sentence = found.sentence


def _as_nobody(argv: list[str]) -> int:
    """Run a program as root of a user namespace of its own. Returns its exit code. Raises SkipPartError."""
    theirs, mine = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            failed = ctypes.CDLL(None, use_errno=True).unshare(NEW_USER)
            os.write(theirs[1], os.strerror(ctypes.get_errno()).encode() if failed else b"-")
            if failed or not os.read(mine[0], 1):
                os._exit(1)
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            os.execv(argv[0], argv)  # noqa: S606 - the interpreter itself
        finally:
            os._exit(127)
    said = os.read(theirs[0], 200)
    if said == b"-":
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {FIRST} {COUNT}\n")
        os.write(mine[1], b"-")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for end in (*theirs, *mine):
        os.close(end)
    if said != b"-":
        raise SkipPartError(f"this machine gives no user namespace: {said.decode() or 'it said nothing'}")
    return code
