"""A backup of training jobs, and jobs out of one: in the same cluster or in another one, with the same checkpoints.

A Job that runs has in its pod template what Kueue has added for a flavor, and Kueue refuses to add it a second time. So
the template of its Workload is saved in its place. A restored job waits in its queue, with its history, and goes on
from its last checkpoint.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from singularity_proxy.protocol import decode

from ..contract import job_names, kinds
from ..errors import Forbidden, KubeError, SpecError
from ..job.unreadable import readable_or
from ..job.view import Job
from ..kube.api import Kube
from ..kube.resources import (
    CONFIG_MAP,
    JOB,
    RESOURCE_CLAIM_TEMPLATE,
    SECRET,
    SERVICE,
    Object,
    finished,
    label,
    pod_spec,
    selector,
)
from ..manifests import job_secrets
from ..manifests.live_job import as_written
from . import lifecycle

API_VERSION: Final = "singularity.dev/v1"
KIND: Final = "JobBackup"
_GIVE = "give what `singularityctl backup` has printed"
_CHILDREN = (SERVICE, CONFIG_MAP, RESOURCE_CLAIM_TEMPLATE)
_OF_THE_MOMENT = (
    job_names.ANN_HOLD_DEADLINE, job_names.ANN_LEAVE, job_names.ANN_REQUEST, job_names.ANN_REQUEST_STATUS,
    job_names.ANN_CHECKPOINT_REQUEST, job_names.ANN_CHECKPOINT_STATUS,
)  # fmt: skip
"""Annotations about pods and requests of the cluster that was saved."""
PATIENCE_S = 15.0
"""Of a restore with the guard: API servers take a moment until they know that the chart names an account."""
_GUARD = "singularity-guard-"
"""Begins the names of the guard policies, which the API server names when one refuses."""


@dataclass
class Restored:
    """What became of each job, NAMESPACE/NAME."""

    made: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    """They exist already, and were left alone."""


def taken(kube: Kube, namespace: str | None) -> tuple[Object, list[str]]:
    """The unfinished Jobs of a namespace (None: of all) with what belongs to them, and the jobs that are left out.

    JobSets and TrainJobs are left out, and what MultiKueue has copied from another cluster. Raises KubeError.
    """
    jobs = [job for job in kinds.list_managed(kube, namespace) if finished(job) is None]
    here = [job for job in jobs if kinds.is_job(job) and label(job, job_names.KUEUE_PREBUILT) is None]
    workloads = kube.workloads_by_job(namespace, here)
    belongings: dict[tuple[str, str], list[Object]] = {}
    for kind in _CHILDREN:
        try:
            found = kube.list(kind, namespace, selector({job_names.LABEL_MANAGED: "true"}))
        except KubeError:
            if kind is not RESOURCE_CLAIM_TEMPLATE:  # a cluster without DRA has none
                raise
            continue
        for child in found:
            for owner in child["metadata"].get("ownerReferences") or ():
                whole = {"apiVersion": kind.api_version, "kind": kind.name, **child}
                belongings.setdefault((child["metadata"]["namespace"], str(owner.get("uid"))), []).append(whole)
    for job in here:
        meta = job["metadata"]
        own = job_secrets.named(pod_spec(job), meta["name"])
        secret = kube.find(SECRET, meta["namespace"], job_secrets.secret_name(meta["name"])) if own else None
        if secret is not None:  # of each job its own alone: nobody who saves jobs has to read all Secrets
            whole = {"apiVersion": SECRET.api_version, "kind": SECRET.name, **secret}
            belongings.setdefault((meta["namespace"], meta["uid"]), []).append(whole)
    items = [
        {
            "job": _job(job, workloads.get(job["metadata"]["uid"])),
            "children": [*map(_child, belongings.get((job["metadata"]["namespace"], job["metadata"]["uid"]), ()))],
        }
        for job in here
    ]
    left = [f"{job['metadata']['namespace']}/{kinds.job_key(job)}" for job in jobs if job not in here]
    return {"apiVersion": API_VERSION, "kind": KIND, "items": items}, left


def read(text: str) -> Object:
    """A backup as `taken` gives it. Raises SpecError."""
    try:
        found = decode.served(text.encode())
    except ValueError as error:
        raise SpecError([("FILE", text[:40], f"is no JSON ({error}): {_GIVE}")]) from None
    if not isinstance(found, dict) or (found.get("apiVersion"), found.get("kind")) != (API_VERSION, KIND):
        raise SpecError([("FILE", text[:40], f"is no {KIND} of {API_VERSION}: {_GIVE}")])
    items = found.get("items")
    for item in items if isinstance(items, list) else [None]:
        if not isinstance(item, dict) or not all(map(_whole, [item.get("job"), *(item.get("children") or ())])):
            raise SpecError([("items", str(item)[:40], f"each has a job and children, all with a name: {_GIVE}")])
    return found


def _whole(obj: object) -> bool:
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    return isinstance(meta, dict) and all(isinstance(meta.get(name), str) for name in ("namespace", "name"))


def restore(kube: Kube, backup: Mapping[str, Any], stores: Mapping[str, str], dry_run: bool = False) -> Restored:
    """Create the jobs of a backup. Those that exist are left alone, so a restore that was cut off is done again.

    :param stores: URL of a store -> the URL at which its copy is now
    Raises SpecError, ConflictError (what belongs to a job exists already), KubeError; jobs before it are made.
    """
    done = Restored()
    for item in backup["items"]:
        moved = decode.served(_moved(json.dumps(item), stores).encode())
        job, children = moved["job"], moved.get("children") or []
        meta = job["metadata"]
        name = f"{meta['namespace']}/{meta['name']}"
        if kube.find(JOB, meta["namespace"], meta["name"]) is not None:
            done.there.append(name)
            continue
        _created(kube, job, children, dry_run, name)
        done.made.append(name)
    return done


def _created(kube: Kube, job: Object, children: Sequence[Object], dry_run: bool, name: str) -> None:
    """The guard lets nobody write what is the controller's, but for accounts that the chart names: maybe since now."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            lifecycle.create(kube, job, children, dry_run)
            return
        except (SpecError, Forbidden) as error:
            if _GUARD not in str(error):
                raise
            if time.monotonic() >= end:
                fix = "name your user (`kubectl auth whoami`) in the chart's guard.accounts while you restore"
                raise SpecError([("job", name, f"the guard refuses its records: {fix}")]) from error
        time.sleep(min(1.0, PATIENCE_S))


def _job(job: Object, workload: Object | None) -> Object:
    seen, made = Job.parse(job), as_written({**job, "apiVersion": JOB.api_version, "kind": JOB.name})
    meta, spec = made["metadata"], made["spec"]
    podsets = ((workload or {}).get("spec") or {}).get("podSets") or ()
    if podsets and not spec.get("suspend"):
        template = json.loads(json.dumps(podsets[0]["template"]))
        spec["template"] = as_written({"metadata": {}, "spec": {"template": template}})["spec"]["template"]
    for name in ("ownerReferences", "finalizers", "generateName", "deletionTimestamp", "deletionGracePeriodSeconds"):
        meta.pop(name, None)
    notes = {k: v for k, v in (meta.get("annotations") or {}).items() if k not in _OF_THE_MOMENT}
    if notes.get(job_names.ANN_HOLD) == job_names.HOLD_RELEASED:
        notes[job_names.ANN_HOLD] = job_names.HOLD_ARMED
    meta["annotations"] = notes
    workers = readable_or(seen.workers, None)
    if workers is not None:
        spec["parallelism"] = spec["completions"] = workers
    spec["suspend"] = True
    return made


def _child(child: Object) -> Object:
    meta = child["metadata"]
    kept = {k: meta[k] for k in ("name", "namespace", "labels", "annotations") if k in meta}
    made: Object = json.loads(json.dumps({k: v for k, v in child.items() if k != "status"} | {"metadata": kept}))
    if made["kind"] == SERVICE.name:
        for name in ("clusterIP", "clusterIPs"):
            if made["spec"].get(name) not in (None, "None", ["None"]):
                del made["spec"][name]
    return made


def _moved(text: str, stores: Mapping[str, str]) -> str:
    """`text` with the URLs of stores replaced, also within JSON in annotations."""
    for old, new in stores.items():
        copy = new.rstrip("/").replace("\\", r"\\")
        text = re.sub(re.escape(old.rstrip("/")) + r"(?=[/\"\\,;\s])", copy, text)
    return text
