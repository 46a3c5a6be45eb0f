"""`resume`: queue a paused job again."""

from __future__ import annotations

import click

from ..kube.api import Kube
from ..requests import verbs
from .verbs import verb


@click.command()
@verb
def resume(kube: Kube, namespace: str, name: str) -> verbs.Result:
    """Queue a paused job again, which continues from its checkpoint. With --wait: until it trains again.

    \b
    Example:
      singularityctl resume digits --wait --timeout 3600
    """
    return verbs.resume(kube, namespace, name)
