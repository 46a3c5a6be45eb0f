"""A program as it runs undisturbed, and whether a disturbed run has given the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .job import Job
from .kit import Kit, Result

FILES = ("losses", "digest")
Outcome = dict[int, tuple[str, ...]]
"""Rank -> what it has written."""


def outcome(job: Job) -> Outcome:
    """After `Job.finish`. Raises PartError."""
    return {rank: tuple(job.result(rank, file) for file in FILES) for rank in sorted(job.of_rank)}


def undisturbed(
    kit: Kit, name: str, program: str, arguments: Sequence[object], layout: Sequence[Sequence[int]],
    env: Mapping[str, str] | None = None, pod_env: Sequence[Mapping[str, str]] | None = None,
) -> Outcome:  # fmt: skip
    """Raises PartError."""
    with Job(kit, name, program, arguments, layout, env, pod_env=pod_env) as job:
        job.finish()
        return outcome(job)


def same(result: Result, what: str, wanted: Outcome, found: Outcome) -> bool:
    """A check of the part: losses and weights of every rank are those of the undisturbed run, bit by bit."""
    for rank, files in wanted.items():
        if found.get(rank) == files:
            continue
        losses, digest = zip(files, found.get(rank, ("", "")), strict=True)
        where = first_difference(*losses) or ("weights" if digest[0] != digest[1] else "")
        return result.check(what, False, f"rank {rank}: {where}")
    steps = len(next(iter(wanted.values()))[0].splitlines())
    return result.check(what, True, f"{steps} losses and all weights of {len(wanted)} ranks")


def first_difference(wanted: str, found: str) -> str:
    """Where two logs part; "" where they do not."""
    for mine, theirs in zip(wanted.splitlines(), found.splitlines(), strict=False):
        if mine != theirs:
            return f"wanted {mine}, found {theirs}"
    return "" if wanted == found else f"{len(wanted.splitlines())} lines, found {len(found.splitlines())}"
