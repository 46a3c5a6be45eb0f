"""A controller that follows a few namespaces: whether this one is among them, and who else waits for its answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..fencing import is_fenced
from ..kube.api import Kube
from ..kube.resources import CLUSTER_QUEUE, LOCAL_QUEUE, Object
from .check import FAIL, OK, REPAIR, Check, listing


def followed(kube: Kube, namespace: str, namespaces: Sequence[str]) -> Iterator[Check]:
    """Nothing where the controller follows all namespaces."""
    if not namespaces:
        return
    if namespace not in namespaces:
        more = ",".join([*namespaces, namespace])
        text = f"the controller follows no jobs of namespace {namespace}, only of {listing(namespaces, 9)}"
        fix = f"Use one of them, or add this one:\n{REPAIR} \\\n  --set 'controller.namespaces={{{more}}}'"
        yield Check("followed", FAIL, text, fix)
        return
    waiting = sorted(_waiting(kube, namespaces))
    if waiting:
        text = f"the controller answers no Workload of {listing(waiting, 5)}, whose queues are fenced or share a cohort"
        fix = (
            "Jobs there never start, and the controller counts no quota that they have. Give them a ClusterQueue in "
            "a cohort of their own, without our check, or add their namespaces to controller.namespaces:\n"
            "kubectl get localqueues -A"
        )
        yield Check("followed", FAIL, text, fix)
        return
    yield Check("followed", OK, f"the controller follows {listing(namespaces, 9)}, and all who use their queues")


def _waiting(kube: Kube, namespaces: Sequence[str]) -> Iterator[str]:
    """LocalQueues of other namespaces that point to a fenced ClusterQueue, or to one of its cohort."""
    queues = {str(queue["metadata"]["name"]): queue for queue in kube.list(CLUSTER_QUEUE)}
    fenced = {name for name, queue in queues.items() if is_fenced(queue)}
    cohorts = {_cohort(queues[name]) for name in fenced} - {""}
    ours = fenced | {name for name, queue in queues.items() if _cohort(queue) in cohorts}
    for queue in kube.list(LOCAL_QUEUE):
        where = str(queue["metadata"]["namespace"])
        if where not in namespaces and (queue.get("spec") or {}).get("clusterQueue") in ours:
            yield f"{where}/{queue['metadata']['name']}"


def _cohort(queue: Object) -> str:
    return str((queue.get("spec") or {}).get("cohortName") or "")
