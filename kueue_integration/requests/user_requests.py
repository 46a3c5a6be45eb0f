"""What users ask of a job that is there already, and the controller's answers: stored and judged. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from singularity_proxy.protocol import page
from singularity_proxy.protocol.messages import CheckpointRef, to_json

from ..contract import attempt_records, branches, job_names, kinds
from ..contract.record_types import JobRequest, RequestStatus
from ..job.exchanges import CHANGE as CHANGE
from ..job.exchanges import CHECKPOINT as CHECKPOINT
from ..job.exchanges import SLOTS as SLOTS
from ..job.exchanges import Exchange as Exchange
from ..job.exchanges import Slot as Slot
from ..job.exchanges import answer as answer
from ..job.exchanges import asked as asked
from ..job.exchanges import exchange as exchange
from ..job.exchanges import running as running
from ..job.exchanges import slot_of as slot_of
from ..job.unreadable import UnreadableAnnotation, readable_or
from ..job.view import Job
from ..kube.resources import is_true, label
from . import placement

MAX_MESSAGE = 400
MAX_CHECKPOINT_S = 3600.0
DEFAULT_CHECKPOINT_S = 300.0


def written(request: JobRequest) -> dict[str, str | None]:
    """The annotation that asks for it. Whoever writes it (a verb, a policy of ours) checks `problem` first."""
    return {slot_of(request.op).request: to_json(request)}


def stored(status: RequestStatus) -> dict[str, str | None]:
    """The annotation that stores an answer."""
    message = status.message
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 3] + "..."
    return {slot_of(status.op).status: to_json(replace(status, message=message))}


def ended(status: RequestStatus, state: str, message: str, now: float) -> RequestStatus:
    """`status` with its final word: `state` is done or failed."""
    return replace(status, state=state, message=message, finished_at=now)  # type: ignore[arg-type]


def checkpointed(status: RequestStatus, checkpoint: CheckpointRef, now: float) -> RequestStatus:
    """`status` of a checkpoint request that `checkpoint` answers."""
    done = ended(status, "done", f"checkpoint {checkpoint.id} at step {checkpoint.step}", now)
    return replace(done, checkpoint=checkpoint.id, step=checkpoint.step)


# --- rules, the same for whoever asks and for the controller --------------------------------------------------------
Problem = tuple[str, object, str]
"""(field, value, what is wrong and what to do)."""


def problem(job: Mapping[str, Any], request: JobRequest, flavors: Sequence[str] | None) -> Problem | None:
    """Why `request` cannot be carried out on `job`, None if it can. `flavors` of its queue; None: not known."""
    name = job["metadata"]["name"]
    if label(job, job_names.LABEL_MANAGED) != "true":
        return "name", name, "is not a training job of this platform"
    if job["metadata"].get("deletionTimestamp"):
        return "name", name, "the job is being deleted"
    for end, word in (("Complete", "finished"), ("Failed", "failed")):
        if is_true(job, end):
            fix = "submit it again to run it again"
            if request.op == "rewind":
                fix = "`fork` goes on from one of its checkpoints in a new job"
            return "name", name, f"the job has {word}; {fix}"
    if request.op == "resize":
        return _resize_problem(job, request)
    if request.op == "migrate":
        return _migrate_problem(job, request, flavors)
    if request.op == "checkpoint":
        return _checkpoint_problem(job, request)
    if request.op == "rewind":
        return committed(job, request.checkpoint)[1]
    return None


def committed(job: Mapping[str, Any], checkpoint: str | None) -> tuple[CheckpointRef | None, Problem | None]:
    """The committed checkpoint of `job` with that id, or why nothing can go on from it; one of the two is None."""
    refs = branches.known(job)
    usable = [f"{ref.id} (step {ref.step})" for ref in refs if not ref.unusable]
    fix = f"it has {', '.join(usable)}" if usable else "it has none that can be restored; make one with `checkpoint`"
    found = next((ref for ref in refs if ref.id == checkpoint), None)
    if found is None:
        where = f"job {job['metadata']['name']}"
        return None, ("checkpoint", checkpoint, f"is no committed checkpoint that {where} knows; {fix}")
    if found.unusable:
        return None, ("checkpoint", checkpoint, f"cannot be restored: {found.unusable}; {fix}")
    return found, None


_FIXED = {
    "JobSet": "the parallelism of its Jobs cannot be changed, and Kueue admits all of its pods or none",
    "TrainJob": "its spec.trainer cannot be changed, and Kueue admits all of its pods or none",
}


def _resize_problem(job: Mapping[str, Any], request: JobRequest) -> Problem | None:
    workers, fewest = request.workers, request.min_workers
    seen = Job.parse(job)
    ranks = readable_or(seen.world_size, None)
    if workers is None or workers < 1:
        return "workers", workers, "must be a whole number, 1 or more"
    if fewest is not None and not 1 <= fewest <= workers:
        return "min_workers", fewest, f"must be from 1 to workers ({workers})"
    if not kinds.is_job(job):
        fixed = f"the number of pods of a {job['kind']} is fixed: "
        return "name", job["metadata"]["name"], fixed + _FIXED[job["kind"]]
    if not ranks or not seen.tied:
        return "name", job["metadata"]["name"], "its number of pods is fixed: it was not made by submit"
    each = readable_or(seen.ranks_per_worker, None)
    if each:
        most = page.MAX_WORLD // each
        return None if workers <= most else ("workers", workers, f"is more than {most}, which is not supported")
    if workers > ranks:
        return "workers", workers, f"is more than its world size, {ranks} ranks, which stays as it was submitted"
    if ranks % workers:
        fits = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        return "workers", workers, f"does not divide its {ranks} ranks evenly; use one of {fits}"
    why = "" if request.lose_work else crowded(attempt_records.checkpoint(job), workers)
    return ("workers", workers, why) if why else None


def crowded(ref: CheckpointRef | None, workers: int) -> str:
    """Why the ranks of a checkpoint have no room in so few pods, "" if they have, or that is not known."""
    if ref is None or workers >= ref.fewest:
        return ""
    return f"its ranks need {ref.fewest} pods ({ref.crowded}): let each rank choose a port of its own"


def _migrate_problem(job: Mapping[str, Any], request: JobRequest, flavors: Sequence[str] | None) -> Problem | None:
    wanted = request.placement
    if wanted is None:
        return "placement", None, "is missing"
    unknown = [f for f in wanted.flavors if flavors is not None and f not in flavors]
    if unknown:
        return "flavor", unknown[0], f"is not a flavor of the job's queue; it has: {', '.join(flavors or ())}"
    if bool(wanted.terms) != bool(wanted.flavors or wanted.avoid_nodes) or not all(wanted.terms):
        return "placement", wanted, "its terms do not say what its flavors and nodes say"
    if wanted.avoid_nodes and not kinds.is_job(job):
        fix = f"the node affinity of the pods of a {job['kind']} cannot be changed; name a flavor to move to instead"
        return "away_from_node", wanted.avoid_nodes[0], fix
    stands = placement.of(job)
    if isinstance(stands, UnreadableAnnotation):
        return "placement", stands.text, f"cannot be read; delete annotation {stands.name}"
    present = placement.own_affinity(job)
    if present and present != placement.affinity(wanted):
        return "affinity", present, "the job brings a node affinity of its own, which a migration would replace"
    return None


def _checkpoint_problem(job: Mapping[str, Any], request: JobRequest) -> Problem | None:
    name, past = job["metadata"]["name"], attempt_records.history(job)
    if request.timeout_s is not None and not 1 <= request.timeout_s <= MAX_CHECKPOINT_S:
        return "timeout", request.timeout_s, f"must be from 1 to {MAX_CHECKPOINT_S:.0f} seconds"
    if job["spec"].get("suspend") or not past:
        return "name", name, "the job does not run now: there is nothing to save since its last checkpoint"
    last = past[-1]
    if last.evicted_at is not None or last.ended_by is not None:
        return "name", name, f"attempt {last.attempt} is being stopped already ({last.ended_by}), with a checkpoint"
    if attempt_records.trains_since(job, last) is None:
        return "name", name, f"attempt {last.attempt} has not made a step yet: there is nothing new to save"
    return None
