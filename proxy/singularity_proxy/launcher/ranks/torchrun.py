"""`torchrun [options] script.py ...`: the launcher takes torchrun's place, and starts the script once per rank.

So each rank has a slot of its own, can be saved at a step boundary and may move by itself. Kueue and the controller do
the other work of torchrun here: rendezvous, restarts, membership.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...protocol import names
from ..errors import CommandError

_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_VIRTUAL = "virtual-local-rank"
_FLAGS = {"standalone", "m", "module", "no-python", "run-path", "use-env", "disable-numa", "help", "h", _VIRTUAL}
_WORKERS = "nproc-per-node"


def unwrapped(argv: Sequence[str], world_size: int) -> list[str]:
    """The command of one rank; `argv` itself if it does not start torchrun.

    Raises CommandError when the command has torchrun start another number of processes than the job has ranks.
    """
    found = _options(argv)
    if found is None:
        return [*argv]
    python, words = found
    options, rest = _split(words)
    if _VIRTUAL in options:
        raise CommandError(
            f"command {' '.join(argv)!r}: --{_VIRTUAL} is not supported, every rank sees all GPUs of its pod; leave it "
            "out and use LOCAL_RANK"
        )
    if not rest:
        raise CommandError(f"command {' '.join(argv)!r}: torchrun is given no script")
    _check_number(argv, options.get(_WORKERS, "1"), world_size)
    if "no-python" in options or "run-path" in options:
        return rest if "no-python" in options else [python, "-u", *rest]
    return [python, "-u", *(["-m"] if {"m", "module"} & options.keys() else []), *rest]


def environment(argv: Sequence[str], rank: int, world_size: int, base: Mapping[str, str]) -> dict[str, str]:
    """What torchrun sets besides `environment.environment`; nothing if `argv` does not start it.

    As with the other variables, a rank keeps the values of its start, wherever it moves.
    """
    found = _options(argv)
    if found is None:
        return {}
    options, _ = _split(found[1])
    return {
        "GROUP_WORLD_SIZE": base.get(names.ENV_WORKERS) or "1",
        "ROLE_NAME": options.get("role", "default"),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_RUN_ID": options.get("rdzv-id") or base.get(names.ENV_JOB) or "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": options.get("max-restarts", "0"),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 makes the store
    }


def _split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Its options, without leading dashes, and the script with its arguments."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        name, _, value = rest.pop(0).lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name in _FLAGS:
            options[name] = ""
        elif value or rest:
            options[name] = value or rest.pop(0)
    return options, rest


def _options(argv: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Interpreter and torchrun's own arguments."""
    name = Path(argv[0]).name
    if name == "torchrun":
        return _interpreter(argv[0]), argv[1:]
    if name.startswith("python"):
        words = list(argv[1:])
        while words and words[0] == "-u":
            words.pop(0)
        if len(words) >= 2 and words[0] == "-m" and words[1] in _MODULES:
            return argv[0], words[2:]
    return None


def _interpreter(torchrun: str) -> str:
    """The interpreter in the first line of the program `torchrun`: the Python that has torch."""
    path = shutil.which(torchrun)
    if path is not None:
        with Path(path).open("rb") as file:
            first = file.readline(4096)
        if first.startswith(b"#!"):
            program = first[2:].decode(errors="replace").split()
            if program and Path(program[0]).name.startswith("python") and Path(program[0]).exists():
                return program[0]
    return "python3"


def _check_number(argv: Sequence[str], wanted: str, world_size: int) -> None:
    if not wanted.isdigit():  # auto, cpu, gpu: as many as the job says
        return
    if int(wanted) == 0 or world_size % int(wanted):
        raise CommandError(
            f"command {' '.join(argv)!r}: torchrun is to start {wanted} processes per node, but the job has "
            f"{world_size} rank{'s' if world_size != 1 else ''}; give it a world_size of (workers x {wanted}), or "
            "leave the number out"
        )
