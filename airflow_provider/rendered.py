"""The manifests of a job as the tab `Rendered Templates` shows them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import Object
from kueue_integration.manifests.job_manifests import failure_rules

_OWN = (job_names.CONTAINER_INSTALL, job_names.CONTAINER_SIDECAR)
_BORING = ("securityContext", "imagePullPolicy")


def text(objects: Sequence[Object]) -> str:
    """YAML of `objects` as they were sent to the cluster, without what is the same for every job.

    Labels stand once, at the Job.
    Airflow cuts rendered fields at `[core] max_templated_field_length` (4096 characters). So what the Dag says comes
    first; files are shown by their size, and our own containers by name.
    """
    return "---\n".join(yaml.safe_dump(_short(obj), sort_keys=False, width=200) for obj in reversed(objects))


def _short(obj: Object) -> Object:
    kept: dict[str, Any] = {key: value for key, value in obj.items() if key not in ("data", "apiVersion")}
    labels = obj["metadata"].get("labels") or {}
    if obj["kind"] != "Job":  # they have the Job's labels
        kept["metadata"] = {key: value for key, value in obj["metadata"].items() if key != "labels"}
    if "data" in obj:
        secret = obj["kind"] == "Secret"
        kept["data"] = {k: "***" if secret else f"<{len(v.encode())} bytes>" for k, v in obj["data"].items()}
    template = (obj.get("spec") or {}).get("template")
    if template:
        own = {key: value for key, value in (template["metadata"].get("labels") or {}).items() if key not in labels}
        pod = {"metadata": {**template["metadata"], "labels": own}, "spec": _pod(template["spec"])}
        kept["spec"] = {**{k: v for k, v in obj["spec"].items() if k != "podFailurePolicy"}, "template": pod}
        if obj["spec"]["podFailurePolicy"] != {"rules": failure_rules()}:  # the job has exit codes of its own
            kept["spec"]["podFailurePolicy"] = obj["spec"]["podFailurePolicy"]
    return kept


def _pod(spec: Object) -> Object:
    volumes = [v if not v["name"].startswith("singularity-") else {"name": v["name"]} for v in spec["volumes"]]
    return {
        **{key: value for key, value in spec.items() if key not in ("containers", "initContainers", "volumes")},
        "containers": [_container(c) for c in spec["containers"]],
        "initContainers": [
            {key: c[key] for key in ("name", "image", "resources") if key in c}
            if c["name"] in _OWN
            else c
            for c in spec["initContainers"]
        ],
        "volumes": [v for v in volumes if len(v) > 1],
    }


def _container(container: Object) -> Object:
    shown = {key: value for key, value in container.items() if key not in _BORING}
    shown["env"] = [e for e in container.get("env") or () if not _downward(e)]
    shown["volumeMounts"] = [m for m in container["volumeMounts"] if not m["name"].startswith("singularity-")]
    return shown


def _downward(entry: Object) -> bool:
    """Whether it only tells the pod about itself."""
    return "fieldRef" in (entry.get("valueFrom") or {})
