"""Plain Jobs for the tests of adoption, used by the unit tests and, on the real API server, by the end-to-end tests."""

from __future__ import annotations

import copy
from typing import Any

from kueue_integration.contract import job_names

Job = dict[str, Any]


def plain(name: str = "mine", **labels: str) -> Job:
    """A training Job as somebody writes it who has never heard of us."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": "training", "team": "vision", **labels},
            "annotations": {"kueue.x-k8s.io/job-min-parallelism": "1"},
        },
        "spec": {
            "completionMode": "Indexed",
            "parallelism": 2,
            "completions": 2,
            "backoffLimit": 3,
            "template": {
                "metadata": {"labels": {"app": "train"}},
                "spec": {
                    "restartPolicy": "Never",
                    "initContainers": [{"name": "fetch", "image": "example/fetch:1", "command": ["fetch"]}],
                    "containers": [
                        {
                            "name": "trainer",
                            "image": "example/mine:1",
                            "command": ["python3"],
                            "args": ["train.py", "--name", "$(NAME)", 'a "quoted" $word'],
                            "workingDir": "/src",
                            "env": [
                                {"name": "PYTHONPATH", "value": "/src/lib"},
                                {"name": "OMP_NUM_THREADS", "value": "2"},
                                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                            ],
                            "resources": {"requests": {"cpu": "50m"}},
                            "volumeMounts": [
                                {"name": "dshm", "mountPath": "/dev/shm"},
                                {"name": "src", "mountPath": "/src"},
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "dshm", "emptyDir": {"medium": "Memory"}},
                        {"name": "src", "emptyDir": {}},
                    ],
                },
            },
        },
    }


def labelled(job: Job) -> Job:
    """The Job with the label by which it is to be adopted."""
    result = copy.deepcopy(job)
    result["metadata"].setdefault("labels", {})[job_names.LABEL_MANAGED] = "true"
    return result


def bare(name: str = "bare") -> Job:
    """The shortest Job that can be adopted."""
    container = {"name": "c", "image": "example/mine:1", "command": ["train"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "training"}},
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def jobset(name: str = "mine") -> Job:
    """The plain Job, without its minimum, as the only one of a JobSet."""
    job = plain(name)
    del job["metadata"]["annotations"]
    replicated = {"name": "workers", "replicas": 1, "template": {"spec": job["spec"]}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": job["metadata"],
        "spec": {"replicatedJobs": [replicated]},
    }


def trainjob(name: str = "mine") -> Job:
    """The plain Job, without its minimum, as a TrainJob of two ranks per node with a volume of its own."""
    job = plain(name)
    del job["metadata"]["annotations"]
    (user,) = job["spec"]["template"]["spec"]["containers"]
    mounts = [{"name": "src", "mountPath": "/src"}]
    pod = {"volumes": [{"name": "src", "emptyDir": {}}], "containers": [{"name": "node", "volumeMounts": mounts}]}
    patched = [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]
    patch = {"manager": "example.com/me", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": patched}}}}
    trainer = {key: user[key] for key in ("image", "command", "args")}
    trainer |= {"numNodes": 2, "numProcPerNode": 2, "env": user["env"][:2]}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": job["metadata"],
        "spec": {"runtimeRef": {"name": "singularity"}, "trainer": trainer, "runtimePatches": [patch]},
    }


def changed(path: str, value: Any, job: Job | None = None) -> Job:
    """`job` with the value at `a.b.0.c` replaced; None removes it."""
    result = copy.deepcopy(job or plain())
    keys = [int(key) if key.isdigit() else key.replace("~", ".") for key in path.split(".")]
    target: Any = result
    for key in keys[:-1]:
        target = target[key] if isinstance(key, int) else target.setdefault(key, {})
    if value is None:
        del target[keys[-1]]
    else:
        target[keys[-1]] = value
    return result


_POD = "spec.template.spec"
_C = f"{_POD}.containers.0"
_CONTAINER = plain()["spec"]["template"]["spec"]["containers"][0]
BAD: list[tuple[str, str, Any]] = [
    ("metadata.name", "metadata.name", "n" * 53),
    ("metadata.labels[kueue.x-k8s.io/queue-name]", "metadata.labels.kueue~x-k8s~io/queue-name", None),
    ("metadata.annotations[kueue.x-k8s.io/elastic-job]", "metadata.annotations.kueue~x-k8s~io/elastic-job", "true"),
    ("metadata.annotations", "metadata.annotations.singularity~dev/checkpoint", "{}"),
    ("spec.completionMode", "spec.completionMode", None),
    ("spec.completionMode", "spec.completionMode", "NonIndexed"),
    ("spec.completions", "spec.completions", 4),
    ("spec.podFailurePolicy", "spec.podFailurePolicy",
     {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}),
    ("spec.backoffLimitPerIndex", "spec.backoffLimitPerIndex", 1),
    ("spec.managedBy", "spec.managedBy", "example.com/controller"),
    ("spec.template.spec.restartPolicy", f"{_POD}.restartPolicy", "OnFailure"),
    ("spec.template.spec.hostPID", f"{_POD}.hostPID", True),
    ("spec.template.spec.hostIPC", f"{_POD}.hostIPC", True),
    ("spec.template.spec.hostNetwork", f"{_POD}.hostNetwork", True),
    ("spec.template.spec.shareProcessNamespace", f"{_POD}.shareProcessNamespace", True),
    ("spec.template.spec.initContainers", f"{_POD}.initContainers.0.name", "install-agent"),
    ("spec.template.spec.containers", f"{_POD}.containers", [_CONTAINER, {**_CONTAINER, "name": "second"}]),
    ("spec.template.spec.containers[0].command", f"{_C}.command", None),
    ("spec.template.spec.containers[0].command", f"{_C}.command", ["/usr/bin/torchrun"]),
    ("spec.template.spec.containers[0].command", f"{_C}.args", ["-m", "torch.distributed.run", "train.py"]),
    ("spec.template.spec.containers[0].securityContext", f"{_C}.securityContext",
     {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}}),
    ("spec.template.spec.containers[0].securityContext", f"{_C}.securityContext", {"allowPrivilegeEscalation": False}),
    ("spec.template.spec.containers[0].securityContext.runAsNonRoot", f"{_C}.securityContext", {"runAsNonRoot": True}),
    ("spec.template.spec.securityContext.runAsGroup", f"{_POD}.securityContext", {"runAsGroup": 5}),
    ("spec.template.spec.securityContext.runAsNonRoot", f"{_POD}.securityContext",
     {"runAsNonRoot": True, "runAsUser": 0, "runAsGroup": 5}),
    ("spec.template.spec.containers[0].restartPolicy", f"{_C}.restartPolicy", "Always"),
    ("spec.template.spec.containers[0].livenessProbe", f"{_C}.livenessProbe", {"exec": {"command": ["true"]}}),
    ("spec.template.spec.containers[0].readinessProbe", f"{_C}.readinessProbe", {"exec": {"command": ["true"]}}),
    ("spec.template.spec.containers[0].startupProbe", f"{_C}.startupProbe", {"exec": {"command": ["true"]}}),
    ("spec.template.spec.containers[0].lifecycle", f"{_C}.lifecycle", {"preStop": {"exec": {"command": ["true"]}}}),
    ("spec.template.spec.containers[0].env", f"{_C}.env.1.name", "SINGULARITY_JOB"),
    ("spec.template.spec.containers[0].env[PYTHONPATH]", f"{_C}.env.0",
     {"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
    ("spec.template.spec.containers[0].volumeMounts", f"{_C}.volumeMounts.1.mountPath", "/singularity/run"),
    ("spec.template.spec.containers[0].volumeMounts", f"{_C}.volumeMounts.1.mountPath", "/shared"),
    *(
        ("spec.template.spec.containers[0].volumeMounts", f"{_C}.volumeMounts.1.mountPath", path)
        for path in ("//singularity/agent", "singularity/agent", "/x/../singularity", "/src//data", "/src/nvidia",
                     "/proc/self/root/singularity/agent", "/dev/shm/a/agent", "/dev/shm/src", "/shared/a/agent")
    ),
    *(
        ("spec.template.spec.containers[0].volumeMounts", f"{_C}.volumeMounts.0.mountPath", path)
        for path in ("/src/a/agent", "/opt")
    ),
    ("metadata.annotations[singularity.dev/world-size]", "metadata.annotations.singularity~dev/world-size", "3"),
    ("metadata.annotations[singularity.dev/world-size]", "metadata.annotations.singularity~dev/world-size", "many"),
    ("metadata.annotations[singularity.dev/world-size]", "metadata.annotations.singularity~dev/world-size", "99998"),
    ("metadata.annotations[kueue.x-k8s.io/job-min-parallelism]",
     "metadata.annotations.kueue~x-k8s~io/job-min-parallelism", "3"),
    ("metadata.annotations[singularity.dev/checkpoint-budget-seconds]",
     "metadata.annotations.singularity~dev/checkpoint-budget-seconds", "0"),
    ("metadata.annotations[singularity.dev/checkpoint-budget-seconds]",
     "metadata.annotations.singularity~dev/checkpoint-budget-seconds", "99999"),
    ("metadata.annotations[singularity.dev/privileges]", "metadata.annotations.singularity~dev/privileges", "root"),
]  # fmt: skip
"""(field that must be named, path of the change, value)."""

_PATCH = "spec.runtimePatches.0.trainingRuntimeSpec.template.spec.replicatedJobs.0.template.spec.template.spec"
BAD_TRAINJOBS: list[tuple[str, str, Any]] = [
    ("metadata.name", "metadata.name", "n" * 53),
    ("metadata.labels[kueue.x-k8s.io/queue-name]", "metadata.labels.kueue~x-k8s~io/queue-name", None),
    ("spec.template.spec.containers[0].command", "spec.trainer.command", None),
    ("spec.template.spec.containers[0].command", "spec.trainer.command", ["torchrun", "train.py"]),
    ("spec.template.spec.containers[0].env", "spec.trainer.env.1.name", "SINGULARITY_JOB"),
    ("spec.template.spec.volumes", f"{_PATCH}.volumes",
     [{"name": "src", "emptyDir": {}}, {"name": "shared", "emptyDir": {}}]),
    ("mountPath", f"{_PATCH}.containers.0.volumeMounts.0.mountPath", "/src/nvidia"),
    ("spec.template.spec.containers[0].securityContext", f"{_PATCH}.containers.0.securityContext",
     {"runAsUser": 5, "readOnlyRootFilesystem": True}),
    ("spec.template.spec.containers[0].securityContext.runAsUser", f"{_PATCH}.containers.0.securityContext",
     {"runAsUser": -1}),
    ("spec.template.spec.containers[0].securityContext.runAsNonRoot", f"{_PATCH}.containers.0.securityContext",
     {"runAsNonRoot": True}),
]  # fmt: skip
"""(field of the Job that it stands for, path of the change, value)."""

GOOD: list[Job] = [
    plain(),
    bare(),
    changed(f"{_POD}.terminationGracePeriodSeconds", 300),
    changed(f"{_POD}.automountServiceAccountToken", True),
    changed("metadata.annotations.singularity~dev/world-size", "4"),
    changed("metadata.annotations.singularity~dev/store", "gs://bucket/mine"),
    changed("metadata.annotations.singularity~dev/checkpoint-budget-seconds", "30"),
    changed("metadata.annotations.singularity~dev/privileges", "userns"),
    changed("metadata.annotations.singularity~dev/privileges", "node"),
    changed("metadata.annotations.singularity~dev/privileges", "auto"),
    changed(f"{_C}.securityContext", {}),
    changed(f"{_C}.securityContext", {"runAsUser": 1000, "runAsNonRoot": True}),
    changed(f"{_POD}.securityContext", {"runAsUser": 0, "fsGroup": 5}),
    changed(f"{_C}.securityContext", {"runAsGroup": 5}),
    changed(
        f"{_C}.securityContext",
        {"runAsUser": 7, "runAsGroup": 8},
        changed(
            f"{_POD}.securityContext",
            {
                "runAsUser": 1000,
                "runAsGroup": 1001,
                "fsGroup": 2000,
                "supplementalGroups": [4, 3],
                "runAsNonRoot": True,
                "supplementalGroupsPolicy": "Strict",
            },
        ),
    ),
    changed(
        f"{_C}.securityContext",
        {"runAsNonRoot": False},
        changed(
            f"{_POD}.securityContext",
            {
                "runAsNonRoot": True,
            },
        ),
    ),
]
