"""`pause`: checkpoint, stop, give the quota back."""

from __future__ import annotations

import click

from ..kube.api import Kube
from ..requests import verbs
from .verbs import lose_work_option, verb


@click.command()
@verb
@lose_work_option
def pause(kube: Kube, namespace: str, name: str, lose_work: bool) -> verbs.Result:
    """Stop a job with a checkpoint and give its quota back, until `singularityctl resume`.

    A job that cannot be saved trains on, and the request fails with the reason.

    \b
    Example:
      singularityctl pause digits --wait
    """
    return verbs.pause(kube, namespace, name, lose_work=lose_work)
