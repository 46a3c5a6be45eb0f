"""What the policy health has found, reported once: sick nodes and errors of programs. Taints nodes if it may."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace

from ...contract import job_names
from ...errors import KubeError
from ...kube import server_time
from ...kube.client import Kube
from ...kube.resources import NODE, Object
from ...planner.job import JobKey
from ...planner.model import ClusterSnapshot
from ...planner.policies import health
from ...planner.policies.health import OwnError, Sick
from ...planner.settings import Health
from ..metrics import Metrics
from .symptoms import Symptoms

log = logging.getLogger(__name__)


class NodeHealth:
    """Not thread-safe."""

    def __init__(self, kube: Kube, settings: Health, metrics: Metrics, symptoms: Symptoms) -> None:
        self._kube, self._settings, self._metrics, self._symptoms = kube, settings, metrics, symptoms
        self._told: set[tuple[str, ...]] = set()
        self._marked: set[str] = set()
        """Nodes that had our taint at the last look."""
        self.sick = frozenset[str]()
        """Names of the nodes that were sick at the last look."""

    def look(
        self, snapshot: ClusterSnapshot, nodes: Mapping[str, Object], jobs: Mapping[JobKey, Object]
    ) -> ClusterSnapshot:
        """`snapshot` with its symptoms. Tells each finding once, and taints with mode `act`. Never raises KubeError.

        :param nodes: as listed for `snapshot`; `jobs`: all of them, for an error of a program mostly ends its job
        """
        marked = {name for name, node in snapshot.nodes.items() if node.marked}
        for name in (self._marked - marked) & snapshot.nodes.keys():
            self._symptoms.forgive(name, snapshot.now)
            self._told = {told for told in self._told if told[:2] != ("node", name)}
            log.info("planner: health: somebody has removed the taint of node %s: what was before is forgotten", name)
        for name in snapshot.nodes.keys() - marked:  # also where the process before this one had tainted it
            self._symptoms.forgive(name, snapshot.nodes[name].marked_at)
        self._marked = marked | (self._marked - snapshot.nodes.keys())
        snapshot = replace(snapshot, symptoms=self._symptoms.see(snapshot.now))
        found = health.sick(snapshot, self._settings)
        self.sick = frozenset(each.node for each in found)
        for each in found:
            if self._new("node", each.node, each.why):
                self._sick(each, nodes[each.node], each.node in marked, snapshot.now)
        for error in health.own_errors(snapshot, self._settings):
            if self._new("error", *error.job, health.signature(error.words)):
                self._own_error(error, jobs.get(error.job), snapshot.now)
        return snapshot

    def _new(self, *what: str) -> bool:
        new = what not in self._told
        self._told.add(what)
        return new

    def _sick(self, found: Sick, node: Object, marked: bool, now: float) -> None:
        wanted = self._settings.taint and not marked
        how = "done" if wanted and self._settings.mode == "act" else "proposed"
        if how == "done" and not self._taint(found, node, now):
            how = "refused"
            if not self._new("refused", found.node):
                return
        told = {"done": "it is tainted", "proposed": "it would be tainted", "refused": "it could not be tainted"}
        say = told[how] if wanted else "it has the taint" if marked else "taints are off (planner.health.taint)"
        text = f"health: node {found.node} {found.why}; {say}"
        self._metrics.add("singularity_planner_actions_total", f"health taint {how}" if wanted else "health node told")
        log.warning("planner: %s", text)
        about = {"apiVersion": "v1", "kind": "Node", "name": found.node, "uid": found.node}  # as the kubelet has it
        self._event(about, "default", job_names.EVENT_NODE_SICK, text, now)

    def _taint(self, found: Sick, node: Object, now: float) -> bool:
        """Whether the node has the taint now."""
        meta, taints = node["metadata"], list((node.get("spec") or {}).get("taints") or ())
        taint = {"key": job_names.TAINT_UNHEALTHY, "value": "true", "effect": "NoSchedule"}
        since = {"annotations": {job_names.NODE_TAINTED_AT: server_time.to_micro(now)}}
        body = {"metadata": since, "spec": {"taints": [*taints, taint]}}
        try:
            self._kube.patch(NODE, None, str(meta["name"]), body, resource_version=meta.get("resourceVersion"))
        except KubeError as error:
            log.warning("planner: health: node %s cannot be tainted: %s", found.node, error)
            self._told.discard(("node", found.node, found.why))  # the next look tries again
            return False
        self._marked.add(found.node)
        return True

    def _own_error(self, error: OwnError, job: Object | None, now: float) -> None:
        text = f"health: the same error on nodes {', '.join(error.nodes[:5])}: the program's own. {error.words}"
        log.info("planner: %s", text, extra={"job": "/".join(error.job)})
        self._metrics.add("singularity_planner_actions_total", "health program told")
        if job is None:
            return
        meta = job["metadata"]
        about = {"apiVersion": str(job.get("apiVersion") or "batch/v1"), "kind": str(job.get("kind") or "Job"),
                 "namespace": meta["namespace"], "name": meta["name"], "uid": meta.get("uid")}  # fmt: skip
        self._event(about, str(meta["namespace"]), job_names.EVENT_OWN_ERROR, text, now)

    def _event(self, about: Mapping[str, object], namespace: str, reason: str, text: str, now: float) -> None:
        mark = hashlib.sha256(f"{about} {text} {now}".encode()).hexdigest()[:16]
        stamp = server_time.to_whole(now)
        event = {
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": f"{str(about['name'])[:200]}.{mark}", "namespace": namespace},
            "involvedObject": dict(about), "type": "Warning", "reason": reason, "message": text[:1000],
            "reportingComponent": job_names.CONTROLLER_NAME, "reportingInstance": job_names.CONTROLLER_NAME,
            "source": {"component": job_names.CONTROLLER_NAME},
            "firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
        }  # fmt: skip
        try:
            self._kube.create(event)
        except KubeError as error:  # the log has it
            log.warning("no Event for %s %s: %s", about["kind"], about["name"], error)
