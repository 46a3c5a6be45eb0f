"""Programs that start ranks themselves. The launcher takes torchrun's place (`launcher.torchrun`), no other's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

_PROGRAMS = {"accelerate-launch": "accelerate", "deepspeed": "deepspeed", "mpirun": "", "mpiexec": "", "horovodrun": ""}
_MODULES = {
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}
_HINTS = {
    "accelerate": "; what its options choose can stand in the environment, as ACCELERATE_MIXED_PRECISION=bf16 does, or "
    "in the script",
    "deepspeed": "; the script's own options, --deepspeed_config for one, stay",
}


def problem(argv: Sequence[str], ranks: int) -> str:
    """What is wrong with `argv` as the command of each of several ranks, to follow its name; "" if nothing is.

    In a job of one rank it may start what it likes: all of it lives in one slot.
    """
    found = _starter(argv) if ranks > 1 else None
    if found is None:
        return ""
    return (
        f"starts the ranks itself, so {ranks} ranks would each start a world of their own; name the script instead, as "
        "in ['python3', 'train.py']: one process per rank is started, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR "
        f"and MASTER_PORT (world_size: how many){_HINTS.get(found, '')}"
    )


def _starter(argv: Sequence[str]) -> str | None:
    """Key of `_HINTS`, or "" for another program that starts ranks; None: it does not."""
    name = PurePosixPath(argv[0]).name
    if name == "accelerate":
        return "accelerate" if "launch" in argv[1:2] else None
    if name.startswith("python"):
        options = [word for word in argv[1:4] if word != "-u"]
        return _MODULES.get(options[1]) if len(options) > 1 and options[0] == "-m" else None
    return _PROGRAMS.get(name)
