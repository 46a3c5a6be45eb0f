"""`adopted_jobset`: a JobSet of one Indexed Job, with our parts in it. Pure.

The Job inside is held to the same rules as a Job of its own (`judge`). What a JobSet cannot have on stock Kueue, and
why: docs/workload-kinds.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..contract import job_names
from ..contract.kinds import job_key
from ..errors import SpecError
from ..kube.resources import JOB, Object, annotation
from ..spec.platform_config import PlatformConfig
from .patch import adopted

Problem = tuple[str, object, str]


def as_job(jobset: Mapping[str, Any]) -> Object:
    """The Job that the JobSet stands for. Raises SpecError that names each field that no Job has."""
    found = _problems(jobset)
    if found:
        raise SpecError(found)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    spec = replicated["template"].get("spec") or {}
    return {"apiVersion": JOB.api_version, "kind": JOB.name, "metadata": jobset["metadata"], "spec": spec}


def adopted_jobset(jobset: Mapping[str, Any], platform: PlatformConfig) -> Object:
    """A new manifest: `jobset` as its owner wrote it, with our parts. Raises SpecError."""
    result: Object = json.loads(json.dumps(jobset))
    made = adopted(as_job(result), platform, job_key(jobset))
    (replicated,) = result["spec"]["replicatedJobs"]
    # Kueue resumes the JobSet and the JobSet its Job; nobody would resume a Job that is suspended by its own template.
    del made["spec"]["suspend"]
    replicated["template"]["spec"] = made["spec"]
    result["metadata"] = made["metadata"]
    result["metadata"]["annotations"].pop(job_names.COMPLETIONS_EQUAL_PARALLELISM)
    result["spec"]["suspend"] = True
    return result


def _problems(jobset: Mapping[str, Any]) -> list[Problem]:
    spec = jobset["spec"]
    jobs = spec.get("replicatedJobs") or []
    found: list[Problem] = []
    if len(jobs) != 1:
        listed = [job.get("name") for job in jobs]
        found.append(("spec.replicatedJobs", listed, "must have exactly one: all ranks are workers of one Indexed Job"))
    elif jobs[0].get("replicas", 1) != 1:
        fix = "must be 1; use parallelism for the number of workers"
        found.append(("spec.replicatedJobs[0].replicas", jobs[0]["replicas"], fix))
    if annotation(jobset, job_names.MIN_PARALLELISM) is not None:
        fix = "is for batch/v1 Jobs only: Kueue admits a JobSet with all of its pods or not at all; remove it"
        found.append(
            (
                f"metadata.annotations[{job_names.MIN_PARALLELISM}]",
                annotation(jobset, job_names.MIN_PARALLELISM),
                fix,
            )
        )
    if spec.get("managedBy"):
        found.append(("spec.managedBy", spec["managedBy"], "is not supported: the JobSet controller has to run it"))
    return found
