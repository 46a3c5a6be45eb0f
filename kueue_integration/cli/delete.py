"""`delete`: a job with its pods, Service and files. Its checkpoints stay in the store."""

from __future__ import annotations

import time

import click

from ..contract import kinds
from ..errors import JobNotFoundError
from ..jobs import lifecycle
from ..kube.api import Kube
from . import EXIT_FAILED
from .chosen import each, names_argument, places, selecting_options
from .common import cluster_options, open_cluster
from .output import echo

_LOOK_S = 0.5


@click.command()
@names_argument
@cluster_options
@selecting_options
@click.option("--wait", is_flag=True, help="Return when the job and its pods are gone.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="With --wait: seconds to wait.")
@click.pass_context
def delete(
    ctx: click.Context,
    names: tuple[str, ...],
    labels: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    wait: bool,
    timeout: float,
) -> None:
    """Delete jobs with everything that belongs to them; their checkpoints stay in the store.

    \b
    Examples:
      singularityctl delete digits --wait
      singularityctl delete digits words
      singularityctl delete -l team=vision
    """
    kube = open_cluster(kubeconfig, context)
    meant = places(kube, namespace, names, labels, all_namespaces, alive=False)
    if not meant:
        echo(f"no training job with labels {labels}", err=True)
    ctx.exit(each(meant, lambda where, name: _delete(kube, where, name, wait, timeout)))


def _delete(kube: Kube, namespace: str, name: str, wait: bool, timeout: float) -> int:
    found = kinds.named(kube, namespace, name)
    name = name if found is None else kinds.job_key(found)
    if not lifecycle.delete(kube, namespace, name):
        raise JobNotFoundError(f"no training job {name!r} in namespace {namespace!r}")
    deadline = time.monotonic() + timeout
    while wait and kinds.find(kube, namespace, name) is not None:
        if time.monotonic() > deadline:
            echo(f"error: job {namespace}/{name} still has pods after {timeout:.0f} s", err=True)
            return EXIT_FAILED
        time.sleep(_LOOK_S)
    echo(f"job {namespace}/{name} {'deleted' if wait else 'is being deleted'}")
    return 0
