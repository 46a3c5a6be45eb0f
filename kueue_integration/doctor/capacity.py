"""Whether the controller may use the memory that a cluster of this size asks for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from ..contract import job_names, kinds
from ..errors import NotFound
from ..job import states
from ..kube import quantities
from ..kube.api import Kube
from ..kube.resources import DEPLOYMENT, NODE, finished, pod_spec, selector
from .check import OK, REPAIR, WARN, Check

MIB = 1 << 20
BASE, PER_JOB, PER_POD, PER_NODE = 70, 0.2, 0.004, 0.008
"""MiB with all policies, of the program and of what there is: the table of the page on installing.

Half of a job is what is kept and has been read of it, with twenty attempts; the rest is connections of its sidecars.
"""
ROOM = 1.25
"""For what comes at once: many jobs that leave, or all sidecars that connect again."""
STEP = 128


def needed(jobs: int, pods: int, nodes: int) -> int:
    """MiB that the limit should allow, a multiple of `STEP`."""
    peak = BASE + PER_JOB * jobs + PER_POD * pods + PER_NODE * nodes
    return STEP * math.ceil(ROOM * peak / STEP)


def controller_memory(kube: Kube) -> Iterator[Check]:
    """The limit of its Deployment against what the unfinished jobs, their pods, and the nodes take."""
    found = kube.find(DEPLOYMENT, job_names.SYSTEM_NAMESPACE, job_names.CONTROLLER_NAME)
    containers = pod_spec(found).get("containers") or [{}]
    text = ((containers[0].get("resources") or {}).get("limits") or {}).get("memory")
    if text is None:
        return
    jobs = pods = 0
    for kind in kinds.KINDS:
        with contextlib.suppress(NotFound):  # it is not served here
            for page, _ in kube.pages(kind, None, selector({job_names.LABEL_MANAGED: "true"})):
                live = [kinds.as_job(job) for job in page if finished(job) is None]
                jobs, pods = jobs + len(live), pods + sum(map(states.parallelism, live))
    nodes = sum(len(page) for page, _ in kube.pages(NODE))
    wanted, limit = needed(jobs, pods, nodes), quantities.parse(str(text)) / MIB
    size = f"{jobs} jobs, {pods} pods, {nodes} nodes"
    if limit >= wanted:
        yield Check("controller memory", OK, f"limit {text}; {wanted} MiB would do for {size}")
        return
    fix = f"Raise it:\n{REPAIR} \\\n  --set controller.resources.limits.memory={wanted}Mi"
    yield Check("controller memory", WARN, f"limit {text} for {size}: {wanted} MiB would do", fix)
