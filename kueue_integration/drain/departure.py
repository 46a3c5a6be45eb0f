"""Two requests of a drain: leave some nodes, and, once the job is elsewhere, forget that it had to.

`verbs.migrate` keeps a job away from a node for good. A cluster whose nodes are upgraded one by one would soon have no
node left for it. So a drain gives back the placement that it found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..contract.record_types import JobRequest, Placement
from ..errors import JobNotFoundError, RequestRefusedError, SpecError
from ..kube.api import Kube
from ..kube.resources import Object
from ..requests import placement, user_requests, verbs


@dataclass(frozen=True)
class Departure:
    """A request to leave nodes. `before`: where the job might run until then, `target`: where it may run now.

    `by`: how the request is signed.
    """

    asked: verbs.Result
    before: Placement
    target: Placement
    by: str = ""

    @property
    def narrowed(self) -> bool:
        """Whether a flavor was left out because the drained nodes are all that it has."""
        return self.before.flavors != self.target.flavors


def busy(job: Mapping[str, Any] | None, by: str) -> user_requests.Problem | None:
    """The request for another change that is under way, None if there is none, or it is that of `by`. Pure."""
    request = user_requests.asked(job, user_requests.CHANGE)
    if request is None or request.by == by:
        return None
    answer = user_requests.answer(job, user_requests.CHANGE)
    if answer is not None and answer.state != "running":
        return None
    who = f"asked for by {request.by}" if request.by else "asked for before"
    return "request", request.op, f"{who}, is under way: {answer.message if answer else 'the controller is to answer'}"


def leave(
    kube: Kube, namespace: str, name: str, nodes: Sequence[str], by: str, lose_work: bool = False
) -> Departure:
    """Ask a job to leave `nodes` with a checkpoint. Another request that is under way is never replaced.

    One that cannot be saved stays, unless `lose_work`.

    Raises RequestRefusedError, JobNotFoundError, PlatformError (may not look at nodes or flavors), KubeError.
    """
    seen: list[tuple[Placement, Placement]] = []

    def fill(job: Object, request: JobRequest) -> JobRequest:
        full, target = _filled(kube, job, request, nodes)
        seen[:] = [(_standing(job), target)]
        return replace(full, lose_work=lose_work or None)

    asked = verbs.ask(kube, namespace, name, "migrate", by, fill)
    return Departure(asked, *seen[0], by)


def refusal(kube: Kube, job: Object, nodes: Sequence[str], by: str) -> None:
    """What `leave` would raise, without writing anything."""
    request, _ = _filled(kube, job, JobRequest("dry-run", "migrate", 0.0, by), nodes)
    problem = user_requests.problem(job, request, None)
    if problem is not None:
        raise RequestRefusedError(problem)


def asked_before(job: Object) -> Departure | None:
    """The departure that stands in the job's last request, whoever has asked for it. None: there is none, or it is not
    known where the job might run before. It is known where these nodes are all that was ruled out. Pure.
    """
    request = user_requests.asked(job, user_requests.CHANGE)
    if request is None or request.op != "migrate" or not request.node or request.placement is None:
        return None
    target = request.placement
    if target.flavors or set(target.avoid_nodes) != set(request.node.split(", ")):
        return None
    return Departure(verbs.result_of(job, request), placement.ANYWHERE, target, request.by)


def allow_again(kube: Kube, left: Departure, by: str) -> bool:
    """Give the job the placement of before the drain; False if that is not needed, or the job has another one by now.

    The job stays where it is: what it may do changes at its next start. Raises KubeError.
    """

    def fill(job: Object, request: JobRequest) -> JobRequest:
        last = user_requests.asked(job, user_requests.CHANGE)
        if last is None or last.id != left.asked.id or placement.of(job) != left.target:
            raise RequestRefusedError(("request", "migrate", "somebody else has asked for another change"))
        return replace(request, placement=left.before)

    if left.before == left.target:
        return False
    try:
        verbs.ask(kube, left.asked.namespace, left.asked.name, "migrate", by, fill)
    except (RequestRefusedError, JobNotFoundError):
        return False
    return True


def _standing(job: Object) -> Placement:
    found = placement.of(job)
    return found if isinstance(found, Placement) else placement.ANYWHERE  # `resolve` refuses what cannot be read


def _filled(kube: Kube, job: Object, request: JobRequest, nodes: Sequence[str]) -> tuple[JobRequest, Placement]:
    problem = busy(job, request.by)
    if problem is not None:
        raise RequestRefusedError(problem)
    try:
        target = placement.resolve(kube, job, None, nodes, anywhere=False)
    except SpecError as error:
        raise RequestRefusedError(error.problems[0]) from None
    return replace(request, placement=target, node=", ".join(nodes)), target
