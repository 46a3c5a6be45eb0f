"""`resize`: more or fewer pods for a job that is there already."""

from __future__ import annotations

import click

from .. import verbs
from .common import open_cluster
from .verbs import finish, verb_options


@click.command()
@verb_options
@click.option("--workers", type=int, required=True, help="Pods wanted from now on.")
@click.option("--min-workers", type=int, help="Fewest pods to go on with. Default: as before, --workers at most.")
@click.pass_context
def resize(
    ctx: click.Context,
    name: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    wait: bool,
    timeout: float,
    workers: int,
    min_workers: int | None,
) -> None:
    """Change the number of pods of a job. Its ranks stay the same, several per pod when there are fewer.

    A smaller job gives its quota back at once, after a checkpoint. A bigger one goes on as it is until the quota is
    free; with --min-workers above its present size it leaves and queues for that many.

    \b
    Examples:
      singularityctl resize digits --workers 2 --wait
      singularityctl resize digits --workers 8 --min-workers 4

    \b
    Exit codes:
      0 asked for (with --wait: done)   1 with --wait: failed, replaced, or not done in time
      2 refused: nothing was changed    3 the cluster or the platform is not as it must be
    """
    kube = open_cluster(kubeconfig, context)
    finish(ctx, kube, verbs.resize(kube, namespace, name, workers, min_workers), wait, timeout)
