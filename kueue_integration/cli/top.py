"""`top`: the cluster at a glance, once or again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator

import click

from ..errors import KubeError
from ..overview import report as library
from ..overview.look import look
from ..overview.plain import as_json
from . import formats, tables, top_text
from .common import connection_options, open_cluster
from .output import echo, printable

EVERY_S = 5.0
LEAST_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Between two looks at an API server that does not answer."""
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
"""Cursor home, and nothing on the screen or above it."""


@click.command()
@connection_options
@click.option("--namespace", "-n", help="Only Workloads and jobs of this namespace; default: all that you may see.")
@click.option("--queue", "-q", help="Only this ClusterQueue, or this LocalQueue with its ClusterQueue.")
@click.option("-o", "--output", type=formats.Output(("table", "json", "yaml")), default="table", show_default=True)
@click.option(
    "-w", "--watch", type=click.FloatRange(min=LEAST_S), is_flag=False, flag_value=EVERY_S, metavar="[SECONDS]",
    help=f"Look again every SECONDS (default {EVERY_S:.0f}) until Ctrl-C.",
)  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), default=20, show_default=True, help="Lines of each table at most.")
def top(
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    queue: str | None,
    output: str,
    watch: float | None,
    rows: int,
) -> None:
    """Show quota, the jobs that hold it or wait for it, goodput, cost, and the actions of the planner.

    Cost is shown if flavors have prices, and device time if tiers promise a share. The planner's table has the last
    hour: actions of its policies, done or proposed in a dry run, with the reason. Tables without lines are left out.

    \b
    Examples:
      singularityctl top
      singularityctl top -n research --queue training
      singularityctl top --watch
      singularityctl top --watch 2
      singularityctl top -o json | python3 -m json.tool
      singularityctl top -o jsonpath={.waiting[*].name}

    On a terminal --watch draws anew; elsewhere reports follow each other, with -o json one to a line.
    While the API server does not answer, --watch asks again.

    \b
    Exit codes:
      0 shown   2 no such queue   3 no cluster, no Kueue, or nothing may be read
    """
    kube = open_cluster(kubeconfig, context)

    def once() -> library.Overview:
        return library.overview(look(kube, time.time(), namespace), queue)

    if watch is None:
        report = once()
        echo(_shown(report, output, rows))
        return
    anew = output == "table" and sys.stdout.isatty()
    try:
        for found, trouble in looks(once, watch, time.sleep):
            if trouble:
                echo(f"{tables.clock(time.time())}  {printable(trouble)}", err=True)
            if found is not None:
                if output == "json":
                    text = json.dumps(formats.described("Overview", as_json(found)))
                else:
                    text = _shown(found, output, rows) + ("\n" if output == "table" else "")
                if anew:
                    click.echo(CLEAR, nl=False)
                echo(text)
    except KeyboardInterrupt:
        return


def _shown(report: library.Overview, output: str, rows: int) -> str:
    if output == "table":
        return top_text.text(report, rows)
    return formats.shown("Overview", as_json(report), output)


def looks(
    once: Callable[[], library.Overview], every_s: float, pause: Callable[[float], None]
) -> Iterator[tuple[library.Overview | None, str]]:
    """Reports without end, `every_s` seconds between two; None with a sentence when the API server did not answer.

    `pause` waits so many seconds. After failures in a row it waits longer, up to LONGEST_PAUSE_S. Raises KubeError:
    an error that will not go away by itself.
    """
    failures = 0
    while True:
        try:
            report = once()
            failures = 0
            yield report, ""
            wait = every_s
        except KubeError as error:
            if not error.transient:
                raise
            failures += 1
            wait = max(every_s, min(LONGEST_PAUSE_S, every_s * 2.0 ** min(failures - 1, 10)))
            yield None, f"the API server does not answer, trying again in {wait:.0f} s: {error}"
        pause(wait)
