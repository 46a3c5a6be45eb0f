"""`fence` and `unfence`: put ClusterQueues under our AdmissionCheck, or take them from under it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .. import fencing
from ..contract import job_names
from ..errors import KubeError, NotFound, SpecError
from ..fencing import Change
from ..kube.api import Kube
from . import EXIT_PLATFORM
from .common import connection_options, open_cluster
from .output import echo

SHOWN = 5
"""So many jobs of a queue are named."""


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")
@connection_options
@click.pass_context
def fence(
    ctx: click.Context, queues: tuple[str, ...], dry_run: bool, kubeconfig: str | None, context: str | None
) -> None:
    """Let training jobs into ClusterQueues: add the admission check `singularity-fence`, and keep the others.

    From then on Kueue starts the jobs of such a queue, of any kind, only while our controller answers. Other jobs than
    ours are let through at once. A queue with the check is left as it is.

    \b
    Examples:
      singularityctl fence training --dry-run
      singularityctl fence training research

    \b
    Exit codes:
      0 done   3 no such queue, or the cluster or a permission is not as it must be
    """
    kube = open_cluster(kubeconfig, context)
    ctx.exit(_change(kube, queues, fence=True, dry_run=dry_run))


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE...]")
@click.option("--all", "every", is_flag=True, help="All ClusterQueues that have the check: before `helm uninstall`.")
@click.option("--force", is_flag=True, help="Also where training jobs have not ended: their next attempt cannot start.")
@click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")
@connection_options
@click.pass_context
def unfence(
    ctx: click.Context,
    queues: tuple[str, ...],
    every: bool,
    force: bool,
    dry_run: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Take the admission check `singularity-fence` off ClusterQueues, and keep the others.

    Do this before `helm uninstall`: Kueue admits nothing to a queue whose check is gone. A queue is left as it is
    while training jobs in it have not ended, because they need the check for their next attempt.

    \b
    Examples:
      singularityctl unfence training
      singularityctl unfence --all --dry-run
      singularityctl unfence --all && helm uninstall singularity -n singularity-system

    \b
    Exit codes:
      0 done   2 bad input, or training jobs have not ended
      3 no such queue, or the cluster or a permission is not as it must be
    """
    if every == bool(queues):
        raise click.UsageError("name ClusterQueues, or give --all")
    kube = open_cluster(kubeconfig, context)
    names = fencing.fenced_queues(kube) if every else queues
    if not names:
        echo(f"no ClusterQueue has admission check {job_names.ADMISSION_CHECK_NAME}")
    left = {} if force else fencing.jobs_of(kube, set(names))
    if left:
        raise SpecError([("queues", queue, _in_the_way(jobs)) for queue, jobs in left.items()])
    ctx.exit(_change(kube, names, fence=False, dry_run=dry_run))


def _in_the_way(jobs: Sequence[str]) -> str:
    more = f" and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
    named = f"{', '.join(jobs[:SHOWN])}{more}"
    return f"has training jobs that have not ended ({named}): let them end, or delete them; nothing was changed"


def _change(kube: Kube, queues: Sequence[str], fence: bool, dry_run: bool) -> int:
    """Change each queue and say so; the exit code. What goes wrong with one keeps no other from its change."""
    code = 0
    for name in dict.fromkeys(queues):
        try:
            echo(_said(fencing.change(kube, name, fence, dry_run), fence, dry_run))
        except NotFound:
            code = EXIT_PLATFORM
            echo(f"error: there is no ClusterQueue {name}; see `kubectl get clusterqueues`", err=True)
        except KubeError as error:
            code = EXIT_PLATFORM
            echo(f"error: ClusterQueue {name}: {error}", err=True)
    return code


def _said(change: Change, fence: bool, dry_run: bool) -> str:
    word = "fenced" if fence else "unfenced"
    if change.after == change.before:
        return f"ClusterQueue {change.name}: {'was fenced already' if fence else 'was not fenced'}"
    checks = ", ".join(str(item.get("name")) for item in change.after) or "none"
    done = f"would be {word} (a dry run)" if dry_run else word
    return f"ClusterQueue {change.name}: {done}; admission checks: {checks}"
