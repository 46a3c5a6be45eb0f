"""`drain`: empty nodes of training jobs without a lost step."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import click

from ..drain import nodes as library
from ..drain.look import Key, Look, Refusal
from ..drain.plan import Move, Stage
from ..drain.run import Drain
from ..kube.api import Kube
from ..kube.resources import Object
from . import EXIT_FAILED, tables
from .common import open_cluster
from .output import echo
from .verbs import lose_work_option


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Default: $KUBECONFIG, ~/.kube/config.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--namespace", "-n", help="Only jobs of this namespace; default all.")
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Jobs that move together. They share the node's disk and network, so each stands still longer.",
)
@click.option("--timeout", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds for each job.")
@click.option("--no-cordon", is_flag=True, help="Leave the nodes as they are: they may take new pods.")
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and change nothing.")
@lose_work_option
@click.pass_context
def drain(
    ctx: click.Context,
    nodes: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    at_once: int,
    timeout: float,
    no_cordon: bool,
    dry_run: bool,
    lose_work: bool,
) -> None:
    """Move all training jobs away from nodes: checkpoint, move, done. Other pods stay for `kubectl drain`.

    The nodes take no new pods from then on. Each job is saved while it trains on, and then asked to leave. A job that
    cannot be saved stays as it is, with the reason. A job has moved when it runs elsewhere, or waits in its queue.

    \b
    Examples:
      singularityctl drain node-7 --dry-run
      singularityctl drain node-7 && kubectl drain node-7 --ignore-daemonsets --delete-emptydir-data
      singularityctl drain node-7 node-8 --at-once 4 --timeout 1800

    \b
    Exit codes:
      0 no training job is left on the nodes   1 some are, or time was up
      2 bad input, no such node                3 the cluster or a permission is not as it must be
    """
    kube = open_cluster(kubeconfig, context)
    names = list(dict.fromkeys(nodes))
    found = library.found(kube, names)
    who = os.environ.get("USER", "")
    made = Drain(kube, names, namespace, who, at_once, timeout, _say, lose_work=lose_work)
    if dry_run:
        shown = made.preview()
        echo(preview_table(shown))
        echo("nothing was changed: this was a dry run")
        ctx.exit(EXIT_FAILED if any(refusal is not None for _, refusal in shown.values()) else 0)
    for node in found:
        echo(_cordon(kube, node, no_cordon))
    try:
        made.run()
    except KeyboardInterrupt:
        echo("interrupted: what was asked for goes on, see `singularityctl status`", err=True)
    finally:
        echo(summary(list(made.moves.values()), names))
    ctx.exit(0 if all(move.stage is Stage.AWAY for move in made.moves.values()) else EXIT_FAILED)


def _cordon(kube: Kube, node: Object, leave_it: bool) -> str:
    name = node["metadata"]["name"]
    if leave_it:
        takes = "takes no new pods" if library.cordoned(node) else "may take new pods, also those of moved jobs"
        return f"node {name} is left as it is: it {takes}"
    return f"node {name} {'cordoned' if library.cordon(kube, node) else 'was cordoned already'}"


def _say(key: Key, text: str) -> None:
    echo(f"{tables.clock(time.time())}  {'/'.join(key)}  {text}")


def preview_table(shown: Mapping[Key, tuple[Look, Refusal | None]]) -> str:
    """One line per job that has pods on the nodes; below it the reasons of those that would stay."""
    if not shown:
        return "no training job has a pod on the nodes"
    rows = [
        ("/".join(key), seen.pods, ", ".join(seen.on), seen.status.step if seen.status else None,
         "stays" if refusal else "ends" if seen.ended or seen.stopping else "moves")
        for key, (seen, refusal) in shown.items()
    ]  # fmt: skip
    stay = [("/".join(key), refusal) for key, (_, refusal) in shown.items() if refusal is not None]
    return "\n".join([tables.table(["JOB", "PODS", "NODES", "STEP", "WHAT"], rows), *_reasons(stay)])


def summary(moves: Sequence[Move], nodes: Sequence[str]) -> str:
    """The last word of a drain: a table, the jobs that are left with reasons, and what to do next."""
    if not moves:
        lines = ["no training job had a pod on the nodes"]
    else:
        rows = [
            (m.name, m.checkpoint, m.steps_lost if m.stage is Stage.AWAY else None, f"{m.seconds:.1f}",
             m.where or m.stage.value)
            for m in sorted(moves, key=lambda m: m.key)
        ]  # fmt: skip
        lines = ["", tables.table(["JOB", "CHECKPOINT", "LOST", "SECONDS", "WHERE"], rows)]
    left = [m for m in moves if m.stage is not Stage.AWAY]
    lines += _reasons([(m.name, m.refusal or Refusal("the drain ended before", "drain again")) for m in left])
    if left:
        return "\n".join([*lines, f"{len(left)} of {len(moves)} jobs are left"])
    command = f"kubectl drain {' '.join(nodes)} --ignore-daemonsets --delete-emptydir-data"
    return "\n".join([*lines, f"no training job is left; for all other pods: {command}"])


def _reasons(left: Sequence[tuple[str, Refusal]]) -> list[str]:
    """Never wrapped: commands are there to be copied."""
    return [line for name, r in left for line in (f"left: {name}: {r.why}", f"      fix: {r.fix}")]
