"""`singularityctl local` and `singularityctl demo`: a real Kubernetes on this machine, and the demonstration.

`singularityctl` finds both by the entry points of this folder's own `pyproject.toml`. The wheel that users install has
neither this folder nor the two commands.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from . import cluster, machines, registry
from .addons import jobset, trainer
from .config import NODES
from .errors import LocalClusterError
from .status import find_log
from .status import status as cluster_status

P = ParamSpec("P")
R = TypeVar("R")

NAME = click.option("--name", default="default", show_default=True, help="Which cluster of this machine.")


def _plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Errors that we raise on purpose become one sentence and exit status 1."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except LocalClusterError as error:
            raise click.ClickException(str(error)) from error

    return wrapped


@click.group()
def local() -> None:
    """A real Kubernetes with Kueue on this machine, without Docker (root)."""


@local.command()
@NAME
@click.option(
    "--only",
    type=click.Choice(["cluster", "images"]),
    help="cluster: without our images and chart; images: only rebuild, import and roll out what changed.",
)
@click.option("--jobset", "with_jobset", is_flag=True, help="JobSet's custom resource and controller as well.")
@click.option("--trainer", "with_trainer", is_flag=True, help="Kubeflow Trainer as well, with JobSet.")
@_plain_errors
def up(name: str, only: str | None, with_jobset: bool, with_trainer: bool) -> None:
    """Bring the cluster up, or whatever of it does not run, and wait until it is ready."""
    cluster.up(name, click.echo, only=only)
    if with_jobset:
        jobset.start(name, click.echo)
    if with_trainer:
        trainer.start(name, click.echo)


@local.command()
@NAME
@_plain_errors
def down(name: str) -> None:
    """End the cluster and remove everything of it."""
    cluster.down(name, click.echo)


@local.command("machines")
@NAME
@click.argument("flavor", required=False, type=click.Choice(sorted({node.flavor for node in NODES})))
@_plain_errors
def announced_machines(name: str, flavor: str | None) -> None:
    """Make the nodes of FLAVOR announce older machines than the rest; without FLAVOR all are alike again.

    Containers there see fewer features of the processor in /proc/cpuinfo, and all nodes have the labels of node
    feature discovery. The processor is what it is.
    """
    if flavor is None:
        machines.alike(name, click.echo)
    else:
        machines.differ(name, flavor, click.echo)


@local.command()
@NAME
@_plain_errors
def status(name: str) -> None:
    """Table of the parts; exit status 1 unless all of them run and are ready."""
    rows = cluster_status(name)
    if rows is None:
        raise click.ClickException(f"cluster {name} does not exist: `singularityctl local up` makes it")
    click.echo(f"{'PART':<26} {'PID':>8} {'READY':<6} {'MEMORY':>9}  LOG")
    for row in rows:
        ready = "-" if row.ready is None else "yes" if row.ready else "no"
        click.echo(f"{row.name:<26} {row.pid or '-':>8} {ready:<6} {row.memory / 2**20:>6.0f} MB  {row.log}")
    click.echo(f"{len(rows)} parts, {sum(row.memory for row in rows) / 2**20:.0f} MB resident")
    if any(row.pid is None or row.ready is False for row in rows):
        raise click.exceptions.Exit(1)


@local.command()
@NAME
@_plain_errors
def kubeconfig(name: str) -> None:
    """Print the path of the cluster's kubeconfig: export KUBECONFIG=$(singularityctl local kubeconfig)."""
    config = registry.find(name)
    if config is None or not config.kubeconfig.exists():
        raise click.ClickException(f"cluster {name} does not exist: `singularityctl local up` makes it")
    click.echo(config.kubeconfig)


@local.command()
@NAME
@click.argument("part")
@click.option("-n", "--lines", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on until interrupted.")
@_plain_errors
def logs(name: str, part: str, lines: int, follow: bool) -> None:
    """Print the end of the log of PART, as `singularityctl local status` names it."""
    log = find_log(name, part)
    command = ["tail", "-n", str(lines), *(["-f"] if follow else []), str(log)]
    try:
        code = subprocess.run(command).returncode
    except KeyboardInterrupt:
        code = 130
    raise click.exceptions.Exit(code)


@click.command()
@click.option("--keep", is_flag=True, help="Leave cluster and Airflow running at the end.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Directory of the report, the picture and the logs.",
)
@click.option(
    "--engine",
    type=click.Choice(["process", "state"]),
    default="process",
    show_default=True,
    help="process: a task of Airflow, any script; state: one with singularity_train, in pods without a privilege.",
)
@click.option(
    "--privileges",
    type=click.Choice(["auto", "userns", "node"]),
    default="auto",
    show_default=True,
    help="Where the capabilities of --engine process count: in a user namespace of the pod, or on the node.",
)
@NAME
@click.pass_context
def demo(ctx: click.Context, keep: bool, output: Path, engine: str, privileges: str, name: str) -> None:
    """Run the demonstration: a training that Kueue preempts, moves, shrinks and grows.

    With --engine process it is a task of Airflow and keeps its 4 ranks in 4, 2 and 4 pods. With --engine state it is in
    a namespace that enforces Pod Security `restricted`, and has as many ranks as pods: 4, 2, 4, and 3 after a resize.

    Needs root, Go and a checkout; exits 0 only if the verdict of the report is `pass`. A cluster that was up stays up.

    \b
    Examples:
      singularityctl demo
      singularityctl demo --engine state --output build/demo-state
    """
    # Loaded by name, because `local` needs nothing of the demonstration and its libraries.
    run_demo = importlib.import_module("localcluster.demo.main").run_demo
    ctx.exit(run_demo(keep=keep, output=output, cluster=name, engine=engine, privileges=privileges))
