"""`status`: jobs as a table, one job in detail, as JSON, once or at every change."""

from __future__ import annotations

import json
import time

import click
import yaml

from singularity_proxy.protocol import decode

from ..contract import job_names, kinds, progress_objects
from ..jobs import status as library
from ..jobs.phase import Phase
from ..kube.api import Kube
from ..kube.resources import POD, Object, selector
from . import EXIT_BAD_INPUT, EXIT_FAILED, tables
from .common import cluster_options, complete_jobs, open_cluster
from .output import echo


@click.command()
@click.argument("name", required=False, shell_complete=complete_jobs)
@cluster_options
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Print again at every change until the job has ended.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True
)
@click.pass_context
def status(
    ctx: click.Context,
    name: str | None,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    all_namespaces: bool,
    watch: bool,
    output: str,
) -> None:
    """Show the jobs of a namespace, or one job with its attempts, checkpoints and timings.

    \b
    Examples:
      singularityctl status
      singularityctl status -A -o wide
      singularityctl status digits -w
      singularityctl status digits -o json | python3 -m json.tool
      singularityctl status digits -o yaml

    \b
    Exit codes:
      0 shown   2 no such job   3 cluster problem   (the fate of the job itself is in the phase)
    """
    if name is not None and all_namespaces:
        raise click.UsageError("--all-namespaces lists jobs: leave NAME out, or name its namespace with -n")
    kube = open_cluster(kubeconfig, context)
    if name is None:
        if watch:
            echo("error: --watch needs the NAME of a job", err=True)
            ctx.exit(EXIT_BAD_INPUT)
        where = None if all_namespaces else namespace
        echo(_show_all(list_jobs(kube, where), where, output))
        return
    if not watch:
        echo(_show(library.describe(kube, namespace, name), output))
        return
    for number, shown in enumerate(library.follow(kube, namespace, name)):
        echo(("\n" if number and output in ("table", "wide") else "") + _show(shown, output))


def list_jobs(kube: Kube, namespace: str | None) -> list[library.JobStatus]:
    """Status of every managed job of `namespace` (None: of all), by name; no request of its own for any of them."""
    jobs = progress_objects.all_shown(kube, namespace, kinds.list_managed(kube, namespace))
    if namespace is None:
        jobs.sort(key=lambda job: (job["metadata"]["namespace"], kinds.job_key(job)))
    pods: dict[tuple[str, str], list[Object]] = {}
    for pod in kube.list(POD, namespace, selector({job_names.LABEL_MANAGED: "true"})):
        meta = pod["metadata"]
        pods.setdefault((meta["namespace"], meta["labels"].get(job_names.LABEL_JOB, "")), []).append(pod)
    workloads = kube.workloads_by_job(namespace, jobs)
    return [
        library.summarise(
            job,
            workloads.get(job["metadata"]["uid"]),
            pods.get((job["metadata"]["namespace"], kinds.job_key(job)), []),
        )
        for job in jobs
    ]


def _show(shown: library.JobStatus, output: str) -> str:
    if output == "yaml":
        return _yaml(decode.plain(shown))
    return library.to_json(shown) if output == "json" else tables.detail(shown, output == "wide")


def _yaml(data: object) -> str:
    return yaml.safe_dump(data, sort_keys=False, explicit_start=True).rstrip()


def _show_all(shown: list[library.JobStatus], namespace: str | None, output: str) -> str:
    if output == "json":
        return json.dumps([decode.plain(one) for one in shown], indent=2)
    if output == "yaml":
        return _yaml([decode.plain(one) for one in shown])
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
