"""`trace`: where the seconds of a job's move went."""

from __future__ import annotations

import dataclasses
import json

import click

from ..contract import attempt_phases, kinds
from ..errors import JobNotFoundError, PlatformError, SpecError
from ..job.unreadable import UnreadableAnnotation
from ..job.view import Job
from ..jobs import move_trace
from ..jobs.move_trace import Move
from ..kube.resources import Object
from . import formats, trace_otlp, trace_svg, trace_text
from .common import cluster_options, job_argument, open_cluster
from .output import echo


@click.command()
@job_argument
@cluster_options
@click.option("--attempt", type=click.IntRange(min=1), help="The move that ended this attempt. Default: the last one.")
@click.option("--all", "every", is_flag=True, help="All moves whose attempts are still recorded.")
@click.option(
    "-o",
    "--output",
    type=formats.Output(("text", "json", "yaml", "svg", "otlp")),
    default="text",
    show_default=True,
)
def trace(
    name: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    attempt: int | None,
    every: bool,
    output: str,
) -> None:
    """Draw a move of a job: from Kueue's eviction of one attempt to the first step of the next one.

    Each line is a phase, with the part that worked in it and its seconds. The controller's clock gives the moments in
    between. Within two moments the pods measure; with several pods, the slowest one is shown.

    \b
    Examples:
      singularityctl trace digits
      singularityctl trace digits --attempt 2
      singularityctl trace digits --all -o json | python3 -m json.tool
      singularityctl trace digits -o svg > move.svg
      singularityctl trace digits -o otlp | curl -H 'Content-Type: application/json' \\
        --data-binary @- http://localhost:4318/v1/traces

    \b
    Exit codes:
      0 shown   2 no such job or attempt, or it has not moved   3 cluster problem
    """
    if attempt is not None and every:
        raise SpecError([("--attempt", attempt, "and --all exclude each other; give one of them")])
    kube = open_cluster(kubeconfig, context)
    job = kinds.named(kube, namespace, name)
    if job is None:
        raise JobNotFoundError(f"no training job {name!r} in namespace {namespace!r}; see `singularityctl status`")
    chosen = choose(job, name, attempt, every)
    if output == "otlp":
        echo(json.dumps(trace_otlp.document(job, chosen)))
    elif output == "svg":
        echo(trace_svg.picture(f"{namespace}/{name}", chosen), nl=False)
    elif output == "text":
        echo(trace_text.chart(f"{namespace}/{name}", chosen))
    else:
        echo(formats.listed("Move", map(dataclasses.asdict, chosen), output))


def choose(job: Object, name: str, attempt: int | None = None, every: bool = False) -> list[Move]:
    """The moves that are asked for, oldest first, at least one. Raises SpecError, PlatformError."""
    history = Job.parse(job).history
    if isinstance(history, UnreadableAnnotation):
        raise PlatformError(f"annotation {history.name} of job {name} cannot be read: {history.why}")
    found = move_trace.moves(history, attempt_phases.of_job(job))
    if attempt is not None:
        known = [record.attempt for record in history]
        if attempt not in known:
            there = f"attempts {known[0]} to {known[-1]} are recorded" if known else "no attempt is recorded"
            raise SpecError([("--attempt", attempt, f"is not there: {there}")])
        found = [move for move in found if move.left == attempt]
        if not found:
            raise SpecError([("--attempt", attempt, "has not moved: nothing to trace")])
    if not found:
        raise SpecError([("name", name, "has not moved: nothing to trace")])
    return found if every else found[-1:]
