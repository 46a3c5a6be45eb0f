"""Two requests of a policy that chooses flavors: go to one and stay there, and be free of it again."""

from __future__ import annotations

from dataclasses import replace

from ...contract.record_types import JobRequest, Placement
from ...drain import departure
from ...errors import RequestRefusedError, SpecError
from ...kube.api import Kube
from ...kube.resources import Object
from ...planner.job import JobKey, policy_of
from ...requests import placement, user_requests, verbs


def pin(kube: Kube, job: JobKey, flavor: str, by: str) -> None:
    """Ask `job` to go to `flavor`, with a checkpoint, and to stay there. Nodes that it avoids stay avoided.

    Raises RequestRefusedError, JobNotFoundError, PlatformError (may not look at flavors), KubeError.
    """

    def fill(found: Object, request: JobRequest) -> JobRequest:
        _check(departure.busy(found, by))
        return replace(request, flavor=flavor, placement=_resolved(kube, found, flavor, ()))

    verbs.ask(kube, *job, "migrate", by, fill)


def unpin(kube: Kube, job: JobKey, by: str) -> None:
    """Let `job` go to every flavor of its queue again, if a policy of ours has sent it to one; it stays where it is.

    Raises as `pin`.
    """

    def fill(found: Object, request: JobRequest) -> JobRequest:
        _check(departure.busy(found, by))
        last = user_requests.asked(found, user_requests.CHANGE)
        if last is None or last.flavor is None or not policy_of(last.by):
            raise RequestRefusedError(("request", "migrate", "somebody else has asked for another change"))
        stands = placement.of(found)
        avoid = stands.avoid_nodes if isinstance(stands, Placement) else ()
        return replace(request, placement=_resolved(kube, found, None, avoid))

    verbs.ask(kube, *job, "migrate", by, fill)


def _check(problem: user_requests.Problem | None) -> None:
    if problem is not None:
        raise RequestRefusedError(problem)


def _resolved(kube: Kube, job: Object, flavor: str | None, avoid: tuple[str, ...] | list[str]) -> Placement:
    try:
        return placement.resolve(kube, job, flavor, avoid, anywhere=flavor is None)
    except SpecError as error:
        raise RequestRefusedError(error.problems[0]) from None
