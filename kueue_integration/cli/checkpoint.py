"""`checkpoint`: save now, train on."""

from __future__ import annotations

import click

from ..kube.api import Kube
from ..requests import verbs
from .verbs import verb


@click.command()
@verb
@click.option(
    "--deadline", type=click.FloatRange(min=1), help="Give the checkpoint up after so many seconds. Default: 300."
)
def checkpoint(kube: Kube, namespace: str, name: str, deadline: float | None) -> verbs.Result:
    """Save a checkpoint of a running job, which trains on.

    \b
    Example:
      singularityctl checkpoint digits --wait
    """
    return verbs.checkpoint(kube, namespace, name, deadline)
