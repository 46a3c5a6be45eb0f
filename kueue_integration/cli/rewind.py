"""`rewind`: go on from an older checkpoint."""

from __future__ import annotations

from typing import Any

import click

from ..jobs import time_travel
from .checkpoints import Asker, place_options
from .common import job_argument
from .verbs import EXIT_CODES, finish, wait_options


@click.command()
@job_argument
@place_options
@wait_options
@click.option("--to", "checkpoint", required=True, metavar="CHECKPOINT", help="Checkpoint to continue from.")
@click.pass_context
def rewind(
    ctx: click.Context, /, name: str, checkpoint: str, wait: bool, timeout: float, namespace: str, **options: Any
) -> None:
    """Continue from an older checkpoint of the job, after a loss spike for example.

    A running attempt ends at once, without a save: its work since CHECKPOINT is given up. A waiting or paused job goes
    back when it runs again. Later checkpoints stay until newer ones replace them, and a rewind to one of them is
    possible. A failed job continues as a new job NAME-2, because Kubernetes does not start a failed Job again.

    \b
    Examples:
      singularityctl checkpoints ls digits
      singularityctl rewind digits --to digits-a1-g4-5d0c12ab --wait
    """
    ask = Asker(name, namespace=namespace, timeout=timeout, **options)
    asked = time_travel.rewind(ask.kube, namespace, name, checkpoint, ask=ask.question)
    ctx.exit(finish(ask.kube, asked, wait, timeout))


rewind.help = (rewind.help or "") + EXIT_CODES
