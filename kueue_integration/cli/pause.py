"""`pause`: checkpoint, stop, give the quota back."""

from __future__ import annotations

import click

from ..kube.api import Kube
from ..requests import verbs
from .verbs import verb


@click.command()
@verb
def pause(kube: Kube, namespace: str, name: str) -> verbs.Result:
    """Stop a job with a checkpoint and give its quota back, until `singularityctl resume`.

    \b
    Example:
      singularityctl pause digits --wait
    """
    return verbs.pause(kube, namespace, name)
