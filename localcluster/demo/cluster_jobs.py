"""Manifests of the two ordinary Jobs of the story: the one that preempts, and the uninterrupted reference run.

Neither has anything of this project in it: plain `batch/v1` Jobs as anybody would write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kueue_integration.contract import job_names

Manifest = dict[str, Any]

INTRUDER_LIFETIME_S = 1800
REFERENCE_DEADLINE_S = 900


def intruder(
    name: str, namespace: str, queue: str, image: str, pods: int, cpu: str, priority: str = "high"
) -> Manifest:
    """A Job of high priority that wants `pods` pods with `cpu` each and does nothing with them."""
    labels = {job_names.KUEUE_QUEUE_LABEL: queue, job_names.KUEUE_PRIORITY_LABEL: priority}
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", str(INTRUDER_LIFETIME_S)],
        "resources": {"requests": {"cpu": cpu}},
    }
    return _job(name, namespace, labels, pods, container, volumes=(), deadline_s=INTRUDER_LIFETIME_S)


def reference_script(name: str, namespace: str, file: str, text: str) -> Manifest:
    """ConfigMap with the training script."""
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {file: text}}


def reference(
    name: str,
    namespace: str,
    image: str,
    ranks: int,
    argv: Sequence[str],
    volumes: Sequence[Mapping[str, Any]],
    mounts: Sequence[Mapping[str, Any]],
    env: Mapping[str, str],
) -> Manifest:
    """The script under plain `torchrun`, all ranks in one pod, not queued, never interrupted.

    `argv` is the script and its arguments; the ConfigMap `name` holds the script.
    """
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *argv],
        "workingDir": "/run",  # writable, and nothing of the script lies there
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "volumeMounts": [*mounts, {"name": "script", "mountPath": "/source"}],
    }
    all_volumes = [*volumes, {"name": "script", "configMap": {"name": name}}]
    return _job(name, namespace, {}, 1, container, all_volumes, REFERENCE_DEADLINE_S)


def _job(
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    pods: int,
    container: Mapping[str, Any],
    volumes: Sequence[Mapping[str, Any]],
    deadline_s: int,
) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 0,
            "suspend": bool(labels),
            "activeDeadlineSeconds": deadline_s,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    # `sleep` as pid 1 does not react to SIGTERM.
                    "terminationGracePeriodSeconds": 1,
                    "containers": [container],
                    "volumes": list(volumes),
                }
            },
        },
    }
