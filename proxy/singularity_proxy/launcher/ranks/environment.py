"""Command, environment and working directory of a rank. Pure, except for `prepare`."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...protocol import decode, names
from ...protocol.messages import Plan
from ..errors import CommandError
from ..paths import Paths
from . import user
from .user import User

LOOPBACK = "127.0.0.1"
_ISOLATING = {"I": "isolated mode", "E": "ignore PYTHON* variables", "S": "no site module"}


def command(env: Mapping[str, str], argv: Sequence[str]) -> list[str]:
    """The user's argv: the launcher's own arguments, else the environment's. Raises CommandError."""
    if not argv:
        return parse_command(env.get(names.ENV_COMMAND, ""))
    check_command(argv)
    return [*argv]


LONGEST_COMMAND = 1 << 20
"""Bytes."""


def parse_command(text: str) -> list[str]:
    """The user's argv from its JSON form. Raises CommandError."""
    argv = decode.json_value(text, LONGEST_COMMAND)
    if isinstance(argv, decode.Unreadable):
        raise CommandError(f"{names.ENV_COMMAND} = {text[:200]!r}: {argv.why}; wanted a JSON list of strings")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise CommandError(f"{names.ENV_COMMAND} = {text!r}: wanted a JSON list of at least one string")
    check_command(argv)
    return argv


def check_command(argv: Sequence[str]) -> None:
    """Refuse an interpreter that would not load the agent. Raises CommandError."""
    if not Path(argv[0]).name.startswith("python"):
        return
    words = iter(argv[1:])
    for word in words:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            return
        for position, letter in enumerate(word[1:]):
            if letter in _ISOLATING:
                raise CommandError(
                    f"command {' '.join(argv)!r}: {word} ({_ISOLATING[letter]}) keeps the checkpoint agent out of the "
                    f"interpreter; start the program without -{letter}"
                )
            if letter in "cm":
                return
            if letter in "WX":
                if position == len(word) - 2:
                    next(words, None)
                break


def environment(
    base: Mapping[str, str],
    plan: Plan,
    rank: int,
    paths: Paths,
    devices: bool = False,
    torchrun: bool = False,
    elastic: bool = False,
) -> dict[str, str]:
    """The environment of a new rank: the agent's variables, torchrun's variables if `distributed`, and the rest of
    `base` unchanged.

    :param devices: the pod has devices: their library keeps sockets of its own, which only the agent can close
    :param torchrun: the command starts it
    :param elastic: as `Engine.elastic`
    """
    env = dict(base)
    env.pop(names.ENV_COMMAND, None)
    lib = str(paths.agent_lib)
    others = [p for p in base.get("PYTHONPATH", "").split(os.pathsep) if p and p != lib]
    if plan.world_size > 1 or elastic:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks share the machine
    env.update(
        {
            names.ENV_RANK_DIR: str(paths.control(rank)),
            names.ENV_RESULT: str(paths.result(rank)),
            "TMPDIR": str(paths.work(rank) / "tmp"),
            "PYTHONPATH": os.pathsep.join([lib, *others]),
            "PYTHONUNBUFFERED": "1",
        }
    )
    if base.get(names.ENV_REPRODUCIBLE_LAYOUT):
        job = f"{base.get(names.ENV_NAMESPACE)}/{base.get(names.ENV_JOB)}"
        env.setdefault("PYTHONHASHSEED", str(zlib.crc32(job.encode())))  # `slot_init` sees to the addresses
    if plan.outputs:
        env[names.ENV_OUTPUTS] = str(paths.outputs(rank))
    alone = plan.world_size == 1 and not devices and not elastic
    if alone:
        # Processes that meet within this slot use addresses that exist in every pod.
        env.update({names.ENV_ALONE: "1", "GLOO_SOCKET_IFNAME": "lo"})
    if elastic or distributed(plan, torchrun):
        env.update(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(plan.world_size),
                "LOCAL_RANK": str(plan.ranks.index(rank)),
                "LOCAL_WORLD_SIZE": str(len(plan.ranks)),
                "GROUP_RANK": base.get(names.ENV_INDEX, "0"),
                **rendezvous(LOOPBACK if alone else plan.master_addr, plan.master_port),
            }
        )
    return env


def distributed(plan: Plan, torchrun: bool) -> bool:
    """Do the ranks get torchrun's variables? If torchrun starts them, or if the job has several.

    A plain command of one rank gets what a shell would give it: scripts take RANK for "I am one of several". The number
    of ranks stays as submitted, whatever the number of pods becomes. So a job that can be resized has several ranks and
    has the variables, also while it runs in one pod.
    """
    return torchrun or plan.world_size > 1


def rendezvous(address: str, port: int) -> dict[str, str]:
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def pod_values(base: Mapping[str, str]) -> dict[str, str]:
    """New values for a restored rank: a process keeps the environment of the pod in which it was started."""
    kept = {names.ENV_RANK_DIR, names.ENV_COMMAND, names.ENV_ALONE}
    return {k: v for k, v in base.items() if k.startswith("SINGULARITY_") and k not in kept}


def prepare(paths: Paths, rank: int, workdir: str, whom: User | None = None, outputs: bool = False) -> Path:
    """Make the rank's directories, copy the user's files, return the directory to start in. Raises CommandError."""
    work = paths.work(rank)
    cwd = work / "cwd"
    for folder in (paths.control(rank), work / "tmp", cwd, *([paths.outputs(rank)] if outputs else ())):
        folder.mkdir(parents=True, exist_ok=True)
    if paths.source.is_dir():
        # A ConfigMap volume shows its files as links into a folder `..data`: copy what they point at.
        shutil.copytree(paths.source, cwd, dirs_exist_ok=True, ignore=shutil.ignore_patterns("..*"))
    if whom is not None:
        user.give_tree(paths, rank, whom)
    if not workdir:
        return cwd
    if not Path(workdir).is_dir():
        raise CommandError(f"{names.ENV_WORKDIR} = {workdir!r}: no such directory in the image")
    return Path(workdir).absolute()
