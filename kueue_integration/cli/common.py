"""What the commands share: which cluster and namespace, the connection to it, and the names of jobs for the shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..contract import kinds
from ..errors import SingularityError
from ..kube.client import ApiKube
from ..kube.credentials import connect, namespace_of

F = TypeVar("F", bound=Callable[..., Any])


def cluster_options(function: F) -> F:
    """`--kubeconfig`, `--context`, `--namespace`."""
    where = click.option(
        "--namespace", "-n", callback=_namespace, help="Namespace of the job. Default: the context's, as with kubectl."
    )
    return connection_options(where(function))


def _namespace(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    return value or namespace_of(ctx.params.get("kubeconfig"), ctx.params.get("context"))


def connection_options(function: F) -> F:
    """`--kubeconfig`, `--context`."""
    for option in (
        # Read before --namespace, whose default depends on them.
        click.option("--context", is_eager=True, help="Context of the kubeconfig."),
        click.option(
            "--kubeconfig", is_eager=True, type=click.Path(dir_okay=False), help="Default: $KUBECONFIG, ~/.kube/config."
        ),
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
        namespace = given.get("namespace") or namespace_of(given.get("kubeconfig"), given.get("context"))
        found = kinds.list_managed(kube, namespace)
    except SingularityError:
        return []
    return [CompletionItem(name) for name in map(kinds.job_key, found) if name.startswith(incomplete)]


job_argument = click.argument("name", shell_complete=complete_jobs)
"""NAME of a job, completed by the shell."""
