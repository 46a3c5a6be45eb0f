"""`migrate`: to another flavor, or away from a node."""

from __future__ import annotations

import click

from ..kube.api import Kube
from ..requests import verbs
from .verbs import lose_work_option, verb


@click.command()
@verb
@click.option("--flavor", help="ResourceFlavor to move to and to stay on.")
@click.option("--away-from-node", help="Node to leave and to keep away from.")
@click.option("--anywhere", is_flag=True, help="Forget earlier migrations first.")
@lose_work_option
def migrate(
    kube: Kube,
    namespace: str,
    name: str,
    flavor: str | None,
    away_from_node: str | None,
    anywhere: bool,
    lose_work: bool,
) -> verbs.Result:
    """Move a job, with a checkpoint: to a flavor, where it stays, or away from a node, which it then avoids.

    Both hold for every later attempt, until --anywhere frees the job from earlier wishes. A job that cannot be saved
    stays where it is, and the request fails with the reason.

    \b
    Examples:
      singularityctl migrate digits --flavor spot --wait
      singularityctl migrate digits --away-from-node node-7
      singularityctl migrate digits --anywhere
    """
    return verbs.migrate(kube, namespace, name, flavor, away_from_node, anywhere, lose_work=lose_work)
