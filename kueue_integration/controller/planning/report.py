"""What the planner does, and would do, in log, metric and Event: with the reason, and once until it changes."""

from __future__ import annotations

import hashlib
import logging
from typing import Final

from ...contract import job_names
from ...errors import KubeError
from ...kube import server_time
from ...kube.client import Kube
from ...kube.resources import Object
from ...planner.arbiter import Ruling
from ..metrics import Metrics

log = logging.getLogger(__name__)

AGAIN_S: Final = 600.0
"""The same proposal is reported again after so many seconds."""
REMEMBERED: Final = 10_000
"""So many are known as reported; after that, all of them may be reported again."""
MAX_MESSAGE: Final = 1000
"""Characters; an Event may have 1024."""


class Report:
    """Not thread-safe."""

    def __init__(self, kube: Kube, metrics: Metrics) -> None:
        self._kube, self._metrics = kube, metrics
        self._told: dict[tuple[str, ...], float] = {}
        self._remarks: set[tuple[str, ...]] = set()

    def done(self, ruling: Ruling, job: Object, now: float) -> None:
        """It was carried out."""
        self._tell(ruling, job, now, job_names.EVENT_PLANNER_DONE, "done")

    def would(self, ruling: Ruling, job: Object, now: float) -> None:
        """A dry run: it would have been carried out."""
        self._tell(ruling, job, now, job_names.EVENT_PLANNER_PROPOSAL, "proposed")

    def refused(self, ruling: Ruling, why: str, now: float) -> None:
        """It was not carried out."""
        proposal = ruling.proposal
        if self._new(("refused", *_key(ruling)), now):
            self._metrics.add("singularity_planner_actions_total", f"{proposal.policy} {proposal.action} refused")
            log.info("planner: %s", sentence(ruling, why), extra={"job": "/".join(proposal.job)})

    def trouble(self, policy: str, what: str, error: BaseException | None, now: float) -> None:
        """A policy has raised, or what it proposes makes no sense."""
        self._metrics.add("singularity_planner_policy_errors_total", policy)
        if self._new(("trouble", policy, what), now):
            log.error("policy %s %s", policy, what, exc_info=error)

    def remark(self, policy: str, what: str) -> None:
        """Something that the settings leave out: told once, and no error."""
        if (policy, what) not in self._remarks:
            self._remarks.add((policy, what))
            log.warning("policy %s %s", policy, what)

    def _tell(self, ruling: Ruling, job: Object, now: float, reason: str, how: str) -> None:
        proposal = ruling.proposal
        if how == "proposed" and not self._new((how, *_key(ruling)), now):
            return
        text = sentence(ruling, ruling.why)
        self._metrics.add("singularity_planner_actions_total", f"{proposal.policy} {proposal.action} {how}")
        log.info("planner: %s: %s", how, text, extra={"job": "/".join(proposal.job), "policy": proposal.policy})
        try:
            self._kube.create(event(ruling, job, reason, text, now))
        except KubeError as error:  # what counts is done, and the log has it
            log.warning("no Event for %s: %s", "/".join(proposal.job), error)

    def _new(self, key: tuple[str, ...], now: float) -> bool:
        """Whether that was not reported within AGAIN_S; a clock that went back tells it again."""
        if 0 <= now - self._told.get(key, -AGAIN_S) < AGAIN_S:
            return False
        if len(self._told) >= REMEMBERED:
            self._told.clear()
        self._told[key] = now
        return True


def _key(ruling: Ruling) -> tuple[str, ...]:
    """What is done to which job; a reason with other numbers is the same proposal."""
    p = ruling.proposal
    return p.policy, p.action, *p.job, str(p.workers), p.flavor, str(p.priority), *sorted(p.nodes)


def sentence(ruling: Ruling, why: str) -> str:
    """`cordon: migrate default/digits: node n1 is cordoned (gain 1200 device-seconds; costs about 80)`."""
    proposal = ruling.proposal
    detail = f" to {proposal.workers} workers" if proposal.action == "resize" else ""
    detail = f" to {proposal.flavor}" if proposal.flavor else detail
    detail = f" {proposal.priority}" if proposal.action == "priority" else detail
    gain = f"gain {proposal.gain_device_seconds:.0f} device-seconds; " if proposal.gain_device_seconds else ""
    what = f"{proposal.policy}: {proposal.action}{detail} of {'/'.join(proposal.job)}: {proposal.reason}"
    return f"{what} ({gain}{why})"


def event(ruling: Ruling, job: Object, reason: str, text: str, now: float) -> Object:
    """The Event on the job. Its label lets `singularityctl top` find those of all jobs."""
    meta, proposal = job["metadata"], ruling.proposal
    mark = hashlib.sha256(f"{meta['uid']} {text} {now}".encode()).hexdigest()[:16]
    stamp = server_time.to_whole(now)
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {
            "name": f"{str(meta['name'])[:200]}.{mark}", "namespace": meta["namespace"],
            "labels": {job_names.LABEL_PLANNER: proposal.policy},
        },
        "involvedObject": {
            "apiVersion": str(job.get("apiVersion") or "batch/v1"), "kind": str(job.get("kind") or "Job"),
            "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"],
        },
        "type": "Normal", "reason": reason, "message": text[:MAX_MESSAGE], "action": proposal.action,
        "reportingComponent": job_names.CONTROLLER_NAME, "reportingInstance": job_names.CONTROLLER_NAME,
        "source": {"component": job_names.CONTROLLER_NAME},
        "firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
    }  # fmt: skip
