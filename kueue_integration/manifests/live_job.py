"""From a Job in the cluster back to a manifest, and on to the manifest of another Job like it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Origin, to_json

from ..contract import job_names
from ..job.unreadable import readable_or
from ..job.view import Job
from ..kube.resources import Object
from ..spec.privileges import Level
from . import job_secrets
from .pod import files_name, leveled
from .pod_placement import template_name

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_BY_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
_JOB_LABELS = ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")
_WISHES = (
    job_names.ANN_BUDGET, job_names.ANN_WORLD_SIZE, job_names.ANN_WORKERS, job_names.ANN_MIN_WORKERS,
    job_names.ANN_STORE, job_names.ANN_INPUTS, job_names.ANN_CHECKPOINT_EVERY, job_names.ANN_INFRASTRUCTURE_RETRIES,
    job_names.ANN_ENGINE, job_names.ANN_RANKS_PER_WORKER, job_names.ANN_PRIVILEGES_WHY,
)  # fmt: skip
"""Annotations of ours that say what the user wants, and not what has happened."""
_OF_KUEUE = ("kueue.x-k8s.io/podset", job_names.KUEUE_PREBUILT)


def as_written(job: Mapping[str, Any]) -> Object:
    """The manifest of a live Job: without what the API server and the Job controller have put in."""
    result: Object = json.loads(json.dumps(job))
    result.pop("status", None)
    meta, spec = result["metadata"], result["spec"]
    for name in _BY_SERVER:
        meta.pop(name, None)
    (meta.get("annotations") or {}).pop(LAST_APPLIED, None)
    if not spec.get("manualSelector"):
        spec.pop("selector", None)
        template = spec["template"].get("metadata") or {}
        for where in (template.get("labels") or {}, meta.get("labels") or {}):
            for name in _JOB_LABELS:
                where.pop(name, None)
        template.pop("creationTimestamp", None)
    return result


@dataclass(frozen=True)
class Fork:
    """What is different in a Job that goes on from a checkpoint of another one."""

    name: str
    queue: str
    priority_class: str | None
    start: Origin
    command: tuple[str, ...] = ()
    """What its ranks run; empty for the command of the other one."""
    level: Level | None = None
    """Where its capabilities count; None: as in the other one."""


def forked(source: Mapping[str, Any], workload: Mapping[str, Any] | None, new: Fork) -> Object:
    """The Job `new`, suspended, with the pods of `source`.

    While a Job has quota, its template has what Kueue has added for a flavor: `workload` has it as it was.
    Nothing that has happened to `source` is taken over, nor which Airflow task it belongs to.
    """
    made, seen = as_written(source), Job.parse(source)
    meta, spec, old = made["metadata"], made["spec"], str(source["metadata"]["name"])
    podsets = ((workload or {}).get("spec") or {}).get("podSets") or ()
    if podsets and not spec.get("suspend"):
        spec["template"] = json.loads(json.dumps(podsets[0]["template"]))
    labels = {**_kept(meta.get("labels")), job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: new.name}
    meta["labels"] = {**labels, job_names.KUEUE_QUEUE_LABEL: new.queue}
    meta["labels"].pop(job_names.KUEUE_PRIORITY_LABEL, None)
    if new.priority_class is not None:
        meta["labels"][job_names.KUEUE_PRIORITY_LABEL] = new.priority_class
    held = seen.hold is not None
    wishes = {name: text for name in _WISHES if (text := seen.text(name)) is not None}
    meta["annotations"] = {
        **_kept(meta.get("annotations")),
        **wishes,
        job_names.ANN_START_FROM: to_json(new.start),
        **({job_names.ANN_HOLD: job_names.HOLD_ARMED} if held else {}),
        # Beside those of the other one, which it must not write over.
        **({job_names.ANN_OUTPUTS: f"{seen.outputs}.{new.name}"} if seen.outputs else {}),
    }
    for name in ("ownerReferences", "finalizers", "generateName"):
        meta.pop(name, None)
    meta["name"] = new.name
    workers = readable_or(seen.workers, None)
    if workers is not None:
        spec["parallelism"] = spec["completions"] = workers
    spec["suspend"] = True
    spec.pop("activeDeadlineSeconds", None)
    _rename_pods(spec["template"], old, new.name, seen.placed)
    if new.level is not None:
        leveled(spec["template"]["spec"], new.level.name)
        meta["annotations"][job_names.ANN_PRIVILEGES_WHY] = new.level.why
    if new.command:
        for entry in _variables(spec["template"], names.ENV_COMMAND):
            (entry["value"],) = (each["value"] for each in job_secrets.command(new.command))
    return made


def forked_child(child: Mapping[str, Any], old: str, new: str) -> Object:
    """The Service, the files, the Secret or a ResourceClaimTemplate of Job `old` for Job `new`."""
    made: Object = json.loads(json.dumps(child))
    meta = made["metadata"]
    labels = {**_kept(meta.get("labels")), job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: new}
    made["metadata"] = {
        "name": new + str(meta["name"]).removeprefix(old), "namespace": meta["namespace"], "labels": labels,
    }  # fmt: skip
    made.pop("status", None)
    if made["kind"] == "Service":
        spec = made["spec"]
        kept = {key: spec[key] for key in ("publishNotReadyAddresses", "ports") if key in spec}
        made["spec"] = {"clusterIP": "None", **kept, "selector": {job_names.LABEL_JOB: new}}
    return made


def _rename_pods(template: Object, old: str, new: str, placed: bool) -> None:
    """`placed`: a migration has set the affinity, for the queue of the other job."""
    meta, pod = template.setdefault("metadata", {}), template["spec"]
    meta["labels"] = {**_kept(meta.get("labels")), job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: new}
    meta["annotations"] = _kept(meta.get("annotations"))
    if placed:
        pod.pop("affinity", None)
    if pod.get("subdomain") == old:
        pod["subdomain"] = new
    for entry in _variables(template, names.ENV_JOB):
        entry["value"] = new
    for volume in pod.get("volumes") or ():
        for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
            files = source.get("configMap") or {}
            if files.get("name") == files_name(old):
                files["name"] = files_name(new)
    for ref in job_secrets.references(pod):
        if ref.get("name") == job_secrets.secret_name(old):
            ref["name"] = job_secrets.secret_name(new)
    for claim in pod.get("resourceClaims") or ():
        if claim.get("resourceClaimTemplateName") == template_name(old, claim["name"]):
            claim["resourceClaimTemplateName"] = template_name(new, claim["name"])


def _variables(template: Mapping[str, Any], name: str) -> list[Object]:
    pod = template["spec"]
    containers = (*(pod.get("initContainers") or ()), *pod["containers"])
    return [entry for container in containers for entry in container.get("env") or () if entry.get("name") == name]


def _kept(entries: Mapping[str, str] | None) -> dict[str, str]:
    """Labels or annotations of the user's own."""
    gone = (*_OF_KUEUE, *_JOB_LABELS, LAST_APPLIED)
    return {
        key: text for key, text in (entries or {}).items() if key not in gone and not _ours(key.partition("/")[0])
    }


def _ours(domain: str) -> bool:
    return domain == names.DOMAIN or domain.endswith(f".{names.DOMAIN}") or domain == "batch.kubernetes.io"
