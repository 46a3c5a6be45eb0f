"""Whose Job is it, and is it still the one this task instance wants? Pure functions.

A task instance owns its Jobs by a label that all its tries share. Each Job carries, as an annotation, the *generation*
it stands for. A new generation starts when a user clears the task or when a retry follows a real failure. It never
starts because a worker or a triggerer died. The cluster is asked first; Airflow's own record is a second source for
what the cluster has already forgotten.

Several Airflows may use one namespace and have Dags, runs and tasks of the same names. Each has an id, the Variable
DEPLOYMENT, which Airflow makes when it starts (`plugin.deployment`) and which lasts as long as its database. It is part
of a Job's name and identity and stands in its claim; a task instance keeps the one of its first submission.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from kueue_integration.jobs import lifecycle
from kueue_integration.kube.resources import annotation, is_true
from singularity_proxy.protocol import decode, names

DOMAIN = f"airflow.{names.DOMAIN}"
LABEL_OWNER = f"{DOMAIN}/owner"
"""Hash of dag, run, task and map index: shared by all tries and generations."""
ANN_TASK = f"{DOMAIN}/task"
"""JSON of `Claim`: which task instance, which generation."""
DEPLOYMENT = "singularity_deployment"
"""Name of the Airflow Variable with this Airflow's id."""
MAX_JOB_NAME = 52
_HASH_CHARS = 10
_DNS = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Of Kubernetes: what a namespace and the name of a Job look like."""


@dataclass(frozen=True)
class TaskKey:
    """A task instance over all its tries."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @staticmethod
    def of(ti: Any) -> TaskKey:
        """Key of a task instance as Airflow hands it to operators, triggers and callbacks."""
        return TaskKey(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)

    @property
    def owner(self) -> str:
        """Label value, the same for all generations, and for tasks of that name in other Airflows."""
        return _digest(asdict(self))


@dataclass(frozen=True)
class Try:
    """What tells a cleared task from a retried one.

    `max_tries` grows with every clear of a task that does not run. `clear_number` counts the clears of the whole Dag
    run: other tasks' too, so it proves nothing alone. A task that is cleared while it runs shows in `cleared_try`.
    """

    try_number: int
    max_tries: int
    clear_number: int
    cleared_try: int = 0
    """The latest try that was cleared while it ran, as the scheduler has written down (`plugin.cleared`); 0: none."""

    def cleared_since(self, earlier: Try) -> bool:
        """Whether a user cleared this very task between `earlier` and this try."""
        if self.max_tries != earlier.max_tries or earlier.try_number <= self.cleared_try < self.try_number:
            return True
        # Only a clear gives a try beyond the last retry.
        return self.try_number != earlier.try_number and self.try_number > self.max_tries + 1


@dataclass(frozen=True)
class Claim:
    """One generation of a task instance's Job, as written on the Job and in Airflow's task state store."""

    key: TaskKey
    generation: int
    made_by: Try
    namespace: str
    name: str
    uid: str | None = None
    """None until the API server has answered the create."""
    deployment: str = ""
    """Which Airflow: "" where it had no id."""
    at: float | None = None
    """Logical date of the Dag run, or the moment from which it may run, where it has none: Unix seconds."""
    keeps: bool = False
    """A later Job may begin with a checkpoint of this one."""
    detached: bool = False
    """No task waits for it, and none ends it but a later one of the same name (`wait=False`)."""

    @property
    def identity(self) -> str:
        """Label value that the platform adopts a Job by."""
        return _identity(self.key, self.generation, self.deployment)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: object) -> Claim | None:
        """A claim as `to_dict` wrote it, with or without more fields; None for anything else.

        Both places it is kept in can be written by people: namespace and name become part of a URL.
        """
        if not isinstance(data, Mapping):
            return None
        claim = decode.typed(Claim, {field.name: data[field.name] for field in fields(Claim) if field.name in data})
        if isinstance(claim, decode.Unreadable) or not (_DNS.fullmatch(claim.namespace) and _DNS.fullmatch(claim.name)):
            return None
        return claim

    @staticmethod
    def of_job(job: Mapping[str, Any]) -> Claim | None:
        """The claim on `job`, with the Job's uid; None if it carries none."""
        claim = Claim.from_dict(decode.json_value(annotation(job, ANN_TASK)))
        return None if claim is None else replace(claim, uid=job["metadata"]["uid"])


@dataclass(frozen=True)
class Decision:
    """`adopt` the Job of `claim` as it is, or create one for it; in both cases first delete `remove` (name, uid)."""

    claim: Claim
    adopt: bool
    remove: tuple[tuple[str, str], ...]
    why: str


def job_name(prefix: str, key: TaskKey, generation: int, deployment: str = "") -> str:
    """Deterministic name of a Job: a readable prefix and a hash, a DNS label of at most 52 characters."""
    slug = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-")
    if not slug or not slug[0].isalpha():
        slug = f"t-{slug}".strip("-")
    slug = slug[: MAX_JOB_NAME - _HASH_CHARS - 1].rstrip("-")
    return f"{slug}-{_identity(key, generation, deployment)[:_HASH_CHARS]}"


def belongs(job: Mapping[str, Any], deployments: Collection[str]) -> bool:
    """Whether `job`, which has a task's label, is of one of these Airflows. One whose claim is spoiled is of any."""
    claim = Claim.of_job(job)
    return claim is None or claim.deployment in deployments


def decide(
    key: TaskKey,
    now: Try,
    namespace: str,
    prefix: str,
    jobs: Sequence[Mapping[str, Any]],
    record: Claim | None,
    deployment: str = "",
    remembers: bool = False,
    at: float | None = None,
    keeps: bool = False,
    detached: bool = False,
) -> Decision:
    """What a starting try has to do.

    :param jobs: those with this owner's label that belong to `deployment`
    :param record: what Airflow remembers
    :param remembers: whether Airflow would remember a Job of this Dag run: asked before the Job is made
    :param at, keeps, detached: of the claim on a new Job
    """

    def fresh(generation: int, why: str) -> Decision:
        name = job_name(prefix, key, generation, deployment)
        own = {"deployment": deployment, "at": at, "keeps": keeps, "detached": detached}
        claim = Claim(key, generation, now, namespace, name, **own)  # type: ignore[arg-type]
        return Decision(claim, False, _unfinished(jobs, keep=None), why)

    claims = {job["metadata"]["uid"]: Claim.of_job(job) for job in jobs}
    known = [(claim, job) for job in jobs if (claim := claims[job["metadata"]["uid"]]) is not None]
    if record is not None and record.key != key:
        record = None
    highest = max([claim.generation for claim, _ in known] + ([record.generation] if record else []), default=-1)
    if not known:
        if record is None:
            return fresh(0, "first submission")
        if record.uid is None and not now.cleared_since(record.made_by):
            return fresh(record.generation, "an earlier try was interrupted before it created the Job")
        return fresh(highest + 1, f"Job {record.name} of an earlier try is gone")
    latest, job = max(known, key=lambda pair: pair[0].generation)
    if remembers and record is None and now.try_number == 1:
        return fresh(highest + 1, f"Job {latest.name} is of a former Dag run of this name")
    if now.cleared_since(latest.made_by):
        return fresh(highest + 1, f"the task was cleared: Job {latest.name} no longer counts")
    if job["metadata"].get("deletionTimestamp"):
        return fresh(highest + 1, f"Job {latest.name} of an earlier try is being deleted")
    if is_true(job, "Failed"):
        return fresh(highest + 1, f"Job {latest.name} of an earlier try failed")
    if lifecycle.ends(job) and not is_true(job, "Complete"):
        return fresh(highest + 1, f"Job {latest.name} of an earlier try was ended")
    state = "has finished" if is_true(job, "Complete") else "is alive"
    return Decision(latest, True, _unfinished(jobs, keep=latest.uid), f"Job {latest.name} {state}: adopted")


@dataclass(frozen=True)
class Look:
    """What `decide` is told of a task and its try, whichever cluster it looks at."""

    key: TaskKey
    now: Try
    prefix: str
    deployment: str = ""
    remembers: bool = False
    at: float | None = None
    keeps: bool = False
    detached: bool = False

    def decide(self, namespace: str, jobs: Sequence[Mapping[str, Any]], record: Claim | None) -> Decision:
        own = self.deployment, self.remembers, self.at, self.keeps, self.detached
        return decide(self.key, self.now, namespace, self.prefix, jobs, record, *own)


def _unfinished(jobs: Sequence[Mapping[str, Any]], keep: str | None) -> tuple[tuple[str, str], ...]:
    return tuple(
        (job["metadata"]["name"], job["metadata"]["uid"])
        for job in jobs
        if job["metadata"]["uid"] != keep and not is_true(job, "Complete") and not is_true(job, "Failed")
    )


def _identity(key: TaskKey, generation: int, deployment: str) -> str:
    own = {"deployment": deployment} if deployment else {}
    return _digest({**asdict(key), "generation": generation, **own})


def _digest(value: Mapping[str, Any]) -> str:
    """63 characters at most, lower-case hex: a label value and, cut, part of a DNS label."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:40]
