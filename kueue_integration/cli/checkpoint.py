"""`checkpoint`: save now, train on."""

from __future__ import annotations

import click

from .. import verbs
from .common import open_cluster
from .verbs import finish, verb_options


@click.command()
@verb_options
@click.option("--deadline", type=click.FloatRange(min=1), help="Give it up after so many seconds. Default: 300.")
@click.pass_context
def checkpoint(
    ctx: click.Context,
    name: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    wait: bool,
    timeout: float,
    deadline: float | None,
) -> None:
    """Save a checkpoint of a running job, which goes on.

    \b
    Example:
      singularityctl checkpoint digits --wait

    \b
    Exit codes:
      0 asked for (with --wait: done)   1 with --wait: failed, replaced, or not done in time
      2 refused: nothing was changed    3 the cluster or the platform is not as it must be
    """
    kube = open_cluster(kubeconfig, context)
    finish(ctx, kube, verbs.checkpoint(kube, namespace, name, deadline), wait, timeout)
