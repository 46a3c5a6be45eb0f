"""What the commands share: which cluster and namespace, the connection to it, and the names of jobs for the shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..contract import kinds
from ..errors import SingularityError
from ..kube.client import ApiKube, connect

F = TypeVar("F", bound=Callable[..., Any])


def cluster_options(function: F) -> F:
    """`--kubeconfig`, `--context`, `--namespace`."""
    where = click.option("--namespace", "-n", default="default", show_default=True, help="Namespace of the job.")
    return connection_options(where(function))


def connection_options(function: F) -> F:
    """`--kubeconfig`, `--context`."""
    for option in (
        click.option("--context", help="Context of the kubeconfig."),
        click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Default: $KUBECONFIG, ~/.kube/config."),
    ):
        function = option(function)
    return function


def open_cluster(kubeconfig: str | None, context: str | None) -> ApiKube:
    """A client. Raises PlatformError."""
    return connect(kubeconfig, context)


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of training jobs for the shell; none, and no complaint, where the cluster does not answer."""
    given = ctx.params
    try:
        kube = open_cluster(given.get("kubeconfig"), given.get("context"))
        found = kinds.list_managed(kube, given.get("namespace") or "default")
    except SingularityError:
        return []
    return [CompletionItem(name) for name in map(kinds.job_key, found) if name.startswith(incomplete)]


job_argument = click.argument("name", shell_complete=complete_jobs)
"""NAME of a job, completed by the shell."""
