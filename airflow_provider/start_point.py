"""`start_from`: which checkpoint of which job a task's new Job begins with. Blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kueue_integration.contract import branches, job_names, kinds
from kueue_integration.errors import JobNotFoundError, SpecError
from kueue_integration.jobs import start_point, time_travel
from kueue_integration.jobs.time_travel import Start
from kueue_integration.jobs.told import Told, told
from kueue_integration.kube.api import Kube
from kueue_integration.kube.resources import JOB, Object, selector
from kueue_integration.manifests import job_manifests
from kueue_integration.spec.platform_config import PlatformConfig
from kueue_integration.spec.train_spec import TrainSpec
from singularity_proxy.protocol import decode

from .ending import over
from .identity import LABEL_OWNER, Claim
from .memory import START_KEY, write_down

EARLIER_RUN: Final = "earlier run"
"""No job can be called so."""
LAST_TRY: Final = "last try"
STEP_0: Final = "step 0"
_EVER: Final = float("inf")
_AWAY: Final = (
    "is checkpoint {0.ref.id} (step {0.ref.step}) of job {0.job} in namespace {0.source[metadata][namespace]}, of the "
    "cluster or namespace that the task had before, and a job begins with those of its own only. Give the task its "
    "former connection and namespace, or no start_from to begin anew"
)


def asked(wanted: str | None, every: Any = None) -> str:
    """What `start_from` says once it is rendered, "" for step 0. With periodic checkpoints a retry goes on by default.

    :param every: `checkpoint_every` of the same task
    """
    text = (wanted or "").strip()
    if text in ("", "None"):  # what a template makes of nothing
        return LAST_TRY if every not in (None, "", "None", "off") else ""
    return "" if text == STEP_0 else text


def of_the_last_try(wanted: str | None, every: Any = None) -> bool:
    """Whether a retry begins with a checkpoint of the try before, and nothing else."""
    return asked(wanted, every) == LAST_TRY


def of_an_earlier_run(wanted: str | None) -> bool:
    """Whether the next Dag run begins with a checkpoint of this one."""
    return asked(wanted) == EARLIER_RUN


def choose(
    kube: Kube,
    store: Any,
    wanted: str | None,
    claim: Claim,
    spec: TrainSpec,
    platform: PlatformConfig,
    away: Sequence[Start] = (),
) -> tuple[Start | None, list[str]]:
    """As `_choose`. What nobody has asked for, a retry that goes on, is never a reason to refuse the job."""
    try:
        return _choose(kube, store, asked(wanted, spec.checkpoint_every), claim, spec, platform, away)
    except SpecError as error:
        if asked(wanted):
            raise
        return None, [f"Begins at step 0, and not with the newest checkpoint of the try before: {error}"]


def _choose(
    kube: Kube, store: Any, text: str, claim: Claim, spec: TrainSpec, platform: PlatformConfig, away: Sequence[Start]
) -> tuple[Start | None, list[str]]:
    """Where the Job of `claim` begins, which is held for it from now on; None at step 0. And sentences for the log.

    A try that was interrupted has chosen already: its successor goes on with that. Raises SpecError that names
    `start_from`, PlatformError, KubeError: then nothing is to be created, and nothing deleted.

    :param store: the task's state store, or None
    :param away: what this task came to in another cluster or namespace, before somebody moved it here
    """
    if not text:
        return None, []
    start, notes = _chosen_before(kube, store, claim), list[str]()
    if start is None and text in (EARLIER_RUN, LAST_TRY):
        if away:
            raise SpecError([("start_from", text, _AWAY.format(away[-1]))])
        if text == EARLIER_RUN:
            start, notes = _earlier(kube, claim, spec, platform)
        else:
            start = _last_try(kube, claim)
    elif start is None:
        forms = f"{LAST_TRY!r}, {EARLIER_RUN!r}, {STEP_0!r}, {start_point.FORMS}"
        start = start_point.find(kube, claim.namespace, text, forms)
    if start is None and text == LAST_TRY:
        return None, notes
    if start is None:
        return None, [*notes, f"start_from = {text!r}: there is no such checkpoint yet, begins at step 0"]
    start_point.hold(kube, start, spec, platform)
    ref, source = start.ref, Claim.of_job(start.source)
    of_run = "" if source is None else f" of run {source.key.run_id}"
    if store is not None:
        where = {"job": start.job, "checkpoint": ref.id, "step": ref.step, "run": source and source.key.run_id}
        write_down(store, START_KEY, {"for": claim.name, **where})
    return start, [*notes, f"Begins with checkpoint {ref.id} (step {ref.step}) of job {start.job}{of_run}"]


def _chosen_before(kube: Kube, store: Any, claim: Claim) -> Start | None:
    found = None if store is None else store.get(START_KEY)
    if not isinstance(found, dict) or found.get("for") != claim.name:
        return None
    try:
        return time_travel.find(kube, claim.namespace, str(found.get("job")), str(found.get("checkpoint")))
    except (SpecError, JobNotFoundError):
        return None


def left(jobs: Sequence[Object]) -> list[Start]:
    """The newest checkpoint of each of these Jobs that has one to begin with, the newest Job last."""
    found = [(claim.generation, job) for job in jobs if (claim := Claim.of_job(job)) is not None]
    lines = [(job, branches.line(job)) for _, job in sorted(found, key=lambda pair: pair[0])]
    usable = [(job, [ref for ref in line if not ref.unusable]) for job, line in lines]
    return [Start(job, kinds.job_key(job), refs[-1]) for job, refs in usable if refs]


def _last_try(kube: Kube, claim: Claim) -> Start | None:
    """The newest usable checkpoint of this very task since it was last cleared."""
    owned = kube.list(JOB, claim.namespace, selector({job_names.LABEL_MANAGED: "true", LABEL_OWNER: claim.key.owner}))
    since = [
        job for job in owned
        if (other := _same_task(job, claim)) is not None and not claim.made_by.cleared_since(other.made_by)
    ]  # fmt: skip
    found = left(since)
    return time_travel.find(kube, claim.namespace, found[-1].job, found[-1].ref.id) if found else None


def _earlier(kube: Kube, claim: Claim, spec: TrainSpec, platform: PlatformConfig) -> tuple[Start | None, list[str]]:
    """The newest usable checkpoint of this task in this run, from before a clear or a failure; else in the latest of
    the earlier runs that have ended. What a later run has learned, or one that still trains, is never taken."""
    managed = kube.list(JOB, claim.namespace, selector({job_names.LABEL_MANAGED: "true"}))
    but = start_point.but(spec, platform)
    wanted = told(job_manifests.job(spec, platform), but)
    found, notes, unlike = [], list[str](), list[str]()
    for job in managed:
        other = _same_task(job, claim)
        if other is None or not any(not ref.unusable for ref in branches.line(job)):
            continue
        own, at = other.key == claim.key, _moment(job, other)
        if not own and at >= (_EVER if claim.at is None else claim.at):
            continue
        if not own and claim.key.map_index >= 0 and told(job, but) != wanted:
            unlike.append(job["metadata"]["name"])
            continue
        if not own and not over(job):
            name = job["metadata"]["name"]
            notes.append(f"Job {name} of run {other.key.run_id} has not ended: its checkpoints are not taken")
            continue
        made, same_place = str(job["metadata"].get("creationTimestamp", "")), other.key.map_index == claim.key.map_index
        found.append((own, at, same_place, other.generation, made, kinds.job_key(job)))
    if not found:
        which = f"{', '.join(sorted(unlike)[:3])}{', ...' * (len(unlike) > 3)}"
        told_apart = "of earlier runs: another command or environment, by which a mapped task knows its own"
        return None, [*notes, *([f"Not taken are Jobs {which} {told_apart}"] if unlike else [])]
    return time_travel.find(kube, claim.namespace, max(found)[-1]), notes


def older(kube: Kube, claim: Claim, job: Object) -> list[Object]:
    """Jobs of the task that have ended and with whose checkpoints nobody begins once there are some of `job`, which has
    `claim`."""
    managed = kube.list(JOB, claim.namespace, selector({job_names.LABEL_MANAGED: "true"}))
    at = _EVER if claim.at is None else claim.at
    return [
        each
        for each in managed
        if over(each)
        and (other := _same_task(each, claim)) is not None
        and _replaced(each, other, claim, at, told(job))
    ]


def _replaced(job: Object, made: Claim, claim: Claim, at: float, wanted: Told | None) -> bool:
    if made.key == claim.key:
        return made.generation < claim.generation
    return _moment(job, made) < at and (claim.key.map_index < 0 or told(job) == wanted)


def _same_task(job: Mapping[str, Any], claim: Claim) -> Claim | None:
    """The claim on a Job of the same task of the same Airflow, in whichever run; None for all others.

    Of a mapped task it may be any index in other runs, whose lists of arguments may be others: what counts there is
    whether the Job runs the same.
    """
    other = Claim.of_job(job)
    if other is None or other.deployment != claim.deployment or job["metadata"].get("deletionTimestamp"):
        return None
    one, two = other.key, claim.key
    mapped = two.map_index >= 0 and one.map_index >= 0 and one.run_id != two.run_id
    same = (one.dag_id, one.task_id) == (two.dag_id, two.task_id) and (mapped or one.map_index == two.map_index)
    return other if same and job["metadata"]["name"] != claim.name else None


def _moment(job: Mapping[str, Any], claim: Claim) -> float:
    """When its run was due; of a Job that does not say so, when it was made."""
    if claim.at is not None:
        return claim.at
    made = decode.moment(job["metadata"].get("creationTimestamp"))
    return _EVER if isinstance(made, decode.Unreadable) else made

