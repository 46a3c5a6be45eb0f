"""`migrate`: to another flavor, or away from a node."""

from __future__ import annotations

import click

from .. import verbs
from .common import open_cluster
from .verbs import finish, verb_options


@click.command()
@verb_options
@click.option("--flavor", help="ResourceFlavor to move to and to stay on.")
@click.option("--away-from-node", help="Node to leave and to keep away from.")
@click.option("--anywhere", is_flag=True, help="Forget earlier migrations first.")
@click.pass_context
def migrate(
    ctx: click.Context,
    name: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    wait: bool,
    timeout: float,
    flavor: str | None,
    away_from_node: str | None,
    anywhere: bool,
) -> None:
    """Move a job, with a checkpoint: to a flavor, where it stays, or away from a node, which it then avoids.

    Both hold for every later attempt, until --anywhere frees the job from what was said before.

    \b
    Examples:
      singularityctl migrate digits --flavor spot --wait
      singularityctl migrate digits --away-from-node node-7
      singularityctl migrate digits --anywhere

    \b
    Exit codes:
      0 asked for (with --wait: done)   1 with --wait: failed, replaced, or not done in time
      2 refused: nothing was changed    3 the cluster or the platform is not as it must be
    """
    kube = open_cluster(kubeconfig, context)
    finish(ctx, kube, verbs.migrate(kube, namespace, name, flavor, away_from_node, anywhere), wait, timeout)
