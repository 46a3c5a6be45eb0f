"""`pause`: checkpoint, stop, give the quota back."""

from __future__ import annotations

import click

from .. import verbs
from .common import open_cluster
from .verbs import finish, verb_options


@click.command()
@verb_options
@click.pass_context
def pause(
    ctx: click.Context,
    name: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    wait: bool,
    timeout: float,
) -> None:
    """Stop a job with a checkpoint and give its quota back, until `singularityctl resume`.

    \b
    Example:
      singularityctl pause digits --wait

    \b
    Exit codes:
      0 asked for (with --wait: done)   1 with --wait: failed, replaced, or not done in time
      2 refused: nothing was changed    3 the cluster or the platform is not as it must be
    """
    kube = open_cluster(kubeconfig, context)
    finish(ctx, kube, verbs.pause(kube, namespace, name), wait, timeout)
