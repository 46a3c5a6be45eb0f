"""What the commands share: the options that say which cluster and namespace, and the connection they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..k8s import ApiKube, connect

F = TypeVar("F", bound=Callable[..., Any])


def cluster_options(function: F) -> F:
    """`--kubeconfig`, `--context`, `--namespace`."""
    for option in (
        click.option("--namespace", "-n", default="default", show_default=True, help="Namespace of the job."),
        click.option("--context", help="Context of the kubeconfig."),
        click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Default: $KUBECONFIG, ~/.kube/config."),
    ):
        function = option(function)
    return function


def open_cluster(kubeconfig: str | None, context: str | None) -> ApiKube:
    """A client. Raises PlatformError."""
    return connect(kubeconfig, context)
