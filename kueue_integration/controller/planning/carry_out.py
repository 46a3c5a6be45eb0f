"""Carries one allowed proposal out, by the requests that users can make too. Nothing replaces somebody's request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ...contract import kinds, priority, saveable
from ...contract.record_types import JobRequest
from ...drain import departure
from ...drain.look import look as drain_look
from ...errors import RequestRefusedError
from ...job import states
from ...kube.client import Kube
from ...kube.resources import POD, WORKLOAD, Object, selector
from ...planner.job import BY, JobKey, policy_of
from ...planner.proposals import Proposal
from ...requests import user_requests, verbs
from .. import attempt_history, leave
from ..actions import Action, Guard
from ..snapshot import Job, required
from . import pin

Perform = Callable[[Action, Object, Object], None]
"""Writes an action for a Job and its Workload, with the versions that are shown."""
MAX_SAVE_S = user_requests.DEFAULT_CHECKPOINT_S


class CarryOut:
    """`perform` writes an action of the controller's own. `max_budget_s`: of a save, at most."""

    def __init__(self, kube: Kube, perform: Perform, max_budget_s: float = 600.0) -> None:
        self._kube, self._perform, self._max_budget_s = kube, perform, max_budget_s
        self._left: dict[JobKey, departure.Departure] = {}
        self._recalled = False

    def do(self, proposal: Proposal, job: Object, workload: Object | None, now: float) -> None:
        """`now`: Unix seconds.

        Raises RequestRefusedError (with the reason), Conflict, JobNotFoundError, PlatformError, KubeError.
        """
        namespace, name = proposal.job
        action, by = proposal.action, signed(proposal)
        if action == "readmit":
            assert workload is not None  # it has quota
            # Written with the version that was planned with: if it has changed, the plan is void.
            self._perform(saved_first(job, proposal.reason, self._max_budget_s, now), job, workload)
        elif action == "priority":
            assert workload is not None
            self._prioritise(proposal, job, workload, by, now)
        elif action == "migrate" and proposal.flavor:
            pin.pin(self._kube, proposal.job, proposal.flavor, by)
        elif action == "migrate":
            self._leave(proposal, by)
        elif action == "unpin":
            pin.unpin(self._kube, proposal.job, by)
        else:
            verbs.ask(self._kube, namespace, name, action, by, lambda stands, r: _filled(stands, r, proposal))

    @property
    def waits(self) -> bool:
        """Whether `tidy` has something to do, or has not looked yet."""
        return bool(self._left) or not self._recalled

    def tidy(self, jobs: Iterable[Object]) -> list[JobKey]:
        """Let jobs that have left a node go everywhere again; the jobs for which that was done. Raises KubeError.

        The first time also those that the process before this one has asked to leave: `jobs` are all of them.
        """
        if not self._recalled:
            self._recalled = True
            self._left.update(_asked_before(jobs))
        done = []
        for key, left in list(self._left.items()):
            result = verbs.look(self._kube, left.asked)
            if not result.final:
                continue
            del self._left[key]
            if result.ok and departure.allow_again(self._kube, left, left.by):
                done.append(key)
        return done

    def _leave(self, proposal: Proposal, by: str) -> None:
        namespace, name = proposal.job
        job = kinds.named(self._kube, namespace, name)
        if job is None:
            raise RequestRefusedError(("name", name, "the job does not exist any more"))
        pods = self._kube.list(POD, namespace, selector(kinds.pod_labels(name)))
        seen = drain_look(job, self._kube.get_workload_for_job(job), pods, proposal.nodes, by)
        if seen.refusal is not None:
            raise RequestRefusedError(("name", name, f"{seen.refusal.why}; {seen.refusal.fix}"))
        self._left[proposal.job] = departure.leave(self._kube, namespace, name, proposal.nodes, by)

    def _prioritise(self, proposal: Proposal, job: Object, workload: Object, by: str, now: float) -> None:
        """Who runs and gets a lower priority may be preempted, which is Kueue's doing: nothing can be saved before it.

        So it has to have shown that it can be saved, in this attempt; else it is saved once, while it goes on.
        """
        meta = workload["metadata"]
        stands = int((workload.get("spec") or {}).get("priority") or 0)
        last = attempt_history.last(required(Job.parse(job).history))
        running = (last.attempt, now) if last is not None and states.admission(workload) is not None else None
        if running is not None and proposal.priority < stands and saveable.current(job).verdict != "yes":
            namespace, name = proposal.job
            verbs.ask(self._kube, namespace, name, "checkpoint", by, _saved_once)
            raise RequestRefusedError(("job", name, "is saved once before it may be preempted for this"))
        body = priority.change(proposal.policy, proposal.priority, stands, priority.read(workload), running)
        self._kube.patch(WORKLOAD, meta["namespace"], meta["name"], body, resource_version=meta["resourceVersion"])


def _asked_before(jobs: Iterable[Object]) -> Iterator[tuple[JobKey, departure.Departure]]:
    for job in jobs:
        left = None if states.failing(job) or states.delegated(job) else departure.asked_before(job)
        if left is not None and policy_of(left.by):
            yield (left.asked.namespace, left.asked.name), left


def signed(proposal: Proposal) -> str:
    """Who asks, and why: it stands in the request, and in the history of the job."""
    return f"{BY}{proposal.policy}: {proposal.reason}"


def saved_first(job: Object, message: str, max_budget_s: float, now: float) -> Action:
    """A Job that runs is saved; then a look at it evicts it, and it is admitted again (`leave.follow`)."""
    seen = Job.parse(job)
    running = seen.changing
    fails = running[0].id if running is not None and running[0].op == "resize" else ""
    begun = leave.begin(seen, message, max_budget_s, now, request=fails, readmit=message)
    return replace(leave.note(begun), guard=Guard.JOB_VERSION)


def _saved_once(job: Object, request: JobRequest) -> JobRequest:
    problem = departure.busy(job, request.by)
    if problem is not None:
        raise RequestRefusedError(problem)
    return replace(request, timeout_s=MAX_SAVE_S)


def _filled(job: Object, request: JobRequest, proposal: Proposal) -> JobRequest:
    """The request in full. Raises RequestRefusedError: another one is under way, or it is no longer what it was."""
    problem = departure.busy(job, request.by)
    if problem is not None:
        raise RequestRefusedError(problem)
    if proposal.action == "resize":
        # The policy has seen that the quota is there: a request that waits for it would be in the way of the next one.
        return JobRequest(request.id, "resize", request.at, request.by, workers=proposal.workers, at_once=True)
    if proposal.action == "checkpoint":
        return JobRequest(request.id, "checkpoint", request.at, request.by, timeout_s=MAX_SAVE_S)
    last = user_requests.asked(job, user_requests.CHANGE)
    theirs = last is not None and last.op == "pause" and not policy_of(last.by)
    if proposal.action == "resume" and (last is None or last.op == "resume" or theirs):
        raise RequestRefusedError(("request", "resume", "it is not paused any more"))
    return replace(request, memory=list(proposal.memory))
