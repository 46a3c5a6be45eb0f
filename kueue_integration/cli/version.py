"""`version`: of this program, of what is installed in the cluster, of Kueue and of Kubernetes."""

from __future__ import annotations

import click

from singularity_proxy.protocol import VERSION

from ..contract import job_names
from ..errors import Forbidden, NotFound, SingularityError
from ..kube.api import Kube
from ..kube.resources import DEPLOYMENT, label
from . import formats
from .common import connection_options, open_cluster
from .output import echo

KUEUE = ("kueue-system", "kueue-controller-manager")
UNKNOWN = "unknown"


@click.command()
@connection_options
@click.option("--client", is_flag=True, help="Only the version of this program: no cluster is asked.")
@click.option("-o", "--output", type=formats.Output(("table", "json", "yaml")), default="table", show_default=True)
def version(kubeconfig: str | None, context: str | None, client: bool, output: str) -> None:
    """Show the versions of this program, of the controller in the cluster, of Kueue and of Kubernetes.

    \b
    Examples:
      singularityctl version
      singularityctl version --client -o json
    """
    found = {"client": VERSION}
    problem = ""
    if not client:
        try:
            found |= served(open_cluster(kubeconfig, context))
        except SingularityError as error:  # that of the client is wanted all the same
            problem = str(error)
    if output == "table":
        echo("\n".join(f"{part.title() + ':':<12} {number}" for part, number in found.items()))
    else:
        echo(formats.text(formats.described("Version", {"versions": found}), output))
    if problem:
        raise click.ClickException(f"no version of the cluster: {problem}")


def served(kube: Kube) -> dict[str, str]:
    """Return the versions of what runs in the cluster; `unknown`: not there, or not for this user. Raises KubeError."""
    return {
        "controller": _deployed(kube, job_names.SYSTEM_NAMESPACE, job_names.CONTROLLER_NAME),
        "kueue": _deployed(kube, *KUEUE),
        "kubernetes": str(kube.get_path("/version").get("gitVersion") or UNKNOWN),
    }


def _deployed(kube: Kube, namespace: str, name: str) -> str:
    """Its label of the version, else the tag of its image."""
    try:
        found = kube.get(DEPLOYMENT, namespace, name)
    except (NotFound, Forbidden):
        return UNKNOWN
    if said := label(found, "app.kubernetes.io/version"):
        return said
    image = str(found["spec"]["template"]["spec"]["containers"][0].get("image") or "").partition("@")[0]
    return image.rpartition("/")[2].partition(":")[2] or UNKNOWN
