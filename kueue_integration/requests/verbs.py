"""The verbs: resize, migrate, checkpoint, pause, resume and rewind a training job that is there already.

Each writes a request on the Job and returns at once. The controller carries it out by Kueue's own means and reports how
it went (`look`, `wait`). A request that cannot be carried out is refused before anything is written. The same request
again joins the one that is under way; another one replaces it, because the last word of a user counts.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..contract import kinds
from ..contract.record_types import JobRequest, RequestOp
from ..errors import JobNotFoundError, KubeError, RequestRefusedError, RequestTimeoutError, SpecError
from ..kube import conflicts
from ..kube.api import Kube
from ..kube.resources import Object, kind_of
from . import placement, user_requests

_TRIES = 5
_LOOK_S = 0.5


@dataclass(frozen=True)
class Result:
    """How far a request is."""

    namespace: str
    name: str
    """What the job is called (`kinds.job_key`)."""
    op: RequestOp
    id: str
    state: str
    """`asked`: the controller has not taken notice; `running`; `done`, `failed`, `superseded` by a later request, or
    `gone` with the job: final."""
    message: str
    attempt: int = 0
    """Attempt that was current when the controller took it up."""
    checkpoint: str | None = None
    """checkpoint: the id of the one that was made."""
    step: int | None = None
    """checkpoint: step boundaries passed in it."""

    @property
    def final(self) -> bool:
        return self.state in ("done", "failed", "superseded", "gone")

    @property
    def ok(self) -> bool:
        return self.state == "done"


def resize(
    kube: Kube,
    namespace: str,
    name: str,
    workers: int,
    min_workers: int | None = None,
    by: str | None = None,
    lose_work: bool = False,
) -> Result:
    """Change the number of pods; the ranks stay. `min_workers` None: as before, `workers` at most.

    Down: at once, with a checkpoint. Up: as soon as there is quota for it; the job goes on meanwhile, unless it has
    fewer than `min_workers`. A job that cannot be saved is not stopped, and the request fails; `lose_work` stops it all
    the same. Raises RequestRefusedError, JobNotFoundError, KubeError.
    """
    loses = lose_work or None
    return ask(
        kube, namespace, name, "resize", by,
        lambda job, r: replace(r, workers=workers, min_workers=min_workers, lose_work=loses),
    )  # fmt: skip


def migrate(
    kube: Kube,
    namespace: str,
    name: str,
    flavor: str | None = None,
    away_from_node: str | None = None,
    anywhere: bool = False,
    by: str | None = None,
    lose_work: bool = False,
) -> Result:
    """Move to `flavor` (and stay there), or away from a node (and keep away). Earlier wishes still hold, unless
    `anywhere`: alone it frees the job from all of it, and moves nothing. `lose_work`: as in `resize`.

    Raises RequestRefusedError, JobNotFoundError, PlatformError (no permission to look at nodes or flavors), KubeError.
    """
    if flavor is None and away_from_node is None and not anywhere:
        raise RequestRefusedError(("flavor", None, "say where to: a flavor, a node to leave, or anywhere"))

    def fill(job: Object, request: JobRequest) -> JobRequest:
        try:
            target = placement.resolve(kube, job, flavor, [] if away_from_node is None else [away_from_node], anywhere)
        except SpecError as error:
            raise RequestRefusedError(error.problems[0]) from None
        return replace(request, placement=target, flavor=flavor, node=away_from_node, lose_work=lose_work or None)

    return ask(kube, namespace, name, "migrate", by, fill)


def checkpoint(kube: Kube, namespace: str, name: str, timeout_s: float | None = None, by: str | None = None) -> Result:
    """Commit a checkpoint while the job goes on. `timeout_s`: give it up after so many seconds, and train on.

    Raises RequestRefusedError (it does not run, say), JobNotFoundError, KubeError.
    """
    return ask(kube, namespace, name, "checkpoint", by, lambda job, r: replace(r, timeout_s=timeout_s))


def pause(kube: Kube, namespace: str, name: str, by: str | None = None, lose_work: bool = False) -> Result:
    """Checkpoint, stop, give the quota back until `resume`. `lose_work`: as in `resize`.

    Raises RequestRefusedError, JobNotFoundError, KubeError.
    """
    return ask(kube, namespace, name, "pause", by, lambda job, r: replace(r, lose_work=lose_work or None))


def resume(kube: Kube, namespace: str, name: str, by: str | None = None) -> Result:
    """Queue a paused job again. Raises RequestRefusedError, JobNotFoundError, KubeError."""
    return ask(kube, namespace, name, "resume", by, lambda job, r: r)


def rewind(kube: Kube, namespace: str, name: str, checkpoint: str, by: str | None = None) -> Result:
    """Give up what came after `checkpoint`, and go on from it; a job without quota does so when it has quota again.

    Whether the store still has the checkpoint is not looked at here: see `jobs.time_travel.rewind`.
    Raises RequestRefusedError (not a checkpoint of this job, a damaged one), JobNotFoundError, KubeError.
    """
    return ask(kube, namespace, name, "rewind", by, lambda job, r: replace(r, checkpoint=checkpoint))


def look(kube: Kube, asked: Result) -> Result:
    """How far the request is now. Raises KubeError."""
    job = kinds.find(kube, asked.namespace, asked.name)
    if job is None:
        return replace(asked, state="gone", message="the job does not exist any more")
    slot = user_requests.slot_of(asked.op)
    request = user_requests.asked(job, slot)
    if request is None or request.id != asked.id:
        later = f"a later request ({request.op})" if request is not None else "somebody who removed it"
        return replace(asked, state="superseded", message=f"replaced by {later}")
    return result_of(job, request)


def wait(
    kube: Kube, asked: Result, timeout_s: float = 600.0, tell: Callable[[Result], None] = lambda result: None
) -> Result:
    """Look until the request is final; `tell` hears of every change. A busy API server is asked again.

    Raises RequestTimeoutError (the controller goes on with the request), KubeError.
    """
    deadline = time.monotonic() + timeout_s
    shown = asked
    while True:
        try:
            now = look(kube, asked)
        except KubeError as error:
            if not error.transient or time.monotonic() >= deadline:
                raise
            now = shown
        if now != shown:
            shown = now
            tell(now)
        if now.final:
            return now
        if time.monotonic() >= deadline:
            fix = "is the controller running? see `singularityctl doctor`" if now.state == "asked" else now.message
            raise RequestTimeoutError(f"{now.op} of job {now.name} is not done after {timeout_s:.0f} s: {fix}")
        time.sleep(_LOOK_S)  # the pace of looking; the end is a condition


def ask(
    kube: Kube,
    namespace: str,
    name: str,
    op: RequestOp,
    by: str | None,
    fill: Callable[[Object, JobRequest], JobRequest],
) -> Result:
    """Check and write the request that `fill` completes; when the Job changes in between, both again.

    Raises RequestRefusedError (or what `fill` raises), JobNotFoundError, KubeError.
    """
    slot = user_requests.slot_of(op)
    who = os.environ.get("USER", "") if by is None else by
    blank = JobRequest(uuid.uuid4().hex[:12], op, round(time.time(), 3), who)

    def attempt() -> Result:
        job = kinds.named(kube, namespace, name)
        if job is None:
            raise JobNotFoundError(f"no training job {name!r} in namespace {namespace!r}; see `singularityctl status`")
        request = fill(job, blank)
        problem = user_requests.problem(job, request, None)
        if problem is not None:
            raise RequestRefusedError(problem)
        before, answer = user_requests.asked(job, slot), user_requests.answer(job, slot)
        if before is not None and (answer is None or answer.state == "running") and _same(before, request):
            return result_of(job, before)
        body, meta = {"metadata": {"annotations": user_requests.written(request)}}, job["metadata"]
        written = kube.patch(kind_of(job), namespace, meta["name"], body, resource_version=meta["resourceVersion"])
        return result_of(written, request)

    return conflicts.outlasted(_TRIES, attempt)


def _same(one: JobRequest, other: JobRequest) -> bool:
    return replace(one, id="", at=0.0, by="", memory=[]) == replace(other, id="", at=0.0, by="", memory=[])


def result_of(job: Object, request: JobRequest) -> Result:
    """How far `request`, which stands in `job`, is. Pure."""
    meta, answer = job["metadata"], user_requests.answer(job, user_requests.slot_of(request.op))
    base = Result(meta["namespace"], kinds.job_key(job), request.op, request.id, "asked", "asked for")
    if answer is None:
        return base
    return replace(
        base,
        state=answer.state,
        message=answer.message,
        attempt=answer.attempt,
        checkpoint=answer.checkpoint,
        step=answer.step,
    )
