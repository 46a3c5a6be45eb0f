"""`render`: a TrainSpec as Kubernetes objects. Pure: no I/O, no clock, no randomness.

One headless Service, one Indexed Job, a ConfigMap when files are shipped, a Secret for what must not stand in the Job,
and a ResourceClaimTemplate for each claim by device class. Kueue suspends, admits, shrinks and moves the Job. The fence
puts attempt, checkpoint, workers and flavor on its pods as annotations, which reach the containers through the Downward
API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from singularity_proxy.protocol import exit_codes, names
from singularity_proxy.protocol.messages import RESTORES

from ..contract import job_names
from ..kube.resources import Object
from ..spec import pod_override, privileges, save_interval, store_access
from ..spec.platform_config import NODE, PlatformConfig
from ..spec.secret_text import SecretText
from ..spec.train_spec import TrainSpec
from ..spec.validate import validate
from . import checkpoint_disk, checkpoint_memory, job_secrets, pod_placement
from .pod import file_keys, files_name, leveled, pod_spec

BACKOFF_LIMIT = 6


def render(spec: TrainSpec, platform: PlatformConfig) -> list[dict[str, Any]]:
    """The objects of `spec`: [ConfigMap,] [Secret,] [ResourceClaimTemplates,] Service, Job, in this order.

    Raises SpecError if the spec is not valid.
    """
    validate(spec, platform)
    objects = [*pod_placement.claim_templates(spec, own_labels(spec)), _service(spec), job(spec, platform)]
    hidden = secrets(spec, platform)
    if hidden:
        objects.insert(0, job_secrets.secret(spec.name, spec.namespace, own_labels(spec), hidden))
    if any(not isinstance(text, SecretText) for text in spec.files.values()):
        objects.insert(0, _config_map(spec))
    # Through JSON: plain data that shares nothing with the caller's spec and platform.
    plain: list[dict[str, Any]] = json.loads(json.dumps(objects))
    return plain


def secrets(spec: TrainSpec, platform: PlatformConfig) -> dict[str, str]:
    """Key -> value of what is in the Secret of the job; empty: it has none."""
    files = {key: spec.files[path] for path, key in file_keys(spec).items()}
    hidden = {key: text for key, text in files.items() if isinstance(text, SecretText)}
    return {**hidden, **job_secrets.found(_template(spec, platform)["spec"])}


def own_labels(spec: TrainSpec) -> dict[str, str]:
    """Labels of every object of the job, and of its pods."""
    labels = {**spec.labels, job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: spec.name}
    if spec.identity is not None:
        labels[job_names.LABEL_IDENTITY] = spec.identity
    return labels


def job(spec: TrainSpec, platform: PlatformConfig) -> Object:
    """The Job alone, suspended: Kueue starts it."""
    labels = {**own_labels(spec), job_names.KUEUE_QUEUE_LABEL: spec.queue}
    template = _template(spec, replace(platform, privileges=NODE))
    template["spec"] = job_secrets.referred(template["spec"], spec.name)
    told = {}
    if not spec.elastic:
        level = privileges.chosen(spec.privileges, platform, template["spec"])
        leveled(template["spec"], level.name)
        told = {job_names.ANN_PRIVILEGES_WHY: level.why}
    if spec.priority_class is not None:
        labels[job_names.KUEUE_PRIORITY_LABEL] = spec.priority_class
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": spec.name,
            "namespace": spec.namespace,
            "labels": labels,
            "annotations": {**_job_annotations(spec, platform), **told},
        },
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "parallelism": spec.workers,
            "completions": spec.workers,
            # A new pod of an index starts only when the old one has ended: two could write the same checkpoint.
            "podReplacementPolicy": "Failed",
            "backoffLimit": _backoff_limit(spec),
            "podFailurePolicy": {"rules": failure_rules(resumed=spec.resume_on_exit_codes)},
            **({} if spec.ttl_s is None else {"ttlSecondsAfterFinished": spec.ttl_s}),
            "template": template,
        },
    }


def _template(spec: TrainSpec, platform: PlatformConfig) -> Object:
    made = {
        "metadata": {"labels": own_labels(spec), "annotations": {**spec.annotations}},
        "spec": pod_spec(spec, platform),
    }
    whole = pod_override.merged(pod_placement.placed(made, spec), spec.pod_override, spec.elastic)
    told = checkpoint_memory.given(whole, spec.checkpoint_memory or platform.checkpoint_memory, spec.elastic)
    return checkpoint_disk.bounded(told, spec.checkpoint_disk or platform.checkpoint_disk, spec.ranks)


def _job_annotations(spec: TrainSpec, platform: PlatformConfig) -> dict[str, str]:
    annotations = {
        **spec.annotations,
        job_names.ANN_BUDGET: str(spec.checkpoint_budget_s),
        job_names.ANN_WORLD_SIZE: str(spec.ranks),
        job_names.ANN_WORKERS: str(spec.workers),
        job_names.ANN_MIN_WORKERS: str(spec.fewest_workers),
        job_names.ANN_STORE: store_access.url_of(spec.store, platform, spec.namespace),
        job_names.COMPLETIONS_EQUAL_PARALLELISM: "true",
    }
    if spec.elastic:
        annotations[job_names.ANN_ENGINE] = names.ENGINE_STATE
        annotations[job_names.ANN_RANKS_PER_WORKER] = str(spec.ranks // spec.workers)
    elif spec.engine == names.ENGINE_BOTH:
        annotations[job_names.ANN_ENGINE] = names.ENGINE_BOTH
    if spec.fewest_workers < spec.workers:
        annotations[job_names.MIN_PARALLELISM] = str(spec.fewest_workers)
    if spec.inputs:
        urls = {name: url.rstrip("/") for name, url in spec.inputs.items()}
        annotations[job_names.ANN_INPUTS] = json.dumps(urls, sort_keys=True)
    if spec.outputs is not None:
        annotations[job_names.ANN_OUTPUTS] = spec.outputs.rstrip("/")
    interval = save_interval.parse(spec.checkpoint_every)
    if interval is not None:
        annotations[job_names.ANN_CHECKPOINT_EVERY] = str(interval)
    if spec.infrastructure_retries is not None:
        annotations[job_names.ANN_INFRASTRUCTURE_RETRIES] = str(spec.infrastructure_retries)
    if spec.hold:
        annotations[job_names.ANN_HOLD] = job_names.HOLD_ARMED
    return annotations


def _backoff_limit(spec: TrainSpec) -> int:
    """Kubernetes counts pods, the budget counts attempts: the controller does, and this only stands behind it.

    Pods that are killed for memory while they are restored have a limit of their own: there is room for a checkpoint
    that none of its tries has brought back.
    """
    retries = spec.infrastructure_retries
    return (BACKOFF_LIMIT if retries is None else retries * spec.workers) + RESTORES * spec.workers


def failure_rules(train: str = job_names.CONTAINER_TRAIN, resumed: Iterable[int] = ()) -> list[Object]:
    """What `exit_codes.TABLE` says, for Kubernetes: the first match wins.

    `train` is the name of the container that trains, `resumed` are more codes that are counted.
    """
    counted = sorted({*exit_codes.COUNTED, *resumed})
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "Ignore",
            "onExitCodes": {"containerName": train, "operator": "In", "values": [*exit_codes.IGNORED]},
        },
        {"action": "FailJob", "onExitCodes": {"containerName": train, "operator": "NotIn", "values": counted}},
    ]


def _service(spec: TrainSpec) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": spec.name, "namespace": spec.namespace, "labels": own_labels(spec)},
        "spec": {
            "clusterIP": "None",
            # Ranks find each other before anything is ready, and while a checkpoint is being restored.
            "publishNotReadyAddresses": True,
            "selector": {job_names.LABEL_JOB: spec.name},
            "ports": [{"name": "mesh", "port": names.MESH_PORT}],
        },
    }


def _config_map(spec: TrainSpec) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": files_name(spec.name), "namespace": spec.namespace, "labels": own_labels(spec)},
        "immutable": True,
        "data": {
            key: text for path, key in file_keys(spec).items() if not isinstance(text := spec.files[path], SecretText)
        },
    }
