"""`backup` and `restore`: training jobs as a file, and out of one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ..errors import SpecError
from ..jobs import backup as backups
from .common import cluster_options, connection_options, open_cluster
from .output import echo


@click.command()
@cluster_options
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="The jobs of all namespaces.")
def backup(everywhere: bool, namespace: str, kubeconfig: str | None, context: str | None) -> None:
    """Print all training jobs that have not ended, with their history and what belongs to them, as JSON.

    The checkpoints stay in the store: copy the store after this. JobSets and TrainJobs are left out and named.

    \b
    Examples:
      singularityctl backup -A > jobs.json

    \b
    Exit codes:
      0 done   3 the cluster or a permission is not as it must be
    """
    found, left = backups.taken(open_cluster(kubeconfig, context), None if everywhere else namespace)
    echo(json.dumps(found, indent=1))
    for name in left:
        echo(f"left out: {name} is no Job of this cluster alone; keep its manifest", err=True)
    echo(f"{len(found['items'])} jobs", err=True)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@connection_options
@click.option("--store", "stores", multiple=True, metavar="OLD=NEW", help="URL of a store, and of its copy to read.")
@click.option("--dry-run", is_flag=True, help="Ask the API server, and create nothing.")
def restore(file: str, stores: tuple[str, ...], dry_run: bool, kubeconfig: str | None, context: str | None) -> None:
    """Create the jobs of a backup FILE. They wait in their queues, and go on from their last checkpoints.

    Jobs that exist are left alone. The guard lets only accounts of the chart's guard.accounts write records of jobs:
    name yours there before, and take it away afterwards. Paused jobs come back queued.

    \b
    Examples:
      singularityctl restore jobs.json --dry-run
      singularityctl restore jobs.json --store gs://lost/checkpoints=gs://replica/checkpoints

    \b
    Exit codes:
      0 done   2 bad input, or the API server refused a job: those before it are made
      3 the cluster or a permission is not as it must be
    """
    moved = {}
    for pair in stores:
        old, _, new = pair.partition("=")
        if "://" not in old or "://" not in new:
            raise SpecError([("--store", pair, "must be OLD=NEW, two URLs of stores")])
        moved[old] = new
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, ValueError) as error:
        raise SpecError([("FILE", file, f"cannot be read: {error}")]) from None
    done = backups.restore(open_cluster(kubeconfig, context), backups.read(text), moved, dry_run)
    for name in done.there:
        echo(f"{name}: exists already, left as it is")
    for name in done.made:
        echo(f"{name}: {'would be restored (a dry run)' if dry_run else 'restored'}")
