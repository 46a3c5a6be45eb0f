"""What the commands of the verbs share: their options, the cluster, waiting, and the exit codes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..kube.api import Kube
from ..requests import verbs
from . import EXIT_FAILED, tables
from .common import cluster_options, job_argument, open_cluster
from .output import echo

F = TypeVar("F", bound=Callable[..., Any])
EXIT_CODES = """
    \b
    Exit codes:
      0 asked for (with --wait: done)   1 with --wait: failed, replaced, or not done in time
      2 refused: nothing was changed    3 the cluster or the platform is not as it must be
    """


def verb(function: Callable[..., verbs.Result]) -> Callable[..., None]:
    """A command out of `function(kube, namespace, name, **its own options)`: it asks, tells, and waits if told to."""

    @functools.wraps(function)
    @click.pass_context
    def command(
        ctx: click.Context,
        /,
        name: str,
        kubeconfig: str | None,
        context: str | None,
        namespace: str,
        wait: bool,
        timeout: float,
        **own: Any,
    ) -> None:
        kube = open_cluster(kubeconfig, context)
        finish(ctx, kube, function(kube, namespace, name, **own), wait, timeout)

    command.__doc__ = (function.__doc__ or "").rstrip() + "\n" + EXIT_CODES
    return verb_options(command)


def verb_options(function: F) -> F:
    """NAME, the cluster options, `--wait` and `--timeout`."""
    return job_argument(cluster_options(wait_options(function)))


def lose_work_option(function: F) -> F:
    """`--lose-work`."""
    text = "Stop it also if it cannot be saved: it then begins again at its last checkpoint."
    return click.option("--lose-work", is_flag=True, help=text)(function)


def wait_options(function: F) -> F:
    """`--wait` and `--timeout`."""
    function = click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=600.0,
        show_default=True,
        help="With --wait: seconds to wait.",
    )(function)
    return click.option("--wait", is_flag=True, help="Return when it is done, and say so.")(function)


def finish(ctx: click.Context, kube: Kube, asked: verbs.Result, wait: bool, timeout: float) -> None:
    """Print what became of it, with `wait` its end; exits with 1 if that is not `done`."""
    echo(f"{asked.op} of job {asked.namespace}/{asked.name}: {asked.message}")
    if not wait or asked.final:
        return
    try:
        end = verbs.wait(kube, asked, timeout, _tell)
    except TimeoutError as error:
        echo(f"error: {error}", err=True)
        ctx.exit(EXIT_FAILED)
    if not end.ok:
        echo(f"error: {end.op} {end.state}: {end.message}", err=True)
        ctx.exit(EXIT_FAILED)


def _tell(result: verbs.Result) -> None:
    echo(f"{tables.clock(time.time())}  {result.state}: {result.message}")
