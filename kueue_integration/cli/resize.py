"""`resize`: more or fewer pods for a job that is there already."""

from __future__ import annotations

import click

from ..kube.api import Kube
from ..requests import verbs
from .verbs import lose_work_option, verb


@click.command()
@verb
@click.option("--workers", type=int, required=True, help="Pods wanted from now on.")
@click.option("--min-workers", type=int, help="Fewest pods to continue with. Default: as before, --workers at most.")
@lose_work_option
def resize(
    kube: Kube, namespace: str, name: str, workers: int, min_workers: int | None, lose_work: bool
) -> verbs.Result:
    """Change the number of pods of a job. Its ranks stay the same, several per pod when there are fewer.

    A smaller job gives its quota back at once, after a checkpoint. A larger job trains on until the quota is free.
    With --min-workers above its present size, it leaves and queues for that many. A job that cannot be saved keeps its
    size, and the request fails with the reason.

    \b
    Examples:
      singularityctl resize digits --workers 2 --wait
      singularityctl resize digits --workers 8 --min-workers 4
    """
    return verbs.resize(kube, namespace, name, workers, min_workers, lose_work=lose_work)
