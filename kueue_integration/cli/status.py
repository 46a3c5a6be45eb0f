"""`status`: jobs as a table, one job in detail, as JSON, once or at every change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from singularity_proxy.protocol import decode

from ..errors import JobNotFoundError
from ..jobs import lines, listing
from ..jobs import status as library
from ..jobs.phase import Phase
from ..kube.api import Kube
from . import EXIT_FAILED, formats, tables
from .chosen import names_argument
from .common import cluster_options, open_cluster
from .output import echo


@click.command()
@names_argument
@cluster_options
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option("-l", "--selector", "labels", metavar="LABELS", help="Only jobs with these labels: team=vision,a=b.")
@click.option("-w", "--watch", is_flag=True, help="Print again at every change, until jobs that are named end.")
@click.option("-o", "--output", type=formats.Output(), default="table", show_default=True)
@click.pass_context
def status(
    ctx: click.Context,
    names: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    all_namespaces: bool,
    labels: str | None,
    watch: bool,
    output: str,
) -> None:
    """Show the jobs of a namespace, or one job with its attempts, checkpoints and timings.

    \b
    Examples:
      singularityctl status
      singularityctl status -A -o wide
      singularityctl status -l team=vision -w
      singularityctl status digits words
      singularityctl status digits -w
      singularityctl status digits -o json | python3 -m json.tool
      singularityctl status digits -o jsonpath={.phase}

    \b
    Exit codes:
      0 shown, whatever the fate of the job   2 no such job   3 cluster problem
    """
    if names and all_namespaces:
        raise click.UsageError("--all-namespaces lists jobs: leave NAME out, or name its namespace with -n")
    if names and labels:
        raise click.UsageError("-l lists jobs: leave NAME out")
    kube = open_cluster(kubeconfig, context)
    if len(names) == 1 and watch:
        for number, shown in enumerate(library.follow(kube, namespace, names[0])):
            echo(("\n" if number and output in ("table", "wide") else "") + _show(shown, output))
    elif len(names) == 1:
        echo(_show(library.describe(kube, namespace, names[0]), output))
    else:
        where = None if all_namespaces else namespace
        for text in _texts(kube, where, names, labels, watch, output):
            echo(text)


def _texts(
    kube: Kube, namespace: str | None, names: Sequence[str], labels: str | None, watch: bool, output: str
) -> Iterator[str]:
    """Yield the list, with `watch` at every change until those that are named have ended."""
    said = None
    while True:
        shown = list_jobs(kube, namespace, labels, brief=output in ("table", "name"))
        if names:
            by_name = {one.name: one for one in shown}
            missing = [name for name in names if name not in by_name]
            if missing:
                raise JobNotFoundError(f"no training job {missing[0]!r} in namespace {namespace!r}")
            shown = [by_name[name] for name in dict.fromkeys(names)]
        text = _show_all(shown, namespace, output)
        if text != said:
            yield text if said is None or output not in ("table", "wide") else f"\n{text}"
        said = text
        if not watch or (names and all(one.final for one in shown)):
            return
        library.until_any_change(kube, namespace)


def list_jobs(
    kube: Kube, namespace: str | None, labels: str | None = None, brief: bool = False
) -> Sequence[lines.JobLine]:
    """Status of every managed job of `namespace` (None: of all), by name; no request of its own for any of them.

    :param brief: only what a line of the table shows, in a fraction of the time
    """
    return listing.all_jobs(kube, namespace, labels, lines.of_job if brief else library.summarise)


def _data(shown: lines.JobLine) -> dict[str, Any]:
    found: dict[str, Any] = decode.plain(shown)
    return found


def _show(shown: library.JobStatus, output: str) -> str:
    if output in ("table", "wide"):
        return tables.detail(shown, output == "wide")
    return shown.name if output == "name" else formats.shown("JobStatus", _data(shown), output)


def _show_all(shown: Sequence[lines.JobLine], namespace: str | None, output: str) -> str:
    if output == "name":
        return "\n".join(one.name if namespace else f"{one.namespace}/{one.name}" for one in shown)
    if output not in ("table", "wide"):
        return formats.listed("JobStatus", map(_data, shown), output)
    if not shown:
        return "no training jobs" + (f" in namespace {namespace}" if namespace else "")
    return tables.jobs_table(shown, output == "wide", named=namespace is None)


def wait_until_final(kube: Kube, namespace: str, name: str, timeout_s: float | None, err: bool = False) -> int:
    """Print a line per change of phase until the job has ended. The exit code that stands for its end."""
    said = ""
    try:
        for shown in library.follow(kube, namespace, name, timeout_s):
            line = f"{shown.phase}: {shown.message}"
            if shown.phase == Phase.RUNNING.value:  # its steps change all the time
                line = (
                    f"{shown.phase}: attempt {shown.attempt}, {shown.pods} pods on {shown.flavor or 'unknown flavor'}"
                )
            if line != said:
                said = line
                echo(f"{tables.clock(time.time())}  {line}", err=err)
            if shown.final:
                return 0 if shown.phase == Phase.SUCCEEDED.value else EXIT_FAILED
    except TimeoutError as error:
        echo(f"error: {error}", err=True)
    return EXIT_FAILED
