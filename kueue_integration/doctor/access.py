"""What the controller itself may do: the API server's answers for its service account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from singularity_proxy.protocol import decode

from ..contract import job_names, kinds
from ..guard import names as guards
from ..kube.api import Kube
from ..kube.resources import (
    ADMISSION_CHECK,
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    CLUSTER_QUEUE,
    COHORT,
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    LEASE,
    LOCAL_QUEUE,
    MULTIKUEUE_CLUSTER,
    MUTATING_WEBHOOK,
    NAMESPACE,
    NODE,
    POD,
    PROGRESS,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_FLAVOR,
    SECRET,
    SERVICE,
    TOKEN_REVIEW,
    TRAINING_RUNTIME,
    WORKLOAD,
    Kind,
    pod_spec,
)
from ..spec import platform_config
from .check import FAIL, OK, REPAIR, Check, listing

SYSTEM: Final = job_names.SYSTEM_NAMESPACE
USER: Final = f"system:serviceaccount:{SYSTEM}:{job_names.CONTROLLER_NAME}"
MOVES: Final = ("cordon", "defragmentation", "health", "introspection")
"""Policies of the planner that ask where a job may go."""


@dataclass(frozen=True)
class Need:
    """:param namespace: None for a kind of the cluster, or for all namespaces of jobs"""

    kind: Kind
    verbs: tuple[str, ...]
    subresource: str | None = None
    name: str | None = None
    namespace: str | None = None


def own(kind: Kind, *verbs: str, name: str | None = None) -> Need:
    """Something in the chart's namespace."""
    return Need(kind, verbs, name=name, namespace=SYSTEM)


NEEDED: Final = (
    *(Need(kind, ("get", "list", "watch", "patch")) for kind in kinds.KINDS),
    Need(POD, ("list", "watch")),
    Need(NODE, ("list", "watch")),
    Need(WORKLOAD, ("get", "list", "watch", "patch")),
    Need(WORKLOAD, ("patch",), subresource="status"),
    Need(CLUSTER_QUEUE, ("list", "watch")),
    Need(LOCAL_QUEUE, ("list", "watch")),
    Need(NAMESPACE, ("get", "patch")),
    Need(RESOURCE_FLAVOR, ("get",)),
    Need(ADMISSION_CHECK, ("get",), name=job_names.ADMISSION_CHECK_NAME),
    Need(ADMISSION_CHECK, ("patch",), subresource="status", name=job_names.ADMISSION_CHECK_NAME),
    Need(PROGRESS, ("create", "list", "patch", "watch")),
    Need(EVENT, ("create",)),
    Need(DISRUPTION_BUDGET, ("list", "delete")),
    Need(TOKEN_REVIEW, ("create",)),
    *(
        Need(kind, ("get",), name=name)
        for kind in (ADMISSION_POLICY, ADMISSION_POLICY_BINDING)
        for name in (job_names.HOLD_LEASE, *guards.POLICIES)
    ),
    own(LEASE, "get", "update", name=job_names.HOLD_LEASE),
    own(LEASE, "create"),
    own(LEASE, "get", "patch", name=job_names.TRUSTED_IMAGES_LEASE),
    own(SECRET, "get", "patch", name=job_names.KEYS_SECRET),
    own(SECRET, "get", name=job_names.CONTROLLER_NAME),
    own(CONFIG_MAP, "get", "patch", name=job_names.PLATFORM_CONFIGMAP),
)
"""Whatever the chart's values are. charts/singularity/templates/rbac.yaml grants it."""


def needed(env: Mapping[str, str]) -> list[Need]:
    """All that a controller needs with these variables of its container."""
    found = list(NEEDED)
    planner, platform = _object(env.get("SINGULARITY_PLANNER")), _object(env.get("SINGULARITY_PLATFORM"))
    modes = {name: value.get("mode") for name, value in planner.items() if isinstance(value, dict)}
    if any(modes.get(name, "none") != "none" for name in MOVES):
        found += [Need(RESOURCE_FLAVOR, ("list",)), Need(LOCAL_QUEUE, ("get",))]
    if modes.get("lending", "none") != "none":
        found.append(Need(COHORT, ("list",)))
    if modes.get("health") == "act" and planner["health"].get("taint"):
        found.append(Need(NODE, ("patch",)))
    if modes.get("cordon") == "act":
        found.append(Need(DISRUPTION_BUDGET, ("create", "patch")))
    if platform.get("trainjob") is True:
        found += [Need(TRAINING_RUNTIME, ("get", "update"), name="singularity"), Need(TRAINING_RUNTIME, ("create",))]
    if platform.get("adoption") is True:
        found.append(Need(MUTATING_WEBHOOK, ("get", "update"), name="singularity-adoption"))
    if env.get("SINGULARITY_MULTIKUEUE_NAMESPACE"):
        companions = (CONFIG_MAP, SERVICE, RESOURCE_CLAIM_TEMPLATE)
        found += [Need(MULTIKUEUE_CLUSTER, ("list", "watch")), *(Need(kind, ("get",)) for kind in companions)]
    return found


def _object(text: str | None) -> dict[str, Any]:
    """The JSON object of a variable; {} for anything else, which the controller itself refuses."""
    found = decode.json_value(text or "{}", platform_config.MAX_TEXT)
    return found if isinstance(found, dict) else {}


def _variables(kube: Kube) -> dict[str, str]:
    """The controller's, as the kubelet gives them: `$$` is one `$`."""
    found = kube.find(DEPLOYMENT, SYSTEM, job_names.CONTROLLER_NAME)
    containers = pod_spec(found).get("containers") or [{}]
    given = containers[0].get("env") or ()
    return {str(each.get("name")): str(each["value"]).replace("$$", "$") for each in given if each.get("value")}


def controller(kube: Kube, namespaces: Sequence[str] = ()) -> Iterator[Check]:
    """One finding: all of it, or what is missing.

    :param namespaces: the only ones whose jobs the controller follows; none: all
    """
    missing = []
    for need in needed(_variables(kube)):
        everywhere = (need.kind.namespaced or need.kind == NAMESPACE) and need.namespace is None
        for where in (namespaces or (None,)) if everywhere else (need.namespace,):
            denied = [
                verb
                for verb in need.verbs
                if not kube.allowed(verb, need.kind, where, need.subresource, user=USER, name=need.name)
            ]
            if denied:
                what = f"{need.kind.plural}{f'/{need.subresource}' if need.subresource else ''}"
                missing.append(f"{'/'.join(denied)} {what}{f' in {where}' if everywhere and where else ''}")
    if missing:
        fix = f"Its ClusterRole, Role or one of their bindings was changed or removed; upgrade:\n{REPAIR}"
        yield Check("controller RBAC", FAIL, f"the controller may not {listing(missing, 9)}", fix)
    else:
        yield Check("controller RBAC", OK, f"{job_names.CONTROLLER_NAME} may do what it has to")
