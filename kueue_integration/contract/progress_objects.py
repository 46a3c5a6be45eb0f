"""The progress of a running job, in a small object that the job owns: the controller writes it, and whoever looks at a
job reads it.

A note changes every few seconds. On the Job, each one would store the whole Job again, wake the reconcilers of Kueue
and Kubernetes, and pass the admission of Jobs. Readers lay the note over the Job that they have read: they see one
object, and what is on the Job counts where the note is missing, or older.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from singularity_proxy.protocol.decode import Unreadable

from ..errors import Forbidden, NotFound
from ..kube.api import Kube
from ..kube.resources import PROGRESS, Object
from . import attempt_records, job_names, kinds

KEY: Final = "note"


def name_of(job: Mapping[str, Any]) -> str:
    """By the job's UID: a job that is made again under the same name has another one."""
    return str(job["metadata"]["uid"])


def uid_of(obj: Mapping[str, Any]) -> str:
    """UID of the job that an object tells about."""
    return str(obj["metadata"]["name"])


def note_of(obj: Mapping[str, Any]) -> str | None:
    """The note in an object, as it stands."""
    text = obj.get(KEY)
    return text if isinstance(text, str) and text else None


def made_for(job: Object, text: str) -> Object:
    """The object: the garbage collector removes it with the job."""
    meta = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {
        "apiVersion": PROGRESS.api_version,
        "kind": PROGRESS.name,
        "metadata": {
            "namespace": meta["namespace"],
            "name": name_of(job),
            "labels": {job_names.LABEL_JOB: kinds.job_key(job)},
            "ownerReferences": [owner],
        },
        KEY: text,
    }


def laid_over(job: Object, text: str | None) -> Object:
    """`job` with the note `text` in place of its own, if that one is older; `job` itself if not."""
    new = None if text is None else attempt_records.note(text)
    if new is None or isinstance(new, Unreadable):
        return job
    shown = attempt_records.progress(job)
    if shown is not None and age(shown) >= age(new):
        return job
    meta = job["metadata"]
    told = {**(meta.get("annotations") or {}), job_names.ANN_PROGRESS: text}
    return {**job, "metadata": {**meta, "annotations": told}}


def age(note: attempt_records.ProgressNote) -> tuple[int, int, float]:
    """The greater, the newer. Steps only grow within an attempt; a clock may jump."""
    return note.attempt, note.step, note.at


# --- for those who look ---------------------------------------------------------------------------------------------
def shown(kube: Kube, job: Object) -> Object:
    """`job` with its newest progress; as it is where that may not be read. Raises KubeError."""
    try:
        found = kube.find(PROGRESS, str(job["metadata"]["namespace"]), name_of(job))
    except Forbidden:
        return job
    return job if found is None else laid_over(job, note_of(found))


def all_shown(kube: Kube, namespace: str | None, jobs: Iterable[Object], query: str | None = None) -> list[Object]:
    """The same for many jobs of a namespace (None: of all), with one list. Raises KubeError."""
    try:
        notes = {uid_of(obj): note_of(obj) for obj in kube.list(PROGRESS, namespace, query)}
    except (Forbidden, NotFound):  # the chart of a release before knows no such kind
        return list(jobs)
    return [laid_over(job, notes.get(str(job["metadata"].get("uid")))) for job in jobs]
