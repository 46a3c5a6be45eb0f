"""What the commands of the verbs share: their options, waiting, and the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .. import verbs
from ..kube import Kube
from . import EXIT_FAILED, tables
from .common import cluster_options, job_argument

F = TypeVar("F", bound=Callable[..., Any])


def verb_options(function: F) -> F:
    """NAME, the cluster options, `--wait` and `--timeout`."""
    function = click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=600.0,
        show_default=True,
        help="With --wait: seconds to wait.",
    )(function)
    function = click.option("--wait", is_flag=True, help="Return when it is done, and say so.")(function)
    return job_argument(cluster_options(function))


def finish(ctx: click.Context, kube: Kube, asked: verbs.Result, wait: bool, timeout: float) -> None:
    """Print what became of it, with `wait` its end; exits with 1 if that is not `done`."""
    click.echo(f"{asked.op} of job {asked.namespace}/{asked.name}: {asked.message}")
    if not wait or asked.final:
        return
    try:
        end = verbs.wait(kube, asked, timeout, _tell)
    except TimeoutError as error:
        click.echo(f"error: {error}", err=True)
        ctx.exit(EXIT_FAILED)
    if not end.ok:
        click.echo(f"error: {end.op} {end.state}: {end.message}", err=True)
        ctx.exit(EXIT_FAILED)


def _tell(result: verbs.Result) -> None:
    click.echo(f"{tables.clock(time.time())}  {result.state}: {result.message}")
