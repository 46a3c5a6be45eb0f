"""One look at one job in all clusters: which single step, if any, is due now? Pure.

The manager's Job is the record: its attempt number is the only one. The record of an attempt that is about to start is
written there (compare-and-set) before any worker cluster hears of it. A second attempt starts only when nothing is left
of the first. That means no copy of the Job and no pod that could write, in any cluster where the job has ever run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from singularity_proxy.protocol import names

from ..contract import job_names
from ..contract.record_types import AttemptRecord, RequestStatus
from ..controller import attempt_history, checkpoint_fit, fence
from ..controller.actions import Annotations, AnswerReady, RequestReadmission
from ..controller.machines import MachinesOf, unknown
from ..controller.snapshot import Job, Pod, Preemption, Workload, required
from ..errors import BadAnnotationError
from ..job import states
from ..kube.resources import Object, annotation, label
from ..requests import user_requests

RECORDS = (
    job_names.ANN_ATTEMPT,
    names.ANN_CHECKPOINT,
    job_names.ANN_CHECKPOINT_COPY,
    job_names.ANN_CHECKPOINTS,
    job_names.ANN_CHECKPOINT_POLICY,
    job_names.ANN_CURVE,
    job_names.ANN_HISTORY,
    job_names.ANN_PHASES,
    job_names.ANN_PODS,
    job_names.ANN_PROGRESS,
    job_names.ANN_SAVEABLE,
    job_names.ANN_RESULT,
    job_names.ANN_OUTPUTS_STORED,
    job_names.ANN_SCHEMA,
)
"""What a worker's controller writes on the copy and the next copy has to know."""
UNSUPPORTED = (
    "not possible for a job that MultiKueue runs in another cluster. To move it, drain or preempt it there; to pause "
    "it, set spec.active of its Workload here"
)

LEAVES = "the manager has evicted the job: its copies here are about to be removed"
PAUSE_S = 5
"""Kueue's manager brings the status of a copy up only while the Workload beside it is evicted. One that had quota again
at once would leave the manager waiting for a job that has long stopped (`reconcileGroup`, Kueue 0.19.2)."""

LEFT_S = 30.0
"""Kueue's manager removes the copies of an attempt while the Workload has no quota. It reads all worker clusters for
that, so a slow or dead one may keep it busy until there is quota again; then it leaves the copies alone
(`reconcileGroup`, Kueue 0.19.2), and an attempt would wait for ever for one of its own."""


@dataclass(frozen=True)
class Site:
    """What worker cluster `cluster` has of the job."""

    cluster: str
    reachable: bool = True
    """False: what is shown is old, or nothing."""
    job: Object | None = None
    workload: Object | None = None
    pods: Sequence[Object] = ()
    """All pods of the job's name, of whatever attempt."""
    machines_of: MachinesOf = unknown
    """Its nodes, by flavor."""

    @cached_property
    def copy(self) -> Job | None:
        """`job`, parsed once."""
        return None if self.job is None else Job.parse(self.job)

    @cached_property
    def admitted(self) -> Workload | None:
        """`workload`, parsed once."""
        return None if self.workload is None else Workload.parse(self.workload)

    @cached_property
    def writers(self) -> Sequence[Pod]:
        """Its pods of which a process may still be alive."""
        return [seen for seen in map(Pod.parse, self.pods) if seen.can_write]


# --- steps ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Record:
    """Write annotations of the manager's Job."""

    change: Annotations


@dataclass(frozen=True)
class Hand:
    """Write annotations of the copy in `cluster`."""

    cluster: str
    change: Annotations


@dataclass(frozen=True)
class End:
    """Delete pods of a copy that is being deleted: they save what they can, and nothing replaces them."""

    cluster: str
    pods: Sequence[str]


@dataclass(frozen=True)
class Drop:
    """Let the copy in `cluster` go: nothing on it is needed any more."""

    cluster: str


@dataclass(frozen=True)
class Remove:
    """Delete the copy in `cluster`, which Kueue has left behind: its attempt has ended, and so have its pods."""

    cluster: str


@dataclass(frozen=True)
class Grant:
    """Record the next attempt on the manager's Job, then answer the fence of `cluster`."""

    cluster: str
    answer: AnswerReady = field(default_factory=AnswerReady)


@dataclass(frozen=True)
class Say:
    """Show on the check of the Workload in `cluster` what it waits for."""

    cluster: str
    message: str


@dataclass(frozen=True)
class Back:
    """Give the quota of the Workload in `cluster` back: the job leaves, or its checkpoint cannot go on there."""

    cluster: str
    action: RequestReadmission


Step = Record | Hand | End | Drop | Remove | Grant | Say | Back


def decide(
    job: Object | None, workload: Object | None, sites: Sequence[Site], check_name: str, now: float
) -> Step | None:
    """`job` and `workload` are the manager's; `job` is None when it is gone. Never raises for what users write."""
    if job is None or not states.delegated(job):
        return _leftover([s for s in sites if s.job is not None])
    if workload is None:
        return None  # Kueue makes one of the same name in a moment; until then nobody can tell whose copies these are
    name = str(workload["metadata"]["name"])
    stale = [s for s in sites if s.job is not None and prebuilt(s.job) != name]
    mine = [s for s in sites if s.job is not None and prebuilt(s.job) == name]
    step = _leftover(stale)
    if step is not None:
        return step
    if label(job, job_names.LABEL_MANAGED) != "true":
        return plain(workload, sites, check_name)
    here = Job.parse(job)
    try:
        return (
            _carried(here, mine)
            or _finish(here, now)
            or _refuse(here, now)
            or _let_go(mine)
            or _grant(here, Workload.parse(workload), sites, check_name, now)
        )
    except BadAnnotationError as error:
        return _say(_waiting(sites, check_name), str(error), check_name)


def concerned(step: End | Drop | Remove | Grant | Say | Back, job: Object | None, sites: Sequence[Site]) -> set[str]:
    """Return the clusters whose word `step` needs: where it acts, where the job has been, and where some of it is seen.

    An attempt starts in no other: it is written down before that cluster is let in.
    """
    try:
        been = {record.cluster for record in required(Job.parse(job).history)} if job is not None else set()
    except BadAnnotationError:
        been = {site.cluster for site in sites}
    return {step.cluster} | {s.cluster for s in sites if s.cluster in been or s.job is not None or s.pods}


def prebuilt(job: Object) -> str:
    """Name of the Workload that the copy `job` was made for: the same in every cluster."""
    return label(job, job_names.KUEUE_PREBUILT) or annotation(job, job_names.KUEUE_PREBUILT) or ""


# --- records up, requests down --------------------------------------------------------------------------------------
def _carried(job: Job, mine: Sequence[Site]) -> Step | None:
    number, last = required(job.attempt), attempt_history.last(required(job.history))
    for site in mine:
        copy = site.copy
        assert copy is not None
        theirs = required(copy.attempt)
        if theirs >= number:
            change = _up(job, copy, last)
            if change:
                return Record(change)
        elif last is not None and last.cluster == site.cluster and not copy.deleting:
            # Kueue made the copy of a Job that it had read before the attempt was written on it.
            down = {name: job.text(name) for name in RECORDS}
            return Hand(site.cluster, {**down, job_names.ANN_HOLD: job.hold_word})
        asked = _asked(job, copy)
        if asked and not copy.deleting:
            return Hand(site.cluster, asked)
    return None


def _up(job: Job, copy: Job, last: AttemptRecord | None) -> dict[str, str | None]:
    """Records of the copy that the manager's Job does not have yet. An absent one takes nothing away."""
    wanted = {name: value for name in RECORDS if (value := copy.text(name)) is not None}
    theirs = attempt_history.last(required(copy.history))
    if last is not None and last.finished_at is not None and (theirs is None or theirs.finished_at is None):
        wanted.pop(job_names.ANN_HISTORY, None)  # we have seen its end, the worker's controller not yet
    request, answer = job.checkpoint_request.request, copy.checkpoint_request.answer
    if request is not None and answer is not None and answer.id == request.id:
        wanted.update({k: v for k, v in user_requests.stored(answer).items() if v is not None})
    return {name: value for name, value in wanted.items() if job.text(name) != value}


def _asked(job: Job, copy: Job) -> dict[str, str | None]:
    """A checkpoint that somebody asked for here, and that the copy has not been asked for."""
    request, there = job.checkpoint_request.request, copy.checkpoint_request.request
    if request is None or job.checkpoint_request.answer is not None:
        return {}
    return {} if there is not None and there.id == request.id else user_requests.written(request)


def _finish(job: Job, now: float) -> Step | None:
    """The end of the last attempt, read from the status that Kueue brings to the manager's Job."""
    history = required(job.history)
    last = attempt_history.last(history)
    if last is None or last.finished_at is not None or job.end is None:
        return None
    return Record(
        attempt_history.stored(attempt_history.with_last(history, attempt_history.observe(last, job, None, None, now)))
    )


def _refuse(job: Job, now: float) -> Step | None:
    request = job.change.request
    if request is None or job.change.answer is not None:
        return None
    said = RequestStatus(request.id, request.op, state="failed", message="", at=now, attempt=required(job.attempt))
    return Record(user_requests.stored(user_requests.ended(said, "failed", UNSUPPORTED, now)))


# --- copies that are being deleted ----------------------------------------------------------------------------------
def _leftover(sites: Sequence[Site]) -> Step | None:
    """Copies of a Job that is no more: nobody wants their records."""
    for site in sites:
        if site.job is not None and site.reachable and _held_back(site.job):
            return Drop(site.cluster)
    return None


def _held_back(copy: Object) -> bool:
    return bool(copy["metadata"].get("deletionTimestamp")) and states.kept(copy)


def _let_go(mine: Sequence[Site]) -> Step | None:
    """Its records are here (`_carried` came first); what still runs may have more to write."""
    for site in mine:
        if site.job is None or not site.reachable or not _held_back(site.job):
            continue
        # The Job controller leaves the pods of a Job that is being deleted to the garbage collector. The collector
        # waits until the Job is gone.
        alive = [pod.name for pod in site.writers if not pod.deleting]
        if alive:
            return End(site.cluster, sorted(alive))
        if not site.writers:
            return Drop(site.cluster)
    return None


# --- the fence ------------------------------------------------------------------------------------------------------
def _waiting(sites: Sequence[Site], check_name: str) -> list[Site]:
    """Clusters in which the Workload has quota and waits for our answer; who has it longest comes first."""
    found = [s for s in sites if s.reachable and s.admitted is not None and fence.asks(s.admitted, check_name)]
    return sorted(found, key=lambda s: (s.admitted.reserved_at if s.admitted is not None else 0.0, s.cluster))


def plain(workload: Object, sites: Sequence[Site], check_name: str) -> Step | None:
    """Not a training job of ours, in a queue that names our check."""
    waiting = _waiting(sites, check_name) if states.reservation(workload) else []
    message = "not a managed Job: nothing to wait for"
    return Grant(waiting[0].cluster, AnswerReady(message=message)) if waiting else None


def only_jobs(kind: str, sites: Sequence[Site], check_name: str) -> Step | None:
    """A training job of another kind than Job: its records are nobody's to carry, so it may not start."""
    return _say(_waiting(sites, check_name), f"a {kind} cannot train through MultiKueue: make it a Job", check_name)


def _grant(job: Job, workload: Workload, sites: Sequence[Site], check_name: str, now: float) -> Step | None:
    if workload.reservation is None or job.end is not None or job.deleting:
        return None
    waiting = _waiting(sites, check_name)
    if not waiting:
        return None
    if workload.is_true("Evicted"):
        return Back(waiting[0].cluster, RequestReadmission(message=LEAVES, requeue_after_s=PAUSE_S, cause="evicted"))
    history = required(job.history)
    last = attempt_history.last(history)
    # We died between the Job's patch and the Workload's: the attempt is that cluster's already.
    here = "" if last is None else last.reservation
    begun = [s for s in waiting if s.admitted is not None and s.admitted.reservation == here]
    problems = {} if begun else _unfit(job, waiting)
    chosen = (begun or [site for site in waiting if site.cluster not in problems] or waiting)[0]
    behind = _left_behind(history, sites, check_name) if now - workload.reserved_at > LEFT_S else None
    if behind is not None:
        return Remove(behind.cluster)
    obstacle = _obstacle(history, sites, check_name)
    if obstacle:
        return _say([chosen], obstacle, check_name)
    assert chosen.admitted is not None
    if chosen.cluster in problems:
        text = f"{checkpoint_fit.NOTE}: cluster {chosen.cluster}, {problems[chosen.cluster]}"
        note = checkpoint_fit.noted(job, text)
        pause = checkpoint_fit.pause_s(chosen.admitted, check_name)
        if note:
            return Record(note)
        return Back(chosen.cluster, RequestReadmission(message=text, requeue_after_s=pause, cause="machines"))
    return Grant(chosen.cluster, fence.answer(job, chosen.admitted, Preemption(), now, chosen.cluster))


def _unfit(job: Job, waiting: Sequence[Site]) -> dict[str, str]:
    """By cluster: why its machines cannot continue the job's checkpoint. A restore there would only fail."""
    found = {
        site.cluster: checkpoint_fit.unfit(job, site.admitted, site.machines_of)
        for site in waiting
        if site.admitted is not None
    }
    return {cluster: problem for cluster, problem in found.items() if problem}


def _obstacle(history: Sequence[AttemptRecord], sites: Sequence[Site], check_name: str) -> str:
    """Why no attempt may start, "" if one may."""
    been = {record.cluster for record in history}
    for site in sites:
        if not site.reachable and site.cluster in been:
            return (
                f"cluster {site.cluster} does not answer, and a pod of an earlier attempt may still run there. If it "
                f"is gone for good: kubectl delete multikueuecluster {site.cluster}"
            )
    for site in sites:
        if site.job is not None:
            return f"waiting for the Job of an earlier attempt to leave cluster {site.cluster}"
        writers = sorted(pod.name for pod in site.writers)
        if writers:
            more = f" and {len(writers) - 4} more" if len(writers) > 4 else ""
            return f"waiting for pods in cluster {site.cluster} to end: {', '.join(writers[:4])}{more}"
        if site.admitted is not None and _let_in(site.admitted, check_name):
            return f"cluster {site.cluster} has been let in: Kueue is about to start the job there"
    return ""


def _left_behind(history: Sequence[AttemptRecord], sites: Sequence[Site], check_name: str) -> Site | None:
    """The cluster that has a copy of an attempt that is over, which nobody has told to go."""
    last = attempt_history.last(history)
    if last is None or last.ended_by is None:
        return None
    for site in sites:
        let_in = site.admitted is not None and _let_in(site.admitted, check_name)
        if site.copy is not None and site.reachable and not site.copy.deleting and not site.writers and not let_in:
            return site if site.copy.suspended else None
    return None


def _let_in(workload: Workload, check_name: str) -> bool:
    ready = workload.state_of(check_name) == "Ready"
    return ready and workload.reservation is not None and not workload.leaves


def _say(waiting: Sequence[Site], message: str, check_name: str) -> Step | None:
    for site in waiting:
        state = None if site.admitted is None else site.admitted.checks.get(check_name)
        if state is not None and state.get("message") != message:
            return Say(site.cluster, message)
    return None
