"""OpenLineage: one child run per attempt under the task's run, checkpoints as datasets. Needs the openlineage provider.

A training step is one Airflow task and several executions. Each admission by Kueue is a run of job
`<dag>.<task>.attempt`, and its parent is the task's run. It has START when it was admitted, and COMPLETE, FAIL or ABORT
(evicted) when it ended. Its run facet `singularity_attempt` says where it ran, who preempted it and which steps it did.
A checkpoint is a version (facet `version`) of one dataset per job: the output of the attempt that it ended, the input
of the next. The task's own COMPLETE or FAIL carries the sum in `singularity_training`. Its outlets, the final model for
example, are outputs of its COMPLETE: Airflow itself looks at inlets and outlets only of operators that name no dataset.

Attempts are sent when the task ends, with the times at which they happened. As for every deferrable operator, nothing
is sent while a task is deferred. Run ids are made of the Job's uid and the attempt's number: sent twice, they are the
same run. The events follow https://openlineage.io/spec/2-0-2/OpenLineage.json; those of our facets are in
`openlineage_facets.json`. Nothing here is imported unless OpenLineage is installed and switched on.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import attr
from airflow.sdk import Asset
from openlineage.client.event_v2 import Dataset, InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    JobFacet,
    RunFacet,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    parent_run,
)
from openlineage.client.uuid import generate_static_uuid

from kueue_integration.jobs.status import newest_usable

from . import VERSION

PRODUCER = f"pkg:pypi/airflow-provider-singularity@{VERSION}"
SCHEMA = "pkg:pypi/airflow-provider-singularity/openlineage_facets.json"
OWN_END = {"Finished": RunState.COMPLETE, "Failed": RunState.FAIL}
"""How an attempt ended by itself; whatever else ended it, it was aborted."""


@attr.define
class SingularityAttemptRunFacet(RunFacet):  # type: ignore[misc]
    """One admission of a training job. Times are ISO 8601; what is not known is None."""

    _producer: str = attr.field(default=PRODUCER, kw_only=True)
    job: dict[str, Any]
    """`namespace`, `name`, `uid` of the Kubernetes Job."""
    workload: str
    queue: str
    priorityClass: str
    attempt: int
    flavor: str
    pods: int
    ranks: int
    queuedAt: str | None = None
    firstStep: int | None = None
    lastStep: int | None = None
    endedBy: str | None = None
    preemptedBy: str | None = None
    preemptor: dict[str, Any] | None = None
    evictedAt: str | None = None
    barrierAt: str | None = None
    committedAt: str | None = None
    releasedAt: str | None = None
    checkpoint: str | None = None
    restoredFrom: str | None = None
    skipped: list[dict[str, Any]] | None = None
    """Newer checkpoints, which cannot be restored: `id`, `step`, `why`."""
    note: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMA}#/$defs/SingularityAttemptRunFacet"


@attr.define
class SingularityTrainingRunFacet(RunFacet):  # type: ignore[misc]
    """A whole training job, on the run of its Airflow task."""

    _producer: str = attr.field(default=PRODUCER, kw_only=True)
    job: dict[str, Any]
    queue: str
    worldSize: int
    attempts: int
    preemptions: int
    stepsLost: int
    steps: int
    checkpoints: int
    goodput: float | None = None
    secondsLost: float = 0.0

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMA}#/$defs/SingularityTrainingRunFacet"


@dataclass(frozen=True)
class Parent:
    """The run that the attempts belong to: the Airflow task's; `root` is the Dag run's as (namespace, name, run id)."""

    namespace: str
    name: str
    run_id: str
    root: tuple[str, str, str] | None = None

    def facet(self) -> parent_run.ParentRunFacet:
        root = None
        if self.root is not None:
            namespace, name, run_id = self.root
            root = parent_run.Root(
                run=parent_run.RootRun(runId=run_id), job=parent_run.RootJob(namespace=namespace, name=name)
            )
        return parent_run.ParentRunFacet(
            run=parent_run.Run(runId=self.run_id),
            job=parent_run.Job(namespace=self.namespace, name=self.name),
            root=root,
            producer=PRODUCER,
        )


def attempt_events(lineage: Mapping[str, Any], parent: Parent) -> list[RunEvent]:
    """START and, for what has ended, the last event of every attempt in a `lineage` document, oldest first. Pure."""
    found = []
    for record in lineage["attempts"]:
        run_id = str(generate_static_uuid(_moment(record["admitted_at"]), _key(lineage, record["attempt"])))
        found.append(_event(RunState.START, record["admitted_at"], lineage, record, parent, run_id))
        ended_at = record.get("finished_at") or record.get("released_at")
        if record.get("ended_by") and ended_at is None:
            ended_at = record.get("evicted_at")
        if ended_at is not None:
            state = OWN_END.get(record.get("ended_by") or "", RunState.ABORT)
            found.append(_event(state, ended_at, lineage, record, parent, run_id))
    return found


def _event(
    state: RunState, at: float, lineage: Mapping[str, Any], record: Mapping[str, Any], parent: Parent, run_id: str
) -> RunEvent:
    over = state is not RunState.START
    attempt = _attempt_facet(lineage, record, over)
    facets: dict[str, RunFacet] = {"parent": parent.facet(), "singularity_attempt": attempt}
    if state is RunState.FAIL:
        message = record.get("note") or lineage.get("message") or "the training failed"
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=message, programmingLanguage="python", producer=PRODUCER
        )
    kind = job_type_job.JobTypeJobFacet(
        processingType="BATCH", integration="SINGULARITY", jobType="ATTEMPT", producer=PRODUCER
    )
    job_facets: dict[str, JobFacet] = {"jobType": kind}
    return RunEvent(
        eventType=state,
        eventTime=_iso(at),
        run=Run(runId=run_id, facets=facets),
        job=Job(namespace=parent.namespace, name=f"{parent.name}.attempt", facets=job_facets),
        inputs=_datasets(InputDataset, lineage, record.get("restored_from")),
        outputs=_datasets(OutputDataset, lineage, record.get("checkpoint")) if over else [],
        producer=PRODUCER,
    )


def _attempt_facet(lineage: Mapping[str, Any], record: Mapping[str, Any], over: bool) -> SingularityAttemptRunFacet:
    known = {
        "job": _job(lineage),
        "workload": lineage.get("workload") or "",
        "queue": lineage.get("queue") or "",
        "priorityClass": lineage.get("priority_class") or "",
        **{name: record[name] for name in ("attempt", "flavor", "pods", "ranks")},
        "queuedAt": _iso(record.get("queued_at")),
        "restoredFrom": record.get("restored_from"),
        "skipped": record.get("skipped") or None,
    }
    if over:
        known |= {
            "firstStep": record.get("first_step"),
            "lastStep": record.get("last_step"),
            "endedBy": record.get("ended_by"),
            "preemptedBy": record.get("preempted_by"),
            "preemptor": record.get("preemptor"),
            "evictedAt": _iso(record.get("evicted_at")),
            "barrierAt": _iso(record.get("barrier_at")),
            "committedAt": _iso(record.get("committed_at")),
            "releasedAt": _iso(record.get("released_at")),
            "checkpoint": record.get("checkpoint"),
            "note": record.get("note"),
        }
    return SingularityAttemptRunFacet(**known)


def training_facet(lineage: Mapping[str, Any]) -> SingularityTrainingRunFacet:
    """The sum over all attempts."""
    return SingularityTrainingRunFacet(
        job=_job(lineage),
        queue=lineage.get("queue") or "",
        worldSize=lineage.get("world_size") or 0,
        attempts=len(lineage["attempts"]) + lineage.get("attempts_omitted", 0),
        preemptions=lineage.get("preemptions", 0),
        stepsLost=lineage.get("steps_lost", 0),
        steps=lineage.get("step", 0),
        checkpoints=len(lineage.get("checkpoints") or ()),
        goodput=lineage.get("goodput"),
        secondsLost=lineage.get("seconds_lost") or 0.0,
    )


def checkpoint_datasets(lineage: Mapping[str, Any]) -> list[OutputDataset]:
    """The job's checkpoints as one dataset in its newest version; none: empty."""
    saved = newest_usable(lineage.get("checkpoints") or ())
    return _datasets(OutputDataset, lineage, saved["id"]) if saved else []


def asset_datasets(assets: Iterable[Any]) -> list[Any]:
    """The datasets of `assets` (inlets or outlets), by Airflow's own conversion. An Asset that it cannot convert is
    named by its URI. If it has only a name: by that name in the namespace of Airflow's jobs."""
    from airflow.providers.openlineage.extractors.manager import ExtractorManager

    found = []
    for asset in assets or ():
        dataset = ExtractorManager.convert_to_ol_dataset(asset)
        if dataset is None and isinstance(asset, Asset):
            dataset = _named(asset)
        if dataset is not None:
            found.append(dataset)
    return found


def _named(asset: Asset) -> Dataset:
    from airflow.providers.openlineage.plugins import macros

    if not urlsplit(asset.uri).scheme:
        return Dataset(namespace=macros.lineage_job_namespace(), name=asset.name)
    namespace, name = split_url(asset.uri)
    return Dataset(namespace=namespace, name=name)


def _datasets(kind: Any, lineage: Mapping[str, Any], checkpoint: str | None) -> list[Any]:
    url = next((c["url"] for c in reversed(lineage.get("checkpoints") or ()) if c.get("url")), None)
    if checkpoint is None or url is None:
        return []
    namespace, path = split_url(url)
    version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=checkpoint, producer=PRODUCER)
    name = "/".join(part for part in (path, lineage["namespace"], lineage["name"]) if part)
    return [kind(namespace=namespace, name=name, facets={"version": version})]


def split_url(url: str) -> tuple[str, str]:
    """OpenLineage's namespace and the beginning of the name: `gs://bucket/a` is (`gs://bucket`, `a`), a file has none.

    Source: https://openlineage.io/docs/spec/naming
    """
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return "file", parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _job(lineage: Mapping[str, Any]) -> dict[str, Any]:
    return {name: lineage[name] for name in ("namespace", "name", "uid")}


def _key(lineage: Mapping[str, Any], attempt: int) -> bytes:
    return f"{lineage['uid']}/{attempt}".encode()


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else _moment(seconds).isoformat()


# --- I/O --------------------------------------------------------------------------------------------------------------
def parent_of(ti: Any) -> Parent:
    """The task's run and its Dag run's as the openlineage provider numbers them."""
    from airflow.providers.openlineage.plugins import macros

    return Parent(
        macros.lineage_job_namespace(),
        macros.lineage_job_name(ti),
        macros.lineage_run_id(ti),
        (
            macros.lineage_root_job_namespace(ti),
            macros.lineage_root_job_name(ti),
            macros.lineage_root_run_id(ti),
        ),
    )


def send_attempts(ti: Any, lineage: Mapping[str, Any]) -> int:
    """Send the events of all attempts through the provider's own transport; how many, 0 when it is switched off."""
    from airflow.providers.openlineage.api import emit, is_openlineage_active

    if not is_openlineage_active():
        return 0
    events = attempt_events(lineage, parent_of(ti))
    for event in events:
        emit(event)
    return len(events)
