"""`resume`: queue a paused job again."""

from __future__ import annotations

import click

from .. import verbs
from .common import open_cluster
from .verbs import finish, verb_options


@click.command()
@verb_options
@click.pass_context
def resume(
    ctx: click.Context,
    name: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    wait: bool,
    timeout: float,
) -> None:
    """Queue a paused job again; it goes on from its checkpoint. With --wait: until it trains again.

    \b
    Example:
      singularityctl resume digits --wait --timeout 3600

    \b
    Exit codes:
      0 asked for (with --wait: done)   1 with --wait: failed, replaced, or not done in time
      2 refused: nothing was changed    3 the cluster or the platform is not as it must be
    """
    kube = open_cluster(kubeconfig, context)
    finish(ctx, kube, verbs.resume(kube, namespace, name), wait, timeout)
