"""`python -m kueue_integration.put_back`: what policies have changed for a while is given back when the chart goes.

The chart runs it after its controller has ended, so nothing is changed again meanwhile. Jobs that live go on as plain
jobs of Kueue: with their own priority, in their queue, and free to be deleted. What users have asked for stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .contract import job_names, kinds, priority
from .errors import Forbidden, KubeError, NotFound, SingularityError
from .job.workload import Workload
from .kube.api import Kube
from .kube.credentials import connect
from .kube.resources import DISRUPTION_BUDGET, NODE, WORKLOAD, Kind, Object, selector


@dataclass(frozen=True)
class Back:
    """One object that gets `body` as a merge patch, or that is deleted where that is None; `what` says why."""

    kind: Kind
    obj: Object
    body: Mapping[str, Any] | None
    what: str

    @property
    def name(self) -> str:
        meta = self.obj["metadata"]
        return f"{self.kind.name} " + "/".join(filter(None, (meta.get("namespace"), meta["name"])))


def of_workload(raw: Object) -> Back | None:
    """Its own priority, and its place in the queue if a policy or a change of its shape has taken it out. Pure."""
    seen, spec, notes, what = Workload.parse(raw), dict[str, Any](), dict[str, None](), list[str]()
    stands = int((raw.get("spec") or {}).get("priority") or 0)
    if seen.priority_mark is not None:
        spec["priority"] = priority.unplanned(seen.priority_mark, stands)
        notes[job_names.ANN_PRIORITY] = None
        what.append(f"has its own priority again, {spec['priority']}")
    if not seen.active and (seen.paused_by or seen.reshape_reason is not None):
        spec["active"] = True
        notes |= {job_names.ANN_PAUSED: None, job_names.ANN_RESHAPE: None}
        what.append("is in its queue again")
    if not what:
        return None
    return Back(WORKLOAD, raw, {"spec": spec, "metadata": {"annotations": notes}}, " and ".join(what))


def of_job(kind: Kind, raw: Object) -> Back | None:
    """A copy that MultiKueue has made can be deleted without our controller. Pure."""
    stand = raw["metadata"].get("finalizers") or []
    if job_names.FINALIZER_RECORDS not in stand:
        return None
    left = [name for name in stand if name != job_names.FINALIZER_RECORDS]
    return Back(kind, raw, {"metadata": {"finalizers": left}}, "can be deleted")


def of_node(raw: Object) -> Back | None:
    """It takes pods again. Pure."""
    stand = (raw.get("spec") or {}).get("taints") or []
    left = [taint for taint in stand if taint.get("key") != job_names.TAINT_UNHEALTHY]
    if left == stand:
        return None
    body = {"spec": {"taints": left or None}, "metadata": {"annotations": {job_names.NODE_TAINTED_AT: None}}}
    return Back(NODE, raw, body, "has our taint no more")


def found(kube: Kube) -> Iterator[Back]:
    """Yield all that is to be given back. Raises KubeError."""
    yield from filter(None, map(of_workload, _all(kube, WORKLOAD)))
    managed = selector({job_names.LABEL_MANAGED: "true"})
    for kind in kinds.KINDS:
        yield from filter(None, (of_job(kind, raw) for raw in _all(kube, kind, managed)))
    yield from filter(None, map(of_node, _all(kube, NODE)))
    for raw in _all(kube, DISRUPTION_BUDGET, selector(job_names.MADE_BY_CONTROLLER)):
        yield Back(DISRUPTION_BUDGET, raw, None, "holds up no drain any more")


def _all(kube: Kube, kind: Kind, query: str | None = None) -> Iterable[Object]:
    try:
        for page, _ in kube.pages(kind, None, query):
            yield from page
    except (NotFound, Forbidden):  # Kueue is gone already, or the kind is not served
        return


def put_back(kube: Kube) -> tuple[list[str], list[str]]:
    """Give it all back: what was done, and what failed, in words. An error about one object keeps no other from it."""
    done, failed = list[str](), list[str]()
    for back in found(kube):
        meta = back.obj["metadata"]
        try:
            if back.body is None:
                kube.delete(back.kind, meta["namespace"], meta["name"])
            else:
                kube.patch(back.kind, meta.get("namespace"), meta["name"], back.body, meta.get("resourceVersion"))
            done.append(f"{back.name} {back.what}")
        except NotFound:
            continue
        except KubeError as error:
            failed.append(f"{back.name}: {error}")
    return done, failed


def main() -> int:
    try:
        done, failed = put_back(connect())
    except SingularityError as error:
        done, failed = [], [str(error)]
    print("\n".join(done) or "nothing is to be put back")
    if failed:
        print("\n".join(f"error: {line}" for line in failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
