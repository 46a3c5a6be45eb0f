"""The kinds that this package touches and the pure rules of the Kubernetes API: paths, selectors, merge patch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

Object = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


@dataclass(frozen=True)
class Kind:
    """Where a kind lives in the API. `group` is "" for the core group."""

    name: str
    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, the object, or its subresource. `namespace` None: all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part is not None]
        return "/" + "/".join(quote(part, safe="") for part in parts)


JOB: Final = Kind("Job", "batch", "v1", "jobs")
JOBSET: Final = Kind("JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets")
TRAINJOB: Final = Kind("TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs")
TRAINING_RUNTIME: Final = Kind(
    "ClusterTrainingRuntime", "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", namespaced=False
)
POD: Final = Kind("Pod", "", "v1", "pods")
CONFIG_MAP: Final = Kind("ConfigMap", "", "v1", "configmaps")
PROGRESS: Final = Kind("JobProgress", "singularity.dev", "v1", "jobprogresses")
"""Our own: the controller's word about a running job, without a weight that others would feel."""
SERVICE: Final = Kind("Service", "", "v1", "services")
EVENT: Final = Kind("Event", "", "v1", "events")
NAMESPACE: Final = Kind("Namespace", "", "v1", "namespaces", namespaced=False)
LEASE: Final = Kind("Lease", "coordination.k8s.io", "v1", "leases")
TOKEN_REVIEW: Final = Kind("TokenReview", "authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
ACCESS_REVIEW: Final = Kind(
    "SelfSubjectAccessReview", "authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False
)
SUBJECT_REVIEW: Final = Kind(
    "SubjectAccessReview", "authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False
)
NODE: Final = Kind("Node", "", "v1", "nodes", namespaced=False)
DEPLOYMENT: Final = Kind("Deployment", "apps", "v1", "deployments")
DISRUPTION_BUDGET: Final = Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets")
ADMISSION_POLICY: Final = Kind(
    "ValidatingAdmissionPolicy",
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    namespaced=False,
)
ADMISSION_POLICY_BINDING: Final = Kind(
    "ValidatingAdmissionPolicyBinding",
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    namespaced=False,
)
MUTATING_WEBHOOK: Final = Kind(
    "MutatingWebhookConfiguration",
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
KUEUE_GROUP: Final = "kueue.x-k8s.io"
KUEUE_VERSION: Final = "v1beta2"
KUEUE_JOB_UID_LABEL: Final = "kueue.x-k8s.io/job-uid"
WORKLOAD: Final = Kind("Workload", KUEUE_GROUP, KUEUE_VERSION, "workloads")
LOCAL_QUEUE: Final = Kind("LocalQueue", KUEUE_GROUP, KUEUE_VERSION, "localqueues")
CLUSTER_QUEUE: Final = Kind("ClusterQueue", KUEUE_GROUP, KUEUE_VERSION, "clusterqueues", namespaced=False)
COHORT: Final = Kind("Cohort", KUEUE_GROUP, KUEUE_VERSION, "cohorts", namespaced=False)
ADMISSION_CHECK: Final = Kind("AdmissionCheck", KUEUE_GROUP, KUEUE_VERSION, "admissionchecks", namespaced=False)
PRIORITY_CLASS: Final = Kind(
    "WorkloadPriorityClass", KUEUE_GROUP, KUEUE_VERSION, "workloadpriorityclasses", namespaced=False
)
RESOURCE_FLAVOR: Final = Kind("ResourceFlavor", KUEUE_GROUP, KUEUE_VERSION, "resourceflavors", namespaced=False)
CLUSTER_PROFILE: Final = Kind("ClusterProfile", "multicluster.x-k8s.io", "v1alpha1", "clusterprofiles")
"""Of the cluster inventory API: a fleet's list of its clusters."""
MULTIKUEUE_CLUSTER: Final = Kind(
    "MultiKueueCluster", KUEUE_GROUP, KUEUE_VERSION, "multikueueclusters", namespaced=False
)
SECRET: Final = Kind("Secret", "", "v1", "secrets")
TOPOLOGY: Final = Kind("Topology", KUEUE_GROUP, KUEUE_VERSION, "topologies", namespaced=False)
DEVICE_CLASS: Final = Kind("DeviceClass", "resource.k8s.io", "v1", "deviceclasses", namespaced=False)
RESOURCE_CLAIM_TEMPLATE: Final = Kind("ResourceClaimTemplate", "resource.k8s.io", "v1", "resourceclaimtemplates")

KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        JOB,
        JOBSET,
        TRAINJOB,
        TRAINING_RUNTIME,
        POD,
        CONFIG_MAP,
        PROGRESS,
        SERVICE,
        EVENT,
        NAMESPACE,
        LEASE,
        TOKEN_REVIEW,
        ACCESS_REVIEW,
        SUBJECT_REVIEW,
        NODE,
        DEPLOYMENT,
        DISRUPTION_BUDGET,
        ADMISSION_POLICY,
        ADMISSION_POLICY_BINDING,
        MUTATING_WEBHOOK,
        WORKLOAD,
        LOCAL_QUEUE,
        CLUSTER_QUEUE,
        COHORT,
        ADMISSION_CHECK,
        PRIORITY_CLASS,
        RESOURCE_FLAVOR,
        MULTIKUEUE_CLUSTER,
        CLUSTER_PROFILE,
        SECRET,
        TOPOLOGY,
        DEVICE_CLASS,
        RESOURCE_CLAIM_TEMPLATE,
    )
}


def kind_of(obj: Mapping[str, Any]) -> Kind:
    """Kind of an object that states `apiVersion` and `kind`. Raises ValueError for one this package does not know."""
    kind = KINDS.get(str(obj.get("kind")))
    if kind is None or kind.api_version != obj.get("apiVersion"):
        raise ValueError(f"unknown kind {obj.get('apiVersion')}/{obj.get('kind')}")
    return kind


def finished(job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the Complete or Failed condition of a Job once it is True, None before."""
    for name in ("Complete", "Failed"):
        if is_true(job, name):
            return condition(job, name)
    return None


def pod_spec(job: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the pod spec in the template of a Job, {} where there is none."""
    return (((job or {}).get("spec") or {}).get("template") or {}).get("spec") or {}


def admission_checks(queue: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the checks of a ClusterQueue, each with its `name` and maybe `onFlavors`."""
    strategy = (queue.get("spec") or {}).get("admissionChecksStrategy") or {}
    return [dict(item) for item in strategy.get("admissionChecks") or ()]


def selector(labels: Mapping[str, str]) -> str:
    """Label selector that asks for all of `labels`."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


_SET_TERM = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")


def matches(labels: Mapping[str, str], query: str | None) -> bool:
    """Whether `labels` satisfy a label selector (equality, `in`, `notin`, existence), as the API server reads it."""
    terms = [term.strip() for term in re.split(r",(?![^()]*\))", query or "") if term.strip()]
    return all(_matches_term(labels, term) for term in terms)


def _matches_term(labels: Mapping[str, str], term: str) -> bool:
    found = _SET_TERM.match(term)
    if found:
        key, operator, listed = found.groups()
        inside = labels.get(key) in {value.strip() for value in listed.split(",")}
        return inside if operator == "in" else not inside
    if "!=" in term:
        key, value = term.split("!=", 1)
        return labels.get(key.strip()) != value.strip()
    if "=" in term:
        key, value = term.replace("==", "=", 1).split("=", 1)
        return labels.get(key.strip()) == value.strip()
    return term[1:].strip() not in labels if term.startswith("!") else term in labels


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: objects merge, null deletes, everything else (lists too) replaces. Returns a new value."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def condition(obj: Mapping[str, Any] | None, name: str) -> Mapping[str, Any] | None:
    """The condition of type `name` in `obj.status.conditions`, whatever its status; None if there is none."""
    for item in ((obj or {}).get("status") or {}).get("conditions") or ():
        if item.get("type") == name:
            found: Mapping[str, Any] = item
            return found
    return None


def is_true(obj: Mapping[str, Any] | None, name: str) -> bool:
    """Whether condition `name` of `obj` is there with status True."""
    found = condition(obj, name)
    return found is not None and found.get("status") == "True"


def annotation(obj: Mapping[str, Any] | None, name: str) -> str | None:
    """Annotation `name` of `obj`, None if absent."""
    return _noted(obj, "annotations", name)


def version_of(obj: Mapping[str, Any] | None) -> str:
    """The object's resourceVersion, "" if absent."""
    return str(((obj or {}).get("metadata") or {}).get("resourceVersion", ""))


def label(obj: Mapping[str, Any] | None, name: str) -> str | None:
    """Label `name` of `obj`, None if absent."""
    return _noted(obj, "labels", name)


def _noted(obj: Mapping[str, Any] | None, where: str, name: str) -> str | None:
    # Asked forty times per look of the controller: no empty mappings are made on the way.
    metadata = obj.get("metadata") if obj else None
    notes = metadata.get(where) if metadata else None
    value = notes.get(name) if notes else None
    return None if value is None else str(value)
