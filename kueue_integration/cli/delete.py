"""`delete`: a job with its pods, Service and files. Its checkpoints stay in the store."""

from __future__ import annotations

import time

import click

from ..contract import kinds
from ..errors import JobNotFoundError
from ..jobs import lifecycle
from . import EXIT_FAILED
from .common import cluster_options, job_argument, open_cluster
from .output import echo

_LOOK_S = 0.5


@click.command()
@job_argument
@cluster_options
@click.option("--wait", is_flag=True, help="Return when the job and its pods are gone.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="With --wait: seconds to wait.")
@click.pass_context
def delete(
    ctx: click.Context,
    name: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    wait: bool,
    timeout: float,
) -> None:
    """Delete a job with everything that belongs to it; its checkpoints stay in the store.

    \b
    Example:
      singularityctl delete digits --wait
    """
    kube = open_cluster(kubeconfig, context)
    found = kinds.named(kube, namespace, name)
    name = name if found is None else kinds.job_key(found)
    if not lifecycle.delete(kube, namespace, name):
        raise JobNotFoundError(f"no training job {name!r} in namespace {namespace!r}")
    deadline = time.monotonic() + timeout
    while wait and kinds.find(kube, namespace, name) is not None:
        if time.monotonic() > deadline:
            echo(f"error: job {namespace}/{name} still has pods after {timeout:.0f} s", err=True)
            ctx.exit(EXIT_FAILED)
        time.sleep(_LOOK_S)
    echo(f"job {namespace}/{name} {'deleted' if wait else 'is being deleted'}")
