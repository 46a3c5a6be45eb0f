"""Kubernetes objects as the values of `model`. Pure; raises what `BROKEN` lists on an object that is not as it should
be, which the reader names and leaves out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from ..contract import attempt_records, job_names, kinds, saveable
from ..contract.record_types import AttemptRecord
from ..job import records, states
from ..job.unreadable import readable_or
from ..job.view import Job
from ..jobs import lost_time, phase, shortage
from ..jobs.phase import Phase
from ..kube import quantities, server_time
from ..kube.resources import KUEUE_JOB_UID_LABEL, Object, annotation, condition, finished, is_true, label
from ..manifests.pod_placement import REQUIRED_TOPOLOGY
from ..planner import quota
from .model import Claim, Cohort, Key, Limit, Queue, Step, Training, Unreadable

BROKEN: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def queue(obj: Object) -> Queue:
    """Of a ClusterQueue."""
    spec = obj.get("spec") or {}
    return Queue(
        name=str(obj["metadata"]["name"]),
        cohort=str(spec.get("cohortName") or ""),
        limits=_limits(spec),
        reported=quota.reported(obj),
        trouble=_trouble(obj),
    )


def cohort(obj: Object) -> Cohort:
    spec = obj.get("spec") or {}
    return Cohort(str(obj["metadata"]["name"]), str(spec.get("parentName") or ""), _limits(spec))


def _limits(spec: Mapping[str, Any]) -> dict[Key, Limit]:
    return {
        (str(flavor["name"]), str(resource["name"])): Limit(
            quantities.parse(resource["nominalQuota"]),
            _parsed(resource.get("borrowingLimit")),
            _parsed(resource.get("lendingLimit")),
        )
        for group in spec.get("resourceGroups") or ()
        for flavor in group.get("flavors") or ()
        for resource in flavor.get("resources") or ()
    }


def _parsed(amount: object) -> Fraction | None:
    return None if amount is None else quantities.parse(amount)


def _trouble(obj: Object) -> str:
    stopped = str((obj.get("spec") or {}).get("stopPolicy") or "None")
    if stopped != "None":
        return f"stopped ({stopped})"
    told = condition(obj, "Active")
    if told is None or told.get("status") == "True":
        return ""
    return f"not active ({told.get('reason') or 'no reason given'})"


def training(job: Object, keep: Collection[str] = ()) -> tuple[Training, list[Unreadable]]:
    """Of a managed job seen as a Job, and its annotations that cannot be read; `keep` names further ones to keep."""
    meta = job["metadata"]
    attempts = attempt_records.history(job)
    seen = attempt_records.progress(job)
    name = kinds.job_key(job)
    template = job["spec"].get("template") or {}
    found = Training(
        namespace=str(meta["namespace"]),
        name=name,
        uid=str(meta["uid"]),
        local_queue=label(job, job_names.KUEUE_QUEUE_LABEL) or "",
        workers=readable_or(Job.parse(job).workers_wanted, states.parallelism(job)),
        attempts=attempts,
        stepless=seen is not None and seen.free and not any(a.first_step_at or a.last_step for a in attempts),
        lost=lost_time.of_job(job).of,
        saveable=saveable.newest(job),
        kept={key: text for key in keep if (text := annotation(job, key)) is not None},
        created=server_time.parse(str(made)) if (made := meta.get("creationTimestamp")) else 0.0,
        ended=_ended(job, attempts),
        priority_class=label(job, job_names.KUEUE_PRIORITY_LABEL) or "",
        pod_asks=quota.of_pod({"template": template}),
        required_topology=annotation(template, REQUIRED_TOPOLOGY) or "",
    )
    spoilt = records.unreadable(job).items()
    where = f"{meta['namespace']}/{name}"
    return found, [Unreadable(str(job.get("kind") or "Job"), where, part, why) for part, why in spoilt]


def _ended(job: Object, attempts: Sequence[AttemptRecord]) -> float | None:
    """The record's time is finer than the condition's."""
    done = finished(job)
    if done is None:
        return None
    told = attempts[-1].finished_at if attempts else None
    return told if told is not None else server_time.transition(done)


def claim(workload: Object, job: Object | None) -> Claim | None:
    """Of a Workload; `job` is the training job that owns it. None when it is finished, or in no queue."""
    meta, spec = workload["metadata"], workload.get("spec") or {}
    admission = (workload.get("status") or {}).get("admission") or {}
    reserved = is_true(workload, "QuotaReserved") and bool(admission)
    if is_true(workload, "Finished") or not (spec.get("queueName") or reserved):
        return None
    owner: Mapping[str, Any] = next((o for o in meta.get("ownerReferences") or () if o.get("controller")), {})
    state = phase.of_workload(workload) if job is None else phase.classify(workload, job)
    if state.phase.final:
        return None
    return Claim(
        namespace=str(meta["namespace"]),
        name=str(meta["name"]),
        owner=str(owner.get("name") or meta["name"]) if job is None else kinds.job_key(job),
        kind=str(owner.get("kind") or "Workload") if job is None else str(job.get("kind") or "Job"),
        training=job is not None,
        uid=label(workload, KUEUE_JOB_UID_LABEL) or "",
        local_queue=str(spec.get("queueName") or ""),
        cluster_queue=str(admission.get("clusterQueue") or "") if reserved else "",
        priority=int(spec.get("priority") or 0),
        pods=_pods(admission.get("podSetAssignments") if reserved else spec.get("podSets")),
        phase=_word(state.phase, job),
        reason=state.reason,
        message=state.message,
        said=state.said,
        raw=state.raw,
        needs=shortage.sentence(phase.shortages(workload)),
        holds=quota.usage(workload) if reserved else None,
        asks={} if reserved else quota.requests(workload),
        since=_since(workload, reserved),
        active=spec.get("active") is not False,
        devices_per_pod=1 if job is None else quota.devices_of(workload),
    )


def _word(found: Phase, job: Object | None) -> str:
    """Of other Workloads nobody knows whether they run: they are admitted."""
    return str(Phase.ADMITTED if job is None and found is Phase.RUNNING else found)


def _pods(sets: Any) -> int:
    return sum(int(item.get("count") or 0) for item in sets or ())


def _since(workload: Object, reserved: bool) -> float | None:
    """When QuotaReserved became what it is; Workloads that never had quota wait since they were made."""
    found = condition(workload, "QuotaReserved") or {}
    made = str(workload["metadata"].get("creationTimestamp") or "")
    if reserved or is_true(workload, "Evicted"):
        changed = server_time.transition(found)
        return changed if changed is not None or not made else server_time.parse(made)
    return server_time.parse(made) if made else None


def step(event: Object) -> Step:
    """Of an Event of the planner."""
    about = event["involvedObject"]
    return Step(
        at=server_time.parse(str(event["lastTimestamp"])),
        namespace=str(event["metadata"]["namespace"]),
        job=kinds.owner_key(str(about.get("kind")), str(about["name"])),
        uid=str(about.get("uid") or ""),
        kind=str(about.get("kind") or "Job"),
        policy=label(event, job_names.LABEL_PLANNER) or "",
        action=str(event.get("action") or ""),
        done=event.get("reason") == job_names.EVENT_PLANNER_DONE,
        message=str(event.get("message") or ""),
    )
