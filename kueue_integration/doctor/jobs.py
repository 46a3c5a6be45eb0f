"""The hold of every training job that runs now: H1, no hold outlives its deadline, which is within the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from singularity_proxy.protocol.decode import Unreadable

from ..contract import agent_images, attempt_records, job_names, kinds
from ..errors import Forbidden
from ..job import records, states
from ..job.unreadable import UnreadableAnnotation
from ..job.view import Job
from ..kube.api import Kube
from ..kube.resources import LEASE, TRAINJOB, Object, finished, is_true, pod_spec
from ..spec.platform_config import AUTO, NODE, USER_NAMESPACE, PlatformConfig
from . import authorities, engines
from .check import FAIL, OK, REPAIR, WARN, Check, listing, shown, unexpected

RETRY_S = 30.0
"""After the deadline Kueue still has to ask again; its back-off within a checkpoint budget stays well below this."""


def running(kube: Kube, namespace: str, now: float, platform: PlatformConfig | None) -> Iterator[Check]:
    """`platform` is None when it is not known."""
    max_budget_s = platform.max_budget_s if platform is not None else 0
    managed = kinds.list_managed(kube, namespace)
    unfinished = [job for job in managed if finished(job) is None]
    yield from engines.of_jobs(kube, unfinished)
    yield from _images(kube, unfinished)
    if platform is not None:
        yield from authorities.strangers(platform, unfinished)
        yield from _levels(kube, namespace, platform, unfinished)
    live = [job for job in managed if not (job.get("spec") or {}).get("suspend") and finished(job) is None]
    if not live:
        yield Check("jobs", OK, f"{len(managed)} in namespace {namespace}, none runs")
        return
    workloads = kube.workloads_by_job(namespace, live)
    for job in live:
        yield from _each(job, workloads.get(job["metadata"]["uid"]), now, max_budget_s)


def _images(kube: Kube, jobs: Sequence[Object]) -> Iterator[Check]:
    """Jobs that would get no pod any more: the guard trusts their agent image no longer."""
    try:
        found = kube.find(LEASE, job_names.SYSTEM_NAMESPACE, job_names.TRUSTED_IMAGES_LEASE)
    except Forbidden:
        return
    trusted = agent_images.read(found or {"metadata": {}})
    if not trusted:
        return  # `guard policies` says so, or a release that kept no list is installed
    for job in jobs:
        image = agent_images.of_job(job)
        if image is not None and image not in trusted:
            lost = f"its agent image {image} is not trusted: the guard of pods refuses the pods of its next attempt"
            fix = f"Trust it until the job has ended:\n{REPAIR} \\\n  --set 'images.trusted={{{image}}}'"
            yield Check(f"job {kinds.job_key(job)}", FAIL, lost, fix)


def _levels(kube: Kube, namespace: str, platform: PlatformConfig, jobs: Sequence[Object]) -> Iterator[Check]:
    """Jobs of before `pods.privileges=userns`: the guard lets those go on whose pods Kubernetes makes from their own
    template. So does a JobSet, whose Job stays when it is stopped. To the JobSet of a TrainJob without a version of the
    runtime (of 0.1.0) Trainer applies the runtime's level, and JobSet refuses another template."""
    if platform.privileges != USER_NAMESPACE:
        return
    whole = [job for job in jobs if not kinds.is_job(job)]
    workloads = kube.workloads_by_job(namespace, whole) if whole else {}
    before = [job for job in jobs if states.privileges(job, workloads.get(job["metadata"]["uid"])) == NODE]
    ours = [job for job in before if job["kind"] == TRAINJOB.name]
    stuck = [job for job in ours if job["spec"]["runtimeRef"]["name"] == job_names.RUNTIME]
    going_on = [kinds.job_key(job) for job in before if job not in stuck]
    if going_on:
        words = f"{len(going_on)} of before pods.privileges=userns keep capabilities on the node: {listing(going_on)}"
        anew = "" if all(map(kinds.is_job, before)) else "; the guard refuses a Job that JobSet makes anew"
        yield Check("privileges of jobs", OK, f"{words}. They go on until they end{anew}")
    for key in map(kinds.job_key, stuck):
        lost = "its pods add capabilities on the node: at its next stop JobSet refuses the level that the runtime has"
        fix = f"Let this job end first; new ones have user namespaces meanwhile, where nodes can:\n{REPAIR} \\\n"
        yield Check(f"job {key}", FAIL, lost, f"{fix}  --set pods.privileges={AUTO}")


def _each(job: Object, workload: Object | None, now: float, max_budget_s: int) -> Iterator[Check]:
    """The findings about one job; whatever it is like, the others get theirs."""
    try:
        yield _hold(job, workload, now, max_budget_s)
        yield from _grace(job)
        yield from _unreadable(job)
    except Exception as error:
        yield unexpected(f"job {kinds.job_key(job)}", error)


def _unreadable(job: Object) -> Iterator[Check]:
    told = (job_names.ANN_BUDGET, job_names.ANN_HOLD_DEADLINE)  # `_hold` has said it
    found = {name: why for name, why in records.unreadable(job).items() if name not in told}
    if found:
        first = "; ".join(f"{name}: {why}" for name, why in list(found.items())[:3])
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        fix = f"Remove what somebody has spoilt:\n{_annotate(job, f'{next(iter(found))}-')}"
        yield Check(f"job {kinds.job_key(job)}", WARN, f"annotations that cannot be read: {first}{more}", fix)


def _grace(job: Object) -> Iterator[Check]:
    """A node drain and a spot reclaim do not wait for the hold: the pods' grace period is all the time there is."""
    saves = [
        record.committed_at - record.evicted_at
        for record in attempt_records.history(job)
        if record.committed_at is not None and record.evicted_at is not None
    ]
    grace = pod_spec(job).get("terminationGracePeriodSeconds", 30)
    if saves and max(saves) > grace:
        late = f"its checkpoint took {max(saves):.0f} s, a node drain gives its pods {grace} s: too little"
        fix = f"Submit it with --grace {int(max(saves) * 1.5) + 5} next time; a running job cannot be changed."
        yield Check(f"job {kinds.job_key(job)}", WARN, late, fix)


def _hold(job: Object, workload: Object | None, now: float, max_budget_s: int) -> Check:
    name = f"job {kinds.job_key(job)}"
    seen = Job.parse(job)
    hold = seen.hold_word
    if hold is None:
        return Check(name, OK, "runs without a hold: checkpoints within its grace period only")
    if hold not in (job_names.HOLD_ARMED, job_names.HOLD_RELEASED):
        meant = f"{job_names.HOLD_ARMED} or {job_names.HOLD_RELEASED}"
        return Check(
            name, WARN, f"{job_names.ANN_HOLD} = {shown(hold)} is neither {meant}: nothing is held", _rearm(job)
        )
    evicted = is_true(workload, "Evicted")
    if hold == job_names.HOLD_RELEASED:
        return Check(name, OK, "hold released" + (", about to be suspended" if evicted else ""))
    deadline, text = seen.hold_deadline, str(seen.text(job_names.ANN_HOLD_DEADLINE))
    if deadline is None:
        waits = "its checkpoint is about to be asked for" if evicted else "not being evicted"
        return _budget(job, name, max_budget_s) or Check(name, OK, f"hold armed, {waits}")
    if isinstance(deadline, UnreadableAnnotation):
        wrong = f"{job_names.ANN_HOLD_DEADLINE} = {shown(text)} is not a time: the policy holds nothing"
        return Check(name, WARN, wrong, _clear(job))
    left = deadline - now
    allowed = _seconds(job, max_budget_s)
    if allowed is not None and left > allowed + RETRY_S:
        late = f"its deadline is {left:.0f} s away, its budget is {allowed} s: preemption is blocked for too long"
        return Check(name, FAIL, late, _release(job))
    if not evicted:
        stale = f"has a deadline ({text}) without an eviction: the next one would not be held"
        return Check(name, WARN, stale, _clear(job))
    if left < -RETRY_S:
        over = f"hold passed its deadline {-left:.0f} s ago and the job still runs"
        return Check(
            name, FAIL, over, "Kueue does not ask again, or the policy still denies: see Kueue's log." + _also(job)
        )
    return Check(name, OK, f"is being checkpointed, {max(left, 0):.0f} s left")


def _budget(job: Object, name: str, max_budget_s: int) -> Check | None:
    budget = attempt_records.budget(job)
    if isinstance(budget, Unreadable):
        wrong = f"{job_names.ANN_BUDGET} is {budget.why}: the platform's ceiling counts"
        return Check(name, WARN, wrong, f"Correct it:\n{_annotate(job, f'{job_names.ANN_BUDGET}=120')}")
    if budget is not None and 0 < max_budget_s < budget:
        cut = f"its budget of {budget} s is cut to the platform's ceiling of {max_budget_s} s"
        return Check(name, WARN, cut, "Raise budget.maxSeconds of the chart if its checkpoint takes longer.")
    return None


def _seconds(job: Object, max_budget_s: int) -> int | None:
    """The budget in force, None when neither the job nor the platform tells."""
    budget = attempt_records.budget(job)
    known = [] if budget is None or isinstance(budget, Unreadable) else [budget]
    return min(known + ([max_budget_s] if max_budget_s else []), default=None)


def _annotate(job: Object, change: str) -> str:
    meta = job["metadata"]
    return f"kubectl -n {meta['namespace']} annotate {job['kind'].lower()} {meta['name']} --overwrite \\\n  {change}"


def _release(job: Object) -> str:
    return f"Let the preemption through:\n{_annotate(job, f'{job_names.ANN_HOLD}={job_names.HOLD_RELEASED}')}"


def _also(job: Object) -> str:
    return f"\n{_annotate(job, f'{job_names.ANN_HOLD}={job_names.HOLD_RELEASED}')}"


def _rearm(job: Object) -> str:
    return f"Arm it again:\n{_annotate(job, f'{job_names.ANN_HOLD}={job_names.HOLD_ARMED}')}"


def _clear(job: Object) -> str:
    return f"Remove it:\n{_annotate(job, f'{job_names.ANN_HOLD_DEADLINE}-')}"
