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
from .chosen import Place, each, names_argument, places, selecting_options
from .common import cluster_options, open_cluster
from .output import echo

F = TypeVar("F", bound=Callable[..., Any])
EXIT_CODES = """
    \b
    Exit codes:
      0 asked for (with --wait: done)   1 with --wait: failed, replaced, or not done in time
      2 refused: nothing was changed    3 the cluster or the platform is not as it must be
    """


def verb(function: Callable[..., verbs.Result]) -> Callable[..., None]:
    """A command out of `function(kube, namespace, name, **its own options)`: it asks, tells, and waits if told to.

    It is called for each of the jobs that are meant.
    """

    @functools.wraps(function)
    @click.pass_context
    def command(
        ctx: click.Context,
        /,
        names: tuple[str, ...],
        labels: str | None,
        all_namespaces: bool,
        kubeconfig: str | None,
        context: str | None,
        namespace: str,
        wait: bool,
        timeout: float,
        **own: Any,
    ) -> None:
        kube = open_cluster(kubeconfig, context)
        meant = places(kube, namespace, names, labels, all_namespaces)
        if not meant:
            echo(f"no training job with labels {labels} that has not ended", err=True)
        asked: dict[Place, verbs.Result] = {}

        def ask(where: str, name: str) -> int:
            asked[where, name] = function(kube, where, name, **own)
            _say(asked[where, name])
            return 0

        code = each(meant, ask)
        if wait:  # all are asked before the first one is waited for
            code = max(code, each([*asked], lambda *place: _end(kube, asked[place], timeout)))
        ctx.exit(code)

    command.__doc__ = (function.__doc__ or "").rstrip() + "\n" + EXIT_CODES
    return verb_options(command)


def verb_options(function: F) -> F:
    """NAME..., the cluster options, `--selector`, `--all-namespaces`, `--wait` and `--timeout`."""
    return names_argument(cluster_options(selecting_options(wait_options(function))))


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


def finish(kube: Kube, asked: verbs.Result, wait: bool, timeout: float) -> int:
    """Print what became of it, with `wait` its end; the exit code: 1 if that is not `done`."""
    _say(asked)
    return _end(kube, asked, timeout) if wait else 0


def _say(asked: verbs.Result) -> None:
    echo(f"{asked.op} of job {asked.namespace}/{asked.name}: {asked.message}")


def _end(kube: Kube, asked: verbs.Result, timeout: float) -> int:
    if asked.final:
        return 0
    try:
        end = verbs.wait(kube, asked, timeout, _tell)
    except TimeoutError as error:
        echo(f"error: {error}", err=True)
        return EXIT_FAILED
    if not end.ok:
        echo(f"error: {end.op} {end.state}: {end.message}", err=True)
        return EXIT_FAILED
    return 0


def _tell(result: verbs.Result) -> None:
    echo(f"{tables.clock(time.time())}  {result.state}: {result.message}")
