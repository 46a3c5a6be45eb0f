"""`fork`: a second job that goes on from a checkpoint of the first."""

from __future__ import annotations

from typing import Any

import click

from ..jobs import time_travel
from ..spec.privileges import WISHES
from .checkpoints import Asker, store_options
from .common import job_argument
from .output import echo


@click.command()
@job_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@store_options
@click.option("--from", "checkpoint", metavar="CHECKPOINT", help="Checkpoint to continue from. Default: the newest.")
@click.option("--name", "new", required=True, metavar="NEW", help="Name of the new job.")
@click.option("--queue", help="LocalQueue of the new job. Default: the queue of NAME.")
@click.option(
    "--privileges",
    type=click.Choice(WISHES),
    help="Where the launcher's capabilities count. Default: as in NAME, or the platform's level where that is refused.",
)
@click.option("--priority-class", help="WorkloadPriorityClass of the new job. Default: the class of NAME.")
def fork(
    name: str,
    command: tuple[str, ...],
    checkpoint: str | None,
    new: str,
    queue: str | None,
    priority_class: str | None,
    privileges: str | None,
    namespace: str,
    **options: Any,
) -> None:
    """Create a second job that continues from a checkpoint of job NAME, which is left alone.

    The new job has the pods, the size, the files and the store of NAME, and a folder of its own in the store.

    Engine state: the program starts anew, and `attach` brings the state back. A COMMAND after -- replaces the command
    of NAME, so a fork can have other arguments.

    Engines process and both: the saved processes continue, with the command and the environment of NAME. A COMMAND is
    refused. A program finds only in SINGULARITY_JOB that it continues in another job.

    \b
    Examples:
      singularityctl fork digits --from digits-a1-g4-5d0c12ab --name digits-b
      singularityctl fork digits --name digits-c --queue spot
      singularityctl fork digits --name digits-d -- python3 train.py --learning-rate 0.01

    \b
    Exit codes:
      0 created   2 refused: nothing was created   3 the cluster or the platform is not as it must be
    """
    ask = Asker(name, namespace=namespace, **options)
    made = time_travel.fork(
        ask.kube, namespace, name, new, checkpoint, queue, priority_class, ask.question, command, privileges
    )
    where = f"checkpoint {made.checkpoint} (step {made.step}) of job {made.source}"
    echo(f"job {made.namespace}/{made.name} goes on from {where} when it is admitted")
