"""`report`: promised and delivered share of device time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from ..overview import report as library
from ..overview import shares
from ..overview.look import look
from ..overview.shares import JobShare, Shares, TenantShare
from . import formats, tables
from .common import connection_options, open_cluster
from .logs import duration
from .output import echo
from .top_text import FEWER, listed, paragraph, percent, time_words

TENANTS = ["TENANT", "QUEUE", "JOBS", "NOT MEASURED", "BEHIND", "PROMISED", "DELIVERED", "OWED", "ALL JOBS", "SERVED"]
JOBS = ["JOB", "NAMESPACE", "QUEUE", "CLASS", "PROMISED", "DELIVERED", "OWED", "SERVED", "ASKED FOR", "REMARKS"]


@click.command()
@connection_options
@click.option("--namespace", "-n", help="Only jobs of this namespace; default: all that you may see.")
@click.option("--queue", "-q", help="Only this LocalQueue, or the LocalQueues of this ClusterQueue.")
@click.option("--period", metavar="TIME", help="The last 90s, 10m, 8h or 7d; default: the window of the tiers.")
@click.option("-o", "--output", type=formats.Output(("table", "json", "yaml")), default="table", show_default=True)
@click.option("--json", "as_data", is_flag=True, help="The same as -o json.")
@click.option("--rows", type=click.IntRange(min=1), default=50, show_default=True, help="Lines of each table at most.")
def report(
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    queue: str | None,
    period: str | None,
    output: str,
    as_data: bool,
    rows: int,
) -> None:
    """Show the promised and the delivered share of device time, per job and tenant.

    Delivered is measured from the attempts of each job: pods times devices times the time with quota. It is divided by
    what the job asked for in that time; pauses do not count. Promised is the share of its WorkloadPriorityClass
    in planner.slaTiers.tiers of the chart. OWED, SERVED and ASKED FOR are device time.

    \b
    Examples:
      singularityctl report
      singularityctl report -n research --period 24h
      singularityctl report --queue training --json | python3 -m json.tool

    Only jobs that still exist are counted. A figure that is not measured is shown as `-`, with the reason.

    \b
    Exit codes:
      0 shown   2 no such queue, bad period   3 no cluster, no Kueue, or nothing may be read
    """
    seconds = None if period is None else duration(period, "--period")
    kube = open_cluster(kubeconfig, context)
    cluster = look(kube, time.time(), namespace)
    found = shares.shares(cluster, seconds, library.trainings(cluster, queue))
    output = "json" if as_data else output
    if output == "table":
        echo(text(found, cluster.notes, rows))
    else:
        echo(formats.shown("Shares", {**shares.as_json(found), "not_seen": list(cluster.notes)}, output))


def text(found: Shares, missing: Sequence[str] = (), rows: int = 50) -> str:
    """Both tables, then what is not known. `missing`: sentences about what could not be asked."""
    count = f"{len(found.jobs)} job{'' if len(found.jobs) == 1 else 's'}"
    notes = [paragraph(f"({note})") for note in (*found.notes, *missing)]
    parts = [
        f"{tables.date(found.at)}  the last {time_words(found.period_s)}, {count} that still exist",
        listed(TENANTS, [_tenant(one) for one in found.tenants], rows),
        listed(JOBS, [_job(one) for one in found.jobs], rows),
        "\n".join([*notes, *([FEWER] if missing else [])]),
    ]
    return "\n\n".join(part for part in parts if part)


def _tenant(one: TenantShare) -> tuple[object, ...]:
    return (
        one.namespace, one.local_queue, one.jobs, one.unmeasured, one.behind, percent(one.promised),
        percent(one.delivered), time_words(one.owed_s), percent(one.delivered_all), time_words(one.served_s),
    )  # fmt: skip


def _job(one: JobShare) -> tuple[object, ...]:
    said = [*(["ended"] if one.ended else []), *([one.unmeasured] if one.unmeasured else []), *one.remarks]
    if one.service.paused_s:
        said.append(f"paused for {time_words(one.service.paused_s)}")
    return (
        one.job, one.namespace, one.local_queue, one.priority_class, percent(one.promised), percent(one.delivered),
        time_words(one.owed), time_words(one.service.served), time_words(one.service.asked), "; ".join(said),
    )  # fmt: skip
