"""`topology`, `node_selector`, `tolerations` and `resource_claims` of a TrainSpec as parts of the pod template. Pure.

Kueue reads the topology from annotations of the pod template (PodSetRequiredTopologyAnnotation and its relatives in
apis/kueue/v1beta2/topology_types.go, v0.19). It adds node selector and tolerations of the flavor to those of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..contract import job_names
from ..kube.resources import KUEUE_GROUP, RESOURCE_CLAIM_TEMPLATE, Object
from ..spec.pod_placement import UNCONSTRAINED
from ..spec.train_spec import TrainSpec

REQUIRED_TOPOLOGY: Final = f"{KUEUE_GROUP}/podset-required-topology"
PREFERRED_TOPOLOGY: Final = f"{KUEUE_GROUP}/podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY: Final = f"{KUEUE_GROUP}/podset-unconstrained-topology"
REQUEST: Final = "devices"
"""Name of the one request in a claim that we make."""


def placed(template: Object, spec: TrainSpec) -> Object:
    """`template` (metadata and spec of a training pod) with what `spec` says about place and devices."""
    annotations = {**template["metadata"].get("annotations", {}), **_topology(spec.topology)}
    pod = {**template["spec"]}
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        pod["tolerations"] = [dict(each) for each in spec.tolerations]
    if spec.resource_claims:
        pod["resourceClaims"] = [_reference(spec.name, each) for each in spec.resource_claims]
        claims = [{"name": each["name"]} for each in spec.resource_claims]
        pod["containers"] = [
            {**c, "resources": {**c.get("resources", {}), "claims": claims}}
            if c["name"] == job_names.CONTAINER_TRAIN
            else c
            for c in pod["containers"]
        ]
    return {**template, "metadata": {**template["metadata"], "annotations": annotations}, "spec": pod}


def claim_templates(spec: TrainSpec, labels: Mapping[str, str]) -> list[Object]:
    """A ResourceClaimTemplate for each claim that names a device class: Kubernetes makes a claim per pod from it."""
    return [
        {
            "apiVersion": RESOURCE_CLAIM_TEMPLATE.api_version,
            "kind": RESOURCE_CLAIM_TEMPLATE.name,
            "metadata": {
                "name": template_name(spec.name, each["name"]), "namespace": spec.namespace, "labels": dict(labels),
            },
            "spec": {"spec": {"devices": {"requests": [{"name": REQUEST, "exactly": _exactly(each)}]}}},
        }
        for each in spec.resource_claims
        if each.get("device_class") is not None
    ]  # fmt: skip


def template_name(job: str, claim: str) -> str:
    """Name of the ResourceClaimTemplate that belongs to a job."""
    return f"{job}-{claim}"


def asks_for_topology(template: Mapping[str, Any]) -> bool:
    """Whether these pods ask Kueue for a topology."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return any(name in annotations for name in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, UNCONSTRAINED_TOPOLOGY))


def _topology(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if given == UNCONSTRAINED:
        return {UNCONSTRAINED_TOPOLOGY: "true"}
    names = {"required": REQUIRED_TOPOLOGY, "preferred": PREFERRED_TOPOLOGY}
    return {names[how]: str(label) for how, label in given.items()}


def _reference(job: str, claim: Mapping[str, Any]) -> Object:
    template = claim.get("template") or template_name(job, claim["name"])
    return {"name": claim["name"], "resourceClaimTemplateName": template}


def _exactly(claim: Mapping[str, Any]) -> Object:
    # Kueue counts claims of this mode only.
    made: Object = {
        "deviceClassName": claim["device_class"], "allocationMode": "ExactCount", "count": claim.get("count", 1),
    }  # fmt: skip
    selectors = [{"cel": {"expression": text}} for text in claim.get("selectors") or ()]
    return {**made, "selectors": selectors} if selectors else made
