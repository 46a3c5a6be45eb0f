"""The Event on a Job that cannot be saved: once in an attempt, when a save or a trial begins to say so."""

from __future__ import annotations

import hashlib
import logging

from ..contract import job_names, saveable
from ..contract.saveable import Saveable
from ..errors import KubeError
from ..kube import server_time
from ..kube.client import Kube
from ..kube.resources import Object
from .actions import Annotations

log = logging.getLogger(__name__)
MAX_MESSAGE = 1000
"""Characters; an Event may have 1024."""


def event(job: Object, change: Annotations, now: float) -> Object | None:
    """The Event to make once `change` is written, None for none. Pure."""
    before = saveable.newest(job)
    after = saveable.newest({"metadata": {"annotations": change}})
    if after.verdict != "no" or (before.verdict, before.attempt) == ("no", after.attempt):
        return None
    meta, stamp = job["metadata"], server_time.to_whole(now)
    text = sentence(after)
    mark = hashlib.sha256(f"{meta.get('uid')} {text} {now}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": f"{str(meta['name'])[:200]}.{mark}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": str(job.get("apiVersion") or "batch/v1"), "kind": str(job.get("kind") or "Job"),
            "namespace": meta["namespace"], "name": meta["name"], "uid": meta.get("uid"),
        },
        "type": "Warning", "reason": job_names.EVENT_UNSAVEABLE, "message": text[:MAX_MESSAGE],
        "reportingComponent": job_names.CONTROLLER_NAME, "reportingInstance": job_names.CONTROLLER_NAME,
        "source": {"component": job_names.CONTROLLER_NAME},
        "firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
    }  # fmt: skip


def sentence(found: Saveable) -> str:
    """What the user has to know now."""
    what = "a trial" if found.by == "trial" else "its last checkpoint"
    return f"attempt {found.attempt} cannot be saved, as {what} has shown: {found.why}"


def tell(kube: Kube, event: Object) -> None:
    """Make it. An API server that refuses costs the Event alone: the Job says the same."""
    try:
        kube.create(event)
    except KubeError as error:
        log.warning("no Event for %s: %s", event["involvedObject"]["name"], error)
