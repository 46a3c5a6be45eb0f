"""Rewind and fork: go on from a checkpoint that is not the job's newest, in the same job or in a new one. Blocking.

What could go wrong is looked for before anything happens. The checkpoint is one that was committed, the store has all
of it, and the new job could be created. From then on it is held in the store, so that retention leaves it alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, Origin

from ..contract import branches, job_names, kinds
from ..contract.record_types import JobRequest
from ..errors import ConflictError, JobNotFoundError, RequestRefusedError, SingularityError, SpecError, StoreSaidNo
from ..job import states
from ..job.unreadable import readable_or
from ..job.view import Job
from ..kube.api import Kube
from ..kube.resources import (
    CONFIG_MAP,
    JOB,
    RESOURCE_CLAIM_TEMPLATE,
    SECRET,
    SERVICE,
    Object,
    is_true,
    label,
)  # fmt: skip
from ..manifests import job_secrets, live_job
from ..manifests.pod import files_name
from ..manifests.pod_placement import template_name
from ..requests import user_requests, verbs
from ..spec import platform_config, privileges, validation
from ..spec.platform_config import NODE, USER_NAMESPACE, PlatformConfig
from ..spec.train_spec import TrainSpec
from . import lifecycle, preflight, store_pod

Ask = Callable[[Object, str, Sequence[str]], Any]
"""Asks the store of a job, at that URL, a question of `store.admin`. Raises StoreSaidNo, PlatformError, KubeError."""
TIMEOUT_S = 300.0
_AIRFLOW = f"airflow.{names.DOMAIN}/"
_GIVEN = ("name", "queue", "priority_class", "command")
_NO_COMMAND = (
    "the job has engine {0!r}: its saved processes go on with the command that they were started with. Leave the "
    "command out; for other arguments the script has to use singularity_train, with engine 'state'"
)


@dataclass(frozen=True)
class Start:
    """A checkpoint that a new job can begin with."""

    source: Object
    job: str
    """What `source` is called (`kinds.job_key`)."""
    ref: CheckpointRef

    @property
    def origin(self) -> Origin:
        return Origin(self.job, self.ref.id)


@dataclass(frozen=True)
class Forked:
    """A new job, and what it began with."""

    namespace: str
    name: str
    uid: str
    source: str
    checkpoint: str
    step: int
    """The first step that it runs."""


def in_a_pod(kube: Kube, namespace: str, timeout_s: float = TIMEOUT_S) -> Ask:
    """Ask the store in a short-lived pod of `namespace`."""

    def ask(job: Object, url: str, question: Sequence[str]) -> Any:
        pod = store_pod.manifest(namespace, platform_config.load(kube), url, question, timeout_s, job)
        return store_pod.ask(kube, pod, timeout_s)

    return ask


def rewind(
    kube: Kube, namespace: str, name: str, checkpoint: str, by: str | None = None, ask: Ask | None = None
) -> verbs.Result:
    """Give up what came after `checkpoint`, and go on from it; the controller does it (`verbs.wait`).

    A job that has failed goes on as a new one, whose name is in the result.

    Raises RequestRefusedError (no checkpoint of this job, damaged, gone from the store), JobNotFoundError, KubeError,
    PlatformError (the store could not be asked).
    """
    job = _named(kube, namespace, name)
    key = kinds.job_key(job)
    problem = user_requests.problem(job, JobRequest("", "rewind", 0.0, checkpoint=checkpoint), None)
    if is_true(job, "Failed") and not job["metadata"].get("deletionTimestamp"):
        return _anew(kube, job, checkpoint, ask)
    if problem is None and delegated(job):
        problem = ("name", key, "MultiKueue runs it in another cluster: rewind it there")
    if problem is not None:
        raise RequestRefusedError(problem)
    ref = user_requests.committed(job, checkpoint)[0]
    assert ref is not None  # `problem` has seen to it
    maker = branches.maker(job, key, ref.id)
    _hold(ask or in_a_pod(kube, namespace), job, maker, ref, names.HOLD_REWIND if maker == key else key)
    return verbs.rewind(kube, namespace, name, checkpoint, by)


def _anew(kube: Kube, job: Object, checkpoint: str, ask: Ask | None) -> verbs.Result:
    """Kubernetes starts no failed Job again, so another one goes on in its place. Raises as `rewind` and `fork`."""
    namespace, name = _namespace(job), str(job["metadata"]["name"])
    if of_airflow(job):
        fix = "has failed, and its Airflow task with it: clear the task, with start_from='earlier run' to go on"
        raise RequestRefusedError(("name", name, fix))
    number = 2
    while kube.find(JOB, namespace, new := f"{name[: validation.MAX_NAME - 4]}-{number}") is not None:
        number += 1
    made = fork(kube, namespace, name, new, checkpoint, ask=ask)
    text = f"has failed, and Kubernetes starts no failed Job again: job {new} goes on from checkpoint {checkpoint}"
    return verbs.Result(namespace, new, "rewind", "", "done", f"{name} {text} (step {made.step})")


def fork(
    kube: Kube,
    namespace: str,
    name: str,
    new: str,
    checkpoint: str | None = None,
    queue: str | None = None,
    priority_class: str | None = None,
    ask: Ask | None = None,
    command: Sequence[str] = (),
    level: str | None = None,
) -> Forked:
    """Create job `new`, which goes on from `checkpoint` of job `name` (None: its newest), beside it.

    It has the pods of `name`, its size as wished, its priority class and its command, unless others are given here.
    `level`: its wish as in `TrainSpec.privileges`; None: the level of `name`, or the platform's where that is refused.
    Another command is for the state engine alone: with the others the saved processes go on, and nothing reads it.
    Raises SpecError, ConflictError (the name is taken), RequestRefusedError (the store lacks a part of the checkpoint),
    JobNotFoundError, PlatformError, KubeError.
    """
    start = find(kube, namespace, name, checkpoint)
    source = start.source
    if not kinds.is_job(source):
        raise SpecError([("NAME", name, f"is a {source['kind']}: only a Job can be forked")])
    if delegated(source):
        raise SpecError([("NAME", name, "MultiKueue runs it in another cluster: fork it there")])
    engine = Job.parse(source).engine
    if command and engine != names.ENGINE_STATE:
        raise SpecError([("command", command, _NO_COMMAND.format(engine))])
    spec = TrainSpec(
        name=new,
        queue=queue or label(source, job_names.KUEUE_QUEUE_LABEL) or "",
        namespace=namespace,
        priority_class=priority_class or label(source, job_names.KUEUE_PRIORITY_LABEL),
        command=command or ("forked",),
        world_size=readable_or(Job.parse(source).world_size, None) or 0,
        engine=engine,
    )
    problems = [found for found in validation.problems(spec) if found[0] in _GIVEN]
    if problems:
        raise SpecError(problems)
    if kube.find(JOB, namespace, new) is not None:
        raise ConflictError(f"Job {new!r} in namespace {namespace!r} exists already; choose another --name")
    platform = platform_config.load(kube)
    preflight.taken(platform, namespace)
    preflight.cluster(kube, spec)
    given = _level(kube, source, spec.queue, level, platform)
    workload = kube.get_workload_for_job(source)
    wanted = live_job.Fork(new, spec.queue, spec.priority_class, start.origin, tuple(command), given)
    made = live_job.forked(source, workload, wanted)
    require_fit(made, start)
    children = _children(kube, source, new)
    lifecycle.create(kube, made, children, dry_run=True)
    asked = ask or in_a_pod(kube, namespace)
    hold(asked, start, new)
    try:
        job = lifecycle.create(kube, made, children)
    except BaseException:
        release(asked, start, new)
        raise
    return Forked(namespace, new, job["metadata"]["uid"], start.job, start.ref.id, start.ref.step)


def _level(
    kube: Kube, source: Object, queue: str, wish: str | None, platform: PlatformConfig
) -> privileges.Level | None:
    """The level of a fork of `source`; None: as it is. Raises SpecError."""
    had = states.privileges(source)
    if not had:
        if wish is not None:
            raise SpecError([("privileges", wish, "must be left out: pods of engine 'state' have no capabilities")])
        return None
    platform = preflight.of_queue(kube, platform, _namespace(source), queue)
    kept = wish is None and (had, platform.privileges) != (NODE, USER_NAMESPACE)
    if text := privileges.problem(had if kept else wish, platform):
        raise SpecError([("privileges", had if kept else wish, text)])
    if kept:
        return None
    return privileges.chosen(wish, platform, source["spec"]["template"]["spec"])


def find(kube: Kube, namespace: str, name: str, checkpoint: str | None = None) -> Start:
    """`checkpoint` of job `name`, None for the newest usable one of the branch that it is on.

    Raises SpecError, JobNotFoundError, KubeError.
    """
    job = _named(kube, namespace, name)
    key = kinds.job_key(job)
    if checkpoint is None:
        newest = next((ref for ref in reversed(branches.line(job)) if not ref.unusable), None)
        if newest is None:
            raise SpecError([("NAME", name, "has no checkpoint that can be restored; make one with `checkpoint`")])
        return Start(job, key, newest)
    ref, problem = user_requests.committed(job, checkpoint)
    if ref is None:
        assert problem is not None
        raise SpecError([problem])
    return Start(job, key, ref)


def require_fit(new: Mapping[str, Any], start: Start) -> None:
    """Raises SpecError if the Job `new` cannot begin so: the controller would not let it start."""
    unfit = branches.unfit(new, start.ref)
    if unfit:
        raise SpecError([("from", f"{start.job}/{start.ref.id}", unfit)])


def hold(ask: Ask, start: Start, holder: str) -> None:
    """Keep the checkpoint for job `holder`. Raises RequestRefusedError if the store does not have all of it."""
    _hold(ask, start.source, branches.maker(start.source, start.job, start.ref.id), start.ref, holder)


def release(ask: Ask, start: Start, holder: str) -> None:
    """The opposite, as far as it is possible: what is left keeps a checkpoint longer than needed, and is listed."""
    maker = branches.maker(start.source, start.job, start.ref.id)
    with contextlib.suppress(SingularityError):
        ask(start.source, start.ref.url, ("release", _namespace(start.source), maker, start.ref.id, holder))


def _hold(ask: Ask, job: Object, maker: str, ref: CheckpointRef, holder: str) -> None:
    try:
        ask(job, ref.url, ("hold", _namespace(job), maker, ref.id, holder, ref.sha256))
    except StoreSaidNo as error:
        fix = f"{error}. See what the store has: singularityctl checkpoints ls {maker} --namespace {_namespace(job)}"
        raise RequestRefusedError(("checkpoint", ref.id, fix)) from None


def delegated(job: Mapping[str, Any]) -> bool:
    """Whether MultiKueue runs the Job in another cluster."""
    return bool(job["spec"].get("managedBy") == job_names.MULTIKUEUE_CONTROLLER)


def of_airflow(job: Mapping[str, Any]) -> bool:
    """Whether the Job belongs to an Airflow task, which looks at this very Job."""
    return any(key.startswith(_AIRFLOW) for key in job["metadata"].get("annotations") or {})


def _namespace(job: Mapping[str, Any]) -> str:
    return str(job["metadata"]["namespace"])


def _named(kube: Kube, namespace: str, name: str) -> Object:
    job = kinds.named(kube, namespace, name)
    if job is None:
        raise JobNotFoundError(f"no training job {name!r} in namespace {namespace!r}; see `singularityctl status`")
    return job


def _children(kube: Kube, source: Object, new: str) -> list[Object]:
    """Service, files, Secret and claim templates, as far as the source has them: an adopted Job has its own."""
    namespace, old = _namespace(source), str(source["metadata"]["name"])
    found = [kube.find(SERVICE, namespace, old), kube.find(CONFIG_MAP, namespace, files_name(old))]
    pod = source["spec"]["template"]["spec"]
    if job_secrets.named(pod, old):
        found.append(kube.find(SECRET, namespace, job_secrets.secret_name(old)))
    for claim in pod.get("resourceClaims") or ():
        if claim.get("resourceClaimTemplateName") == template_name(old, claim["name"]):
            found.append(kube.find(RESOURCE_CLAIM_TEMPLATE, namespace, template_name(old, claim["name"])))
    ours = [child for child in found if child is not None and label(child, job_names.LABEL_JOB) == old]
    return [live_job.forked_child(child, old, new) for child in ours]
