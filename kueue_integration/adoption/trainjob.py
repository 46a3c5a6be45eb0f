"""`adopted_trainjob`: a TrainJob of Kubeflow Trainer, started behind our launcher; and the runtime it needs. Pure.

A TrainJob has no field for a container, so our parts are those of the ClusterTrainingRuntime `RUNTIME`, which the
controller makes (chart value `trainjob.enabled`). What differs between jobs stands in the TrainJob: its program and
environment in `spec.trainer`, the rest in a runtime patch of ours. Held to the same rules as a Job
(`judge`): docs/workload-kinds.md.

Trainer applies the runtime again at each resume, and JobSet refuses another pod template. So a TrainJob runs on a copy
of the runtime that nobody changes, `version`, whatever the platform's next release puts into `RUNTIME`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..contract import job_names
from ..contract.kinds import CONTAINER_NODE, job_key
from ..errors import SpecError
from ..job.view import Job
from ..kube.resources import TRAINING_RUNTIME, TRAINJOB, Object, annotation
from ..manifests.job_manifests import BACKOFF_LIMIT, failure_rules
from ..manifests.pod import LAUNCHER, leveled
from ..spec import privileges
from ..spec.platform_config import AUTO, NODE, PRIVILEGES, PlatformConfig
from .patch import GRACE_LEAST, PER_JOB, adopted, parts, wish

Problem = tuple[str, object, str]
RUNTIME = job_names.RUNTIME
NO_IMAGE = "none"
"""Of the runtime on a platform without a training image: every TrainJob has to name one."""
VERSION = {"singularity.dev/runtime-version": "true"}
"""Label of the copies that TrainJobs run on."""
FRAMEWORK = {"trainer.kubeflow.org/framework": "torch"}
"""Label by which Kubeflow's clients know what a runtime is for."""
MANAGER = "singularity.dev/adoption"
"""Of our entry in `spec.runtimePatches`."""


def level(platform: PlatformConfig) -> privileges.Level:
    """The level of every TrainJob: at `auto` that which goes with all volumes and devices."""
    if platform.privileges == AUTO:
        return privileges.Level(NODE, "one runtime for all TrainJobs, whatever volumes and devices they have")
    return privileges.chosen(None, platform)


def runtime(platform: PlatformConfig) -> Object:
    """The ClusterTrainingRuntime: one Indexed Job of `spec.trainer.numNodes` pods with our parts."""
    pod = parts(platform)
    (train,) = pod["containers"]
    own = {"name": CONTAINER_NODE, "imagePullPolicy": platform.image_pull_policy}
    own["image"] = platform.train_image or NO_IMAGE
    pod["containers"] = [{**train, **own, "command": [*LAUNCHER]}]
    leveled(pod, level(platform).name)
    pod.update(
        terminationGracePeriodSeconds=GRACE_LEAST,
        automountServiceAccountToken=False,
        enableServiceLinks=False,
    )
    job = {
        "completionMode": "Indexed",
        # A new pod of an index starts only when the old one has ended: two could write the same checkpoint.
        "podReplacementPolicy": "Failed",
        "backoffLimit": BACKOFF_LIMIT,
        "podFailurePolicy": {"rules": failure_rules(CONTAINER_NODE)},
        "template": {"spec": pod},
    }
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}, "spec": job}
    return {
        "apiVersion": TRAINING_RUNTIME.api_version,
        "kind": TRAINING_RUNTIME.name,
        "metadata": {"name": RUNTIME, "labels": {**FRAMEWORK}},
        "spec": {
            "mlPolicy": {"numNodes": 1},  # the launcher sets what torchrun would
            "template": {"spec": {"replicatedJobs": [{"name": CONTAINER_NODE, "replicas": 1, "template": step}]}},
        },
    }


def version(runtime: Object) -> Object:
    """Return a copy of `runtime` whose name says what is in it, so that its content never has to change."""
    digest = hashlib.sha256(json.dumps(runtime["spec"], sort_keys=True).encode()).hexdigest()
    meta = runtime["metadata"]
    labels = {**meta["labels"], **VERSION}
    return {**runtime, "metadata": {**meta, "name": f"{meta['name']}-{digest[:10]}", "labels": labels}}


def adopted_trainjob(trainjob: Mapping[str, Any], platform: PlatformConfig) -> Object:
    """A new manifest: `trainjob` as its owner wrote it, behind our launcher. Raises SpecError."""
    result: Object = json.loads(json.dumps(trainjob))
    made = adopted(as_job(result, platform), platform, job_key(result))
    spec = result["spec"]
    trainer = spec.setdefault("trainer", {})
    trainer.pop("numProcPerNode", None)
    result["metadata"] = made["metadata"]
    result["metadata"]["annotations"].pop(job_names.COMPLETIONS_EQUAL_PARALLELISM)
    result["metadata"]["annotations"][job_names.ANN_PRIVILEGES_WHY] = level(platform).why
    pod = made["spec"]["template"]["spec"]
    (train,) = pod["containers"]
    theirs = parts(platform)["containers"][0]["env"]
    trainer["command"] = train["command"]
    trainer["env"] = [entry for entry in train["env"] if entry not in theirs]
    trainer["numNodes"] = made["spec"]["parallelism"]
    sidecar = next(c for c in pod["initContainers"] if c["name"] == job_names.CONTAINER_SIDECAR)
    per_job = [entry for entry in sidecar["env"] if entry["name"] in PER_JOB]
    labels = made["spec"]["template"]["metadata"]["labels"]
    patch = {"initContainers": [{"name": job_names.CONTAINER_SIDECAR, "env": per_job}]}
    template = {"spec": {"template": {"metadata": {"labels": labels}, "spec": patch}}}
    jobs = [{"name": CONTAINER_NODE, "template": template}]
    ours = {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    for patched in _pod_patches(spec):
        for container in patched.get("containers") or ():
            container.pop("securityContext", None)  # the launcher's user: it makes itself another one's (`run_as`)
    spec["runtimePatches"] = [*(spec.get("runtimePatches") or ()), ours]
    if platform.training_runtime:
        spec["runtimeRef"]["name"] = platform.training_runtime
    spec["suspend"] = True
    return result


def as_job(trainjob: Mapping[str, Any], platform: PlatformConfig) -> Object:
    """The Job that the TrainJob stands for, as its owner wrote it. Raises SpecError that names what no Job has."""
    found = _problems(trainjob, platform)
    if found:
        raise SpecError(found)
    trainer = trainjob["spec"].get("trainer") or {}
    workers, ranks_each = (int(trainer.get(name) or 1) for name in ("numNodes", "numProcPerNode"))
    meta: Object = json.loads(json.dumps(trainjob["metadata"]))
    if ranks_each > 1 and Job.parse(trainjob).world_size is None:
        meta.setdefault("annotations", {})[job_names.ANN_WORLD_SIZE] = str(workers * ranks_each)
    container: Object = {"name": CONTAINER_NODE, "image": platform.train_image}
    container |= {k: trainer[k] for k in ("image", "command", "args", "env") if k in trainer}
    pod: Object = {"restartPolicy": "Never", "containers": [container]}
    for theirs in _pod_patches(trainjob["spec"]):
        _join(pod, theirs)
        pod["volumes"] = [*pod.get("volumes", ()), *(theirs.get("volumes") or ())]
        for patched in theirs.get("containers") or ():
            container["volumeMounts"] = [*container.get("volumeMounts", ()), *(patched.get("volumeMounts") or ())]
            _join(container, patched)
    spec = {"completionMode": "Indexed", "parallelism": workers, "completions": workers, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def _pod_patches(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What the owner's runtime patches say of the pods."""
    for patch in spec.get("runtimePatches") or ():
        jobset = ((patch.get("trainingRuntimeSpec") or {}).get("template") or {}).get("spec") or {}
        for job in jobset.get("replicatedJobs") or ():
            template = ((job.get("template") or {}).get("spec") or {}).get("template") or {}
            yield template.get("spec") or {}


def _join(owner: Object, patch: Mapping[str, Any]) -> None:
    """The security context of a pod or a container, as patches change it."""
    context = {**(owner.get("securityContext") or {}), **(patch.get("securityContext") or {})}
    if context:
        owner["securityContext"] = context


def _problems(trainjob: Mapping[str, Any], platform: PlatformConfig) -> list[Problem]:
    spec = trainjob["spec"]
    found: list[Problem] = []
    ref = spec.get("runtimeRef") or {}
    if ref.get("name") != RUNTIME or ref.get("kind", TRAINING_RUNTIME.name) != TRAINING_RUNTIME.name:
        fix = f"must be the {TRAINING_RUNTIME.name} {RUNTIME!r}, which has our parts (chart value trainjob.enabled)"
        found.append(("spec.runtimeRef", ref.get("name"), fix))
    if spec.get("initializer"):
        fix = f"is not supported: {RUNTIME!r} has no initializer; fetch data and model in the program, or from a volume"
        found.append(("spec.initializer", sorted(spec["initializer"]), fix))
    own = [patch.get("manager") for patch in spec.get("runtimePatches") or ()]
    if MANAGER in own:
        found.append(("spec.runtimePatches", MANAGER, "is there: adopted already"))
    for theirs in _pod_patches(spec):
        named = [c.get("name") for c in (*(theirs.get("initContainers") or ()), *(theirs.get("containers") or ()))]
        # Trainer takes it, without an image, and then no JobSet can be made of it.
        fix = f"cannot be patched or added: only container {CONTAINER_NODE!r} is the job's own"
        found += [("spec.runtimePatches", name, fix) for name in named if name != CONTAINER_NODE]
    trainer = spec.get("trainer") or {}
    if not trainer.get("image") and not platform.train_image:
        found.append(("spec.trainer.image", None, "is missing and the platform has no default; name one"))
    for name in ("numNodes", "numProcPerNode"):
        value = trainer.get(name, 1)
        if not isinstance(value, int) or value < 1:
            found.append((f"spec.trainer.{name}", value, "must be a whole number, 1 or more"))
    if annotation(trainjob, job_names.MIN_PARALLELISM) is not None:
        fix = f"is for batch/v1 Jobs only: Kueue admits a {TRAINJOB.name} with all of its pods or not at all; remove it"
        found.append(
            (
                f"metadata.annotations[{job_names.MIN_PARALLELISM}]",
                annotation(trainjob, job_names.MIN_PARALLELISM),
                fix,
            )
        )
    wished, given = wish(trainjob), level(platform).name
    if wished in PRIVILEGES and wished != given:
        fix = f"the {TRAINING_RUNTIME.name} {RUNTIME!r} gives all {TRAINJOB.name}s the level {given!r}; leave it out"
        found.append((f"metadata.annotations[{job_names.ANN_PRIVILEGES}]", wished, fix))
    if spec.get("managedBy") not in (None, "trainer.kubeflow.org/trainjob-controller"):
        found.append(("spec.managedBy", spec["managedBy"], "is not supported: Trainer's controller has to run it"))
    return found
