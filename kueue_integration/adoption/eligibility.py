"""Which Jobs can be adopted, for `adopt`, which also works without a cluster. The chart's `adoption.yaml` has the rules
for the API server; a test gives both the same Jobs.

Rules are about the Job as its owner wrote it. What the API server fills in by default breaks none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singularity_proxy.protocol import names, page

from ..contract import job_names
from ..guard import ownership
from ..job.view import Job as View
from ..kube.resources import annotation, label, pod_spec
from ..spec import mount_paths, privileges, security_context, store_access
from ..spec.platform_config import NODE, USER_NAMESPACE, PlatformConfig
from ..spec.validation import MAX_NAME, VOLUME_PREFIX

Job = Mapping[str, Any]
Find = Callable[[Job, PlatformConfig], Sequence[object]]

ELASTIC = "kueue.x-k8s.io/elastic-job"
BUDGET_DEFAULT = 120
GRACE_LEAST = 90
"""Seconds: the checkpoint's time when a pod is deleted without Kueue."""

CONTROLLERS = tuple(entry.name for entry in ownership.reserved(ownership.CONTROLLER))
"""A manifest that was copied from a managed Job would bring another Job's checkpoint with it."""

_NUMBER = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True)
class Rule:
    """`bad` finds the offending values; none: the rule holds."""

    field: str
    fix: str
    bad: Find


def pod(job: Job) -> Mapping[str, Any]:
    """The pod spec of the template, {} where there is none."""
    return pod_spec(job)


def container(job: Job) -> Mapping[str, Any]:
    """The first container, {} without one."""
    return next(iter(pod(job).get("containers") or ()), {})


def problems(job: Job, platform: PlatformConfig) -> list[tuple[str, object, str]]:
    """`(field, value, what to do)` for every rule that `job` breaks, as in SpecError."""
    inner = "spec.template.spec.containers[0]"
    malformed = list(
        security_context.malformed(pod(job), container(job), "spec.template.spec", inner)
    )  # a Job's the API server
    return malformed or [(rule.field, value, rule.fix) for rule in RULES for value in rule.bad(job, platform)]


def number(job: Job, name: str, default: int) -> int:
    """An annotation as a number; the rules have seen it."""
    text = annotation(job, name)
    return default if text is None else int(text)


def workers(job: Job) -> int:
    found = (job.get("spec") or {}).get("parallelism")
    return 1 if found is None else int(found)


def _spec(name: str, fix: str) -> Rule:
    return Rule(f"spec.{name}", fix, lambda j, _: [v for v in [j["spec"].get(name)] if v])


def _pod_flag(name: str, fix: str) -> Rule:
    return Rule(
        f"spec.template.spec.{name}",
        fix,
        lambda j, _: [True] if pod(j).get(name) else [],
    )


def _container_field(name: str, fix: str) -> Rule:
    return Rule(
        f"spec.template.spec.containers[0].{name}",
        fix,
        lambda j, _: [v for v in [container(j).get(name)] if v],
    )


def _numeric(name: str, least: int, most: Callable[[Job, PlatformConfig], int], fix: str) -> Rule:
    def bad(job: Job, platform: PlatformConfig) -> Sequence[object]:
        text = annotation(job, name)
        good = text is None or (_NUMBER.fullmatch(text) and least <= int(text) <= most(job, platform))
        return [] if good else [text]

    return Rule(f"metadata.annotations[{name}]", fix, bad)


def _starts_torchrun(job: Job, _: PlatformConfig) -> Sequence[object]:
    words = [*(container(job).get("command") or ()), *(container(job).get("args") or ())]
    first = words[:1]
    if first and (first[0] == "torchrun" or first[0].endswith("/torchrun")):
        return first
    return [word for word in words if word in _LAUNCHERS][:1]


_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")


def _world(job: Job, _: PlatformConfig) -> Sequence[object]:
    text = View.parse(job).text(job_names.ANN_WORLD_SIZE)
    many = workers(job)
    if text is None or not _NUMBER.fullmatch(text):
        return []
    return [text] if many < 1 or int(text) % many else []


def _access(job: Job, platform: PlatformConfig) -> store_access.StoreAccess:
    return store_access.of(platform, str(job["metadata"].get("namespace") or "default"))


def _user_mounts(job: Job, platform: PlatformConfig) -> Sequence[object]:
    theirs = (*platform.volume_mounts, *_access(job, platform).mounts)
    taken = {str(mount.get("mountPath")) for mount in theirs}
    paths = [str(mount.get("mountPath")) for mount in container(job).get("volumeMounts") or ()]
    return [
        p
        for p in paths
        if mount_paths.problem(p) or p in taken or mount_paths.nested(p, taken) or mount_paths.inside(p, paths)
    ]


def _user_volumes(job: Job, platform: PlatformConfig) -> Sequence[object]:
    taken = {volume.get("name") for volume in (*platform.volumes, *_access(job, platform).volumes)}
    found = [str(volume.get("name")) for volume in pod(job).get("volumes") or ()]
    return [name for name in found if name.startswith(VOLUME_PREFIX) or name in taken]


def _user_env(job: Job, _: PlatformConfig) -> Sequence[object]:
    return [e["name"] for e in container(job).get("env") or () if str(e["name"]).startswith("SINGULARITY_")]


def _python_path(job: Job, _: PlatformConfig) -> Sequence[object]:
    env = container(job).get("env") or ()
    return [e["valueFrom"] for e in env if e["name"] == "PYTHONPATH" and e.get("valueFrom")]


def _own_names(job: Job, _: PlatformConfig) -> Sequence[object]:
    ours = (job_names.CONTAINER_SIDECAR, job_names.CONTAINER_INSTALL, job_names.CONTAINER_TRAIN)
    return [c["name"] for c in pod(job).get("initContainers") or () if c.get("name") in ours]


def _name(job: Job, _: PlatformConfig) -> Sequence[object]:
    name = str(job["metadata"].get("name") or "")
    return [] if len(name) <= MAX_NAME and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) else [name]


def _store(job: Job, platform: PlatformConfig) -> Sequence[object]:
    return [] if View.parse(job).store or _access(job, platform).url else [""]


def wish(job: Job) -> str | None:
    """The level that the Job's owner wishes; None: the platform's."""
    return annotation(job, job_names.ANN_PRIVILEGES)


def _level(job: Job, platform: PlatformConfig) -> Sequence[object]:
    wished = wish(job)
    good = wished is None or (wished in privileges.WISHES and (wished, platform.privileges) != (NODE, USER_NAMESPACE))
    return [] if good else [wished]


def _at_least_one(job: Job, _: PlatformConfig) -> Sequence[object]:
    return [] if 1 <= workers(job) <= page.MAX_WORLD else [workers(job)]


def _completions(job: Job, _: PlatformConfig) -> Sequence[object]:
    spec = job["spec"]
    # The API server's default: both 1 when neither is given; completions stay open when only parallelism is given.
    given = spec.get("completions", 1 if "parallelism" not in spec else None)
    return [] if given == workers(job) else [given]


RULES: Sequence[Rule] = (
    Rule(
        "metadata.name", f"must start with a letter, have only a-z, 0-9 and '-', and at most {MAX_NAME} characters",
        _name,
    ),
    Rule(
        f"metadata.labels[{job_names.KUEUE_QUEUE_LABEL}]", "is missing; name the Kueue LocalQueue",
        lambda j, _: [] if label(j, job_names.KUEUE_QUEUE_LABEL) else [None],
    ),
    Rule(
        f"metadata.annotations[{ELASTIC}]", "elastic slices change a running Job; use job-min-parallelism",
        lambda j, _: [v for v in [annotation(j, ELASTIC)] if v == "true"],
    ),
    Rule(
        "metadata.annotations", "has one that is the platform's, with another Job's records; remove it",
        lambda j, _: [name for name in CONTROLLERS if annotation(j, name) is not None],
    ),
    Rule(
        "spec.completionMode", "must be Indexed: every worker needs an index",
        lambda j, _: [] if j["spec"].get("completionMode") == "Indexed" else [j["spec"].get("completionMode")],
    ),
    Rule(
        "spec.parallelism", f"must be 1 to {page.MAX_WORLD}: all workers run at the same time", _at_least_one,
    ),
    Rule(
        "spec.completions", "must equal spec.parallelism: all workers run at the same time", _completions,
    ),
    _spec("podFailurePolicy", "is set by the platform; remove it"),
    _spec("successPolicy", "is not supported: training ends when every worker has ended; remove it"),
    _spec("backoffLimitPerIndex", "is not supported: workers live and die together; use spec.backoffLimit"),
    _spec("managedBy", "is not supported: the Job controller has to run this Job; remove it"),
    Rule(
        "spec.manualSelector", "is not supported; remove it and spec.selector",
        lambda j, _: [True] if j["spec"].get("manualSelector") else [],
    ),
    Rule(
        "spec.template.spec.restartPolicy", "must be Never: the launcher restarts nothing by itself",
        lambda j, _: [] if pod(j).get("restartPolicy") == "Never" else [pod(j).get("restartPolicy")],
    ),
    _pod_flag("hostPID", "must not be set: every rank gets a PID namespace of its own"),
    _pod_flag("hostIPC", "must not be set: shared memory has to travel with the checkpoint"),
    _pod_flag("hostNetwork", "must not be set: workers of one node would take each other's ports"),
    _pod_flag("shareProcessNamespace", "must not be set: the launcher has to be process 1 of its container"),
    Rule(
        "spec.template.spec.initContainers", "has a container with one of our names; rename it", _own_names,
    ),
    Rule(
        "spec.template.spec.containers", "must have exactly one: its program is what is checkpointed",
        lambda j, _: [] if len(pod(j).get("containers") or ()) == 1
        else [[c.get("name") for c in pod(j).get("containers") or ()]],
    ),
    Rule(
        "spec.template.spec.containers[0].command", "is missing; state it: the image's own cannot be seen from here",
        lambda j, _: [] if container(j).get("command") else [None],
    ),
    Rule(
        "spec.template.spec.containers[0].command", "starts torchrun; name the script instead: we start one process "
        f"per rank ({job_names.ANN_WORLD_SIZE} for several per worker)", _starts_torchrun,
    ),
    Rule(
        "spec.template.spec.securityContext.runAsGroup", security_context.ALONE,
        lambda j, _: [pod(j)["securityContext"]["runAsGroup"]] if security_context.group_alone(pod(j)) else [],
    ),
    Rule(
        "spec.template.spec.securityContext.runAsNonRoot", security_context.NEEDS_USER,
        lambda j, _: [True] if security_context.unmet(pod(j), container(j), inner=False) else [],
    ),
    Rule(
        "spec.template.spec.containers[0].securityContext.runAsNonRoot", security_context.NEEDS_USER,
        lambda j, _: [True] if security_context.unmet(pod(j), container(j), inner=True) else [],
    ),
    Rule(
        "spec.template.spec.containers[0].securityContext",
        f"only {', '.join(security_context.KEPT)} are the job's own, the "
        "rest is what CRIU needs; remove it",
        lambda j, _: [found] if (found := security_context.not_kept(container(j))) else [],
    ),
    _container_field("lifecycle", "is not supported: the container's process 1 is the launcher; remove it"),
    _container_field("livenessProbe", "would kill a worker that is being checkpointed; remove it"),
    _container_field("readinessProbe", "is not supported; remove it"),
    _container_field("startupProbe", "is not supported; remove it"),
    Rule(
        "spec.template.spec.containers[0].env", "names that start with SINGULARITY_ are set by the launcher", _user_env,
    ),
    Rule(
        "spec.template.spec.containers[0].env[PYTHONPATH]", "must be a literal value: the agent is put before it",
        _python_path,
    ),
    Rule(
        "spec.template.spec.containers[0].volumeMounts", f"{names.ROOT}, the platform's mounts and names of"
        f" NVIDIA's driver are taken; use another mountPath, which {mount_paths.FIX}, and"
        " is not below another mount's, /proc or /dev/shm", _user_mounts,
    ),
    Rule(
        "spec.template.spec.volumes", "has a name that is the platform's; rename it", _user_volumes,
    ),
    Rule(
        f"metadata.annotations[{job_names.ANN_PRIVILEGES}]", "must be auto, userns or node, and not node where the "
        "platform lets capabilities count on the node for no job (chart value pods.privileges=userns)",
        _level,
    ),
    _numeric(
        job_names.ANN_WORLD_SIZE, 1, lambda j, _: page.MAX_WORLD,
        f"must be a whole number of ranks, 1 to {page.MAX_WORLD}",
    ),
    Rule(
        f"metadata.annotations[{job_names.ANN_WORLD_SIZE}]", "must be a multiple of spec.parallelism", _world,
    ),
    _numeric(
        job_names.MIN_PARALLELISM, 1, lambda j, _: workers(j), "must be a whole number, 1 to spec.parallelism",
    ),
    _numeric(
        job_names.ANN_BUDGET, 1, lambda _, p: p.max_budget_s, "must be a whole number of seconds within the platform's "
        "maximum (chart value budget.maxSeconds)",
    ),
    Rule(
        f"metadata.annotations[{job_names.ANN_STORE}]",
        "is missing and the platform has no default; give the checkpoint store's URL", _store,
    ),
)  # fmt: skip
