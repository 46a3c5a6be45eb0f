"""The namespace's LocalQueues with their ClusterQueues, and the priority classes that decide who preempts whom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..contract import job_names
from ..errors import Forbidden
from ..kube.api import Kube
from ..kube.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    LOCAL_QUEUE,
    PRIORITY_CLASS,
    Kind,
    Object,
    admission_checks,
    condition,
)
from .check import FAIL, OK, REPAIR, WARN, Check, listing


def priority_classes(kube: Kube) -> Iterator[Check]:
    """At least two: among equals nothing is preempted by priority."""
    found = sorted((int(c.get("value") or 0), str(c["metadata"]["name"])) for c in kube.list(PRIORITY_CLASS))
    if len({value for value, _ in found}) >= 2:
        yield Check("priority classes", OK, listing((f"{name} {value}" for value, name in found), 6))
    else:
        there = f"only {found[0][1]}" if found else "none"
        more = [("low", 10), ("high", 1000)] if not found else [("high", found[-1][0] + 1000)]
        made = "\n".join(_create(PRIORITY_CLASS, {"name": name}, {"value": value}) for name, value in more)
        fix = f"Create classes with different values, and name one in each job (--priority-class):\n{made}"
        yield Check("priority classes", WARN, f"{there}: no job can preempt another by priority", fix)


def local_queues(kube: Kube, namespace: str, installed: bool) -> Iterator[Check]:
    """One finding per LocalQueue if all is well with it, else one per thing that is not. `installed`: the chart is."""
    found = kube.list(LOCAL_QUEUE, namespace)
    if not found:
        missing = f"namespace {namespace} has no LocalQueue, so nothing can be submitted to it"
        yield Check("queue", FAIL, missing, _first_queue(kube, namespace, installed))
    for queue in found:
        name, target = str(queue["metadata"]["name"]), str((queue.get("spec") or {}).get("clusterQueue", ""))
        wrong = list(_queue(kube, f"queue {name}", queue, target))
        yield from wrong or [Check(f"queue {name}", OK, f"ClusterQueue {target}: fenced, active, preempts")]


def _first_queue(kube: Kube, namespace: str, installed: bool) -> str:
    """How the namespace gets a LocalQueue: for a ClusterQueue that is there, else with the chart's samples."""
    try:
        targets = sorted(str(queue["metadata"]["name"]) for queue in kube.list(CLUSTER_QUEUE))
    except Forbidden:
        targets = ["CLUSTERQUEUE"]
    if targets:
        meta = {"name": targets[0], "namespace": namespace}
        made = _create(LOCAL_QUEUE, meta, {"spec": {"clusterQueue": targets[0]}})
        which = f" (there are {listing(targets, 5)})" if len(targets) > 1 else ""
        return f"Create a LocalQueue that points to a ClusterQueue{which}:\n{made}"
    samples = f"  --set sampleQueues.enabled=true,sampleQueues.namespace={namespace}"
    text = "There is no ClusterQueue either. Create flavors, ClusterQueue and LocalQueue, or take the chart's samples"
    if installed:
        return f"{text} (flavors ondemand and spot, by node label flavor):\n{REPAIR} \\\n{samples}"
    return f"{text}: add to the chart's installation above:\n{samples.strip()}"


def _create(kind: Kind, meta: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """A command that makes an object; it may be copied with the spaces before its lines."""
    document = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, **body}
    first, *rest = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    head, tail = f"{first}, {rest[0]}", ",\n  ".join(rest[1:])
    return f"echo '{{{head},\n  {tail}}}' | \\\n  kubectl create -f -"


def _queue(kube: Kube, name: str, queue: Object, target: str) -> Iterator[Check]:
    try:
        cluster_queue = kube.find(CLUSTER_QUEUE, None, target)
    except Forbidden as error:
        yield Check(name, WARN, f"ClusterQueue {target} not checked: {error}", "Let the platform team run this.")
        return
    if cluster_queue is None:
        fix = "Create it, or make the LocalQueue again with one of `kubectl get clusterqueues`."
        yield Check(name, FAIL, f"ClusterQueue {target} does not exist", fix)
        return
    spec = cluster_queue.get("spec") or {}
    if not _elsewhere(kube, cluster_queue):
        yield from _fenced(name, target, cluster_queue)
    yield from _active(name, "clusterqueue", cluster_queue)
    yield from _active(name, "localqueue", queue)
    preemption = spec.get("preemption") or {}
    if all(preemption.get(key, "Never") == "Never" for key in ("withinClusterQueue", "reclaimWithinCohort")):
        patch = _patch(target, {"preemption": {"withinClusterQueue": "LowerPriority"}})
        fix = f"If urgent jobs shall not wait, allow it:\n{patch}"
        yield Check(name, WARN, f"ClusterQueue {target} never preempts: urgent jobs wait for others to end", fix)


def _elsewhere(kube: Kube, queue: Object) -> bool:
    """Whether MultiKueue runs the queue's jobs in other clusters, whose queues are fenced."""
    for item in admission_checks(queue):
        try:
            check = kube.find(ADMISSION_CHECK, None, str(item.get("name")))
        except Forbidden:
            continue
        if ((check or {}).get("spec") or {}).get("controllerName") == job_names.MULTIKUEUE_CONTROLLER:
            return True
    return False


def _fenced(name: str, target: str, queue: Object) -> Iterator[Check]:
    checks = admission_checks(queue)
    ours = [item for item in checks if item.get("name") == job_names.ADMISSION_CHECK_NAME]
    if not ours:
        text = f"ClusterQueue {target} lacks admission check {job_names.ADMISSION_CHECK_NAME}"
        fix = "Submit refuses such a queue; add it (other jobs are let through at once):"
        yield Check(name, FAIL, text, f"{fix}\nsingularityctl fence {target}")
        return
    groups = (queue.get("spec") or {}).get("resourceGroups") or ()
    flavors = {str(flavor["name"]) for group in groups for flavor in group.get("flavors") or ()}
    only = {str(flavor) for item in ours for flavor in item.get("onFlavors") or ()}
    if only and flavors - only:
        text = f"ClusterQueue {target} is not fenced on flavor {listing(sorted(flavors - only))}"
        yield Check(name, FAIL, text, f"Fence all its flavors:\nsingularityctl fence {target}")


def _active(name: str, resource: str, obj: Object) -> Iterator[Check]:
    title, where = obj["metadata"]["name"], obj["metadata"].get("namespace")
    who = f"{'ClusterQueue' if resource == 'clusterqueue' else 'LocalQueue'} {title}"
    told = condition(obj, "Active")
    stopped = str((obj.get("spec") or {}).get("stopPolicy") or "None")
    if stopped != "None":
        start = f"kubectl {f'-n {where} ' if where else ''}patch {resource} {title} --type merge \\\n"
        fix = "Start it again:\n" + start + '  -p \'{"spec":{"stopPolicy":"None"}}\''
        yield Check(name, FAIL, f"{who} is stopped (stopPolicy {stopped})", fix)
    elif told is None:
        yield Check(name, FAIL, f"Kueue has not reported on {who}", "Is Kueue's controller running? See its log.")
    elif told.get("status") != "True":
        text = f"{who} is not active: {told.get('reason', '')}: {told.get('message', '')}"
        yield Check(
            name, FAIL, text, "Do what the message says; missing flavors and inactive checks are the usual ones."
        )


def _patch(target: str, spec: Mapping[str, Any]) -> str:
    body = json.dumps({"spec": spec}, separators=(",", ":"))
    return f"kubectl patch clusterqueue {target} --type merge \\\n  -p '{body}'"
