"""Which jobs a command is about: named ones, those with labels, those of all namespaces; and each of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ..contract import kinds
from ..errors import SingularityError
from ..kube.api import Kube
from ..kube.resources import finished
from . import complain
from .common import complete_jobs

F = TypeVar("F", bound=Callable[..., Any])
Place = tuple[str, str]
"""Namespace and name of a job."""

names_argument = click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_jobs)
"""NAME... of jobs, completed by the shell."""


def selecting_options(function: F) -> F:
    """`--selector` and `--all-namespaces`."""
    every = click.option("-A", "--all-namespaces", is_flag=True, help="With -l: jobs of all namespaces.")
    text = "All jobs with these labels: team=vision,a=b."
    labels = click.option("-l", "--selector", "labels", metavar="LABELS", help=text)
    return labels(every(function))


def places(
    kube: Kube, namespace: str, names: Sequence[str], labels: str | None, everywhere: bool, alive: bool = True
) -> list[Place]:
    """Return the jobs that are meant. `alive`: of those with labels only the ones that have not ended.

    Raises UsageError: neither names nor labels, or both.
    """
    if bool(names) == bool(labels):
        raise click.UsageError("name jobs, or give labels with -l; one of both")
    if everywhere and not labels:
        raise click.UsageError("--all-namespaces goes with -l: a NAME is of one namespace")
    if names:
        return [(namespace, name) for name in dict.fromkeys(names)]
    found = kinds.list_managed(kube, None if everywhere else namespace, labels)
    kept = [job for job in found if not (alive and finished(job))]
    return sorted((str(job["metadata"]["namespace"]), kinds.job_key(job)) for job in kept)


def each(meant: Sequence[Place], do: Callable[[str, str], int]) -> int:
    """Do it for every job, whatever becomes of the others; the worst exit code. One job alone raises."""
    worst = 0
    for namespace, name in meant:
        try:
            worst = max(worst, do(namespace, name))
        except SingularityError as error:
            if len(meant) == 1:
                raise
            worst = max(worst, complain(error, f"{namespace}/{name}: "))
    return worst
