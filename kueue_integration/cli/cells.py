"""`cells generate|check`: affinity cells of tenants, and whether their promise was kept."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from ..cells import binding, description, objects
from ..cells import look as library
from ..cells.look import Checked
from ..cells.replay import Verdict
from ..overview.look import look
from . import EXIT_FAILED, formats, tables
from .common import connection_options, open_cluster
from .logs import duration
from .output import echo
from .top_text import listed, time_words

ALLOWED_S = 120.0
"""Who is in the way writes a checkpoint first: a private cluster would not have to wait for that."""
HEAD = ["TENANT", "JOB", "LEVEL", "PODS", "QUEUED", "PRIVATE", "ADMITTED", "LATER", "PROMISE"]
_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group()
def cells() -> None:
    """Affinity cells: tenants whose jobs get one rack as soon as in a private cluster of their quota.

    \b
    Examples:
      singularityctl cells generate cells.yaml | kubectl apply --server-side -f -
      singularityctl cells check cells.yaml --period 7d

    The file names levels of the topology and the cells of each tenant: docs/policies/affinity-cells.md.
    """


@cells.command()
@connection_options
@_FILE
def generate(kubeconfig: str | None, context: str | None, file: Path) -> None:
    """Print labels of nodes, Topology, ResourceFlavors, Cohort and queues for the tenants of FILE. Changes nothing.

    A tenant keeps its cells. Nodes that are cordoned or not ready are in no new cell.

    \b
    Examples:
      singularityctl cells generate cells.yaml > objects.yaml
      singularityctl cells generate cells.yaml | kubectl diff --server-side -f -
      singularityctl cells generate cells.yaml | kubectl apply --server-side -f -

    \b
    Exit codes:
      0 printed   2 the file is wrong, or too few cells
      3 no cluster, or nodes and pods may not be listed
    """
    said = description.read(file.read_text(encoding="utf-8"))
    there = library.nodes(open_cluster(kubeconfig, context))
    made = binding.bound(said, there.labels, there.broken)
    for name, why in sorted(made.left_out.items()):
        echo(f"node {name} is in no cell: {why}", err=True)
    for tenant, own in made.cells.items():
        named = ", ".join(f"{said.levels[cell.level].name} {'/'.join(cell.path)}" for cell in own)
        echo(f"tenant {tenant}: {named}", err=True)
    echo(yaml.safe_dump_all(objects.manifests(said, made, there.capacity), sort_keys=False), nl=False)


@cells.command()
@connection_options
@_FILE
@click.option("--period", metavar="TIME", default="24h", show_default=True, help="The last 90s, 10m, 8h or 7d.")
@click.option(
    "--allow", type=click.FloatRange(min=0), default=ALLOWED_S, show_default=True,
    help="Seconds later than in private cells that still count as kept: a borrower writes its checkpoint first.",
)  # fmt: skip
@click.option("--json", "as_data", is_flag=True, help="As JSON data.")
@click.option("--rows", type=click.IntRange(min=1), default=50, show_default=True, help="Lines at most.")
@click.pass_context
def check(
    ctx: click.Context,
    kubeconfig: str | None,
    context: str | None,
    file: Path,
    period: str,
    allow: float,
    as_data: bool,
    rows: int,
) -> None:
    """Compare when topology-bound jobs got their quota with when they would have in private cells.

    The attempts of each tenant are played out again on the nodes of its cells alone, in the order in which they were
    queued. Only jobs that still exist are known. Priorities are not on record, and play no part.

    \b
    Examples:
      singularityctl cells check cells.yaml
      singularityctl cells check cells.yaml --period 7d --allow 300 --json

    \b
    Exit codes:
      0 kept   1 a job waited longer   2 bad input   3 no cluster, no Kueue, or nothing may be read
    """
    seconds = duration(period, "--period")
    said = description.read(file.read_text(encoding="utf-8"))
    kube = open_cluster(kubeconfig, context)
    there, cluster = library.nodes(kube), look(kube, time.time())
    found = library.checked(said, cluster, there, cluster.at - seconds)
    if as_data:
        data = {"at": cluster.at, "tenants": [_plain(one, allow) for one in found]}
        echo(formats.shown("CellsCheck", data, "json"))
    else:
        echo(text(found, allow, rows))
        for note in cluster.notes:
            echo(f"({note})")
    ctx.exit(EXIT_FAILED if any(word(v, allow) == "broken" for one in found for v in one.verdicts) else 0)


def word(verdict: Verdict, allow: float) -> str:
    """`kept`, `broken`, or `none` for a job that no empty private cells could hold."""
    return "none" if not verdict.fits else "kept" if verdict.later_s <= allow else "broken"


def text(found: Sequence[Checked], allow: float, rows: int) -> str:
    """A line for each tenant, then its requests, those that waited too long first."""
    counts = []
    for one in found:
        words = [word(v, allow) for v in one.verdicts]
        said = (
            f"{words.count('kept')} kept, {words.count('broken')} broken, {words.count('none')} too large for the cells"
        )
        counts.append(f"{one.tenant}: {one.nodes} nodes, {said}; {one.others} requests bound to no topology")
    lines = [(one.tenant, v) for one in found for v in one.verdicts]
    lines.sort(key=lambda line: -line[1].later_s)
    return "\n\n".join(
        part for part in ("\n".join(counts), listed(HEAD, [_row(*x, allow) for x in lines], rows)) if part
    )


def _row(tenant: str, v: Verdict, allow: float) -> tuple[object, ...]:
    private = None if v.private is None else tables.clock(v.private)
    admitted = "waits" if v.request.admitted is None else tables.clock(v.request.admitted)
    return (
        tenant, v.request.job, v.request.level, v.request.pods, tables.clock(v.request.queued), private, admitted,
        time_words(v.later_s), word(v, allow),
    )  # fmt: skip


def _plain(one: Checked, allow: float) -> dict[str, Any]:
    requests = [
        {
            "job": v.request.job, "level": v.request.level, "pods": v.request.pods, "queued": v.request.queued,
            "admitted": v.request.admitted, "private": v.private, "later_s": round(v.later_s, 3),
            "promise": word(v, allow),
        }
        for v in one.verdicts
    ]  # fmt: skip
    return {**{k: v for k, v in dataclasses.asdict(one).items() if k != "verdicts"}, "requests": requests}
