"""What the controller itself may do: the API server's answers for its service account."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..contract import job_names, kinds
from ..kube.api import Kube
from ..kube.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    LEASE,
    LOCAL_QUEUE,
    NODE,
    POD,
    PROGRESS,
    TOKEN_REVIEW,
    WORKLOAD,
    Kind,
)
from .check import FAIL, OK, REPAIR, Check, listing

USER = f"system:serviceaccount:{job_names.SYSTEM_NAMESPACE}:{job_names.CONTROLLER_NAME}"


@dataclass(frozen=True)
class Need:
    kind: Kind
    verbs: tuple[str, ...]
    subresource: str | None = None
    name: str | None = None
    namespace: str | None = None


NEEDED = (
    *(Need(kind, ("get", "list", "watch", "patch")) for kind in kinds.KINDS),
    Need(POD, ("list", "watch")),
    Need(NODE, ("list", "watch")),
    Need(WORKLOAD, ("get", "list", "watch", "patch")),
    Need(WORKLOAD, ("patch",), subresource="status"),
    Need(CLUSTER_QUEUE, ("list", "watch")),
    Need(LOCAL_QUEUE, ("list", "watch")),
    Need(ADMISSION_CHECK, ("get",), name=job_names.ADMISSION_CHECK_NAME),
    Need(ADMISSION_CHECK, ("patch",), subresource="status", name=job_names.ADMISSION_CHECK_NAME),
    Need(PROGRESS, ("create", "list", "patch", "watch")),
    Need(LEASE, ("get", "update"), name=job_names.HOLD_LEASE, namespace=job_names.SYSTEM_NAMESPACE),
    Need(TOKEN_REVIEW, ("create",)),
)
"""Without any of these jobs do not start, are not held, or start where they cannot be restored.

charts/singularity/templates/rbac.yaml grants them."""


def controller(kube: Kube) -> Iterator[Check]:
    """One finding: all of it, or what is missing."""
    missing = []
    for need in NEEDED:
        denied = [
            verb
            for verb in need.verbs
            if not kube.allowed(verb, need.kind, need.namespace, need.subresource, user=USER, name=need.name)
        ]
        if denied:
            missing.append(f"{'/'.join(denied)} {need.kind.plural}{f'/{need.subresource}' if need.subresource else ''}")
    if missing:
        fix = f"Its ClusterRole, Role or one of their bindings was changed or removed; upgrade:\n{REPAIR}"
        yield Check("controller RBAC", FAIL, f"the controller may not {listing(missing, 9)}", fix)
    else:
        yield Check("controller RBAC", OK, f"{job_names.CONTROLLER_NAME} may do what it has to")
