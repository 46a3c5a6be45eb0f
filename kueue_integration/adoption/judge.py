"""`judged`: the API server is asked whether a job can be adopted. Which Jobs fit stands in the chart, and nowhere else.

The policy of `adoption.yaml` judges a Job as its owner wrote it, the guards of pods what is made of it. Both are asked
by a dry run: nothing is stored. A JobSet or TrainJob is asked about as the Job that it stands for: no policy of Jobs
sees it before its controller has made one, and then its owner is not there to read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ..contract import job_names
from ..contract.kinds import job_key
from ..errors import AlreadyExists, ConflictError, Forbidden, Invalid, NotFound, PlatformError, SpecError
from ..kube.api import Kube
from ..kube.resources import JOB, JOBSET, TRAINJOB, Object
from ..spec.platform_config import PlatformConfig
from . import jobset, trainjob
from .patch import adopted, managed

ASKED = "asked"
"""Value of the label `job_names.LABEL_MANAGED` that asks for the rules of adoption, and no controller to adopt."""


def judged(kube: Kube, job: Mapping[str, Any], platform: PlatformConfig) -> None:
    """Raises SpecError with the API server's sentence, PlatformError, KubeError."""
    plain = as_job(job, platform)
    if not managed(plain):  # which `adopted` says better
        meta = plain["metadata"]
        labels = {**(meta.get("labels") or {}), job_names.LABEL_MANAGED: ASKED}
        _asked(kube, {**plain, "metadata": {**meta, "labels": labels}})
    if job.get("kind") != JOB.name:  # else it is created next
        _asked(kube, adopted(plain, platform, job_key(job)))


def as_job(job: Mapping[str, Any], platform: PlatformConfig) -> Object:
    """The Job that stands for a job of any kind. Raises SpecError that names each field that no Job has."""
    if job.get("kind") == JOBSET.name:
        return jobset.as_job(job)
    return trainjob.as_job(job, platform) if job.get("kind") == TRAINJOB.name else dict(job)


def create(kube: Kube, obj: Object, dry_run: bool = False) -> Object:
    """Create an object. Raises SpecError with the API server's sentence, ConflictError, PlatformError, KubeError."""
    kind, name = obj["kind"], obj["metadata"]["name"]
    try:
        return kube.create(obj, dry_run=dry_run)
    except NotFound:
        raise PlatformError(f"this cluster does not serve {obj['apiVersion']} {kind}: install its controller") from None
    except AlreadyExists:
        raise ConflictError(_exists(kind, name)) from None
    except (Invalid, Forbidden) as error:
        if isinstance(error, Forbidden) and not error.denied:  # a right is missing
            raise
        raise SpecError([(kind, name, f"the API server refused it: {error}")]) from error


def _asked(kube: Kube, job: Object) -> None:
    with contextlib.suppress(ConflictError):  # policies are asked before anybody looks for the name
        create(kube, job, dry_run=True)


def _exists(kind: str, name: str) -> str:
    there = f"{kind} {name!r} exists already"
    return f"{there}; `singularityctl adopt {name} --recreate` replaces it" if kind == JOB.name else there
