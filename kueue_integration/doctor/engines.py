"""Which engine a job has and why, and what `auto` gives to a new one in a namespace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from singularity_proxy.protocol import names

from ..contract import kinds
from ..errors import KubeError
from ..job.view import Job
from ..jobs import told
from ..kube.api import Kube
from ..kube.resources import Object, pod_spec
from ..spec import engine
from .check import OK, Check, shown, unexpected

MOST_READ = 20
"""Jobs whose files are read: each file of a job may have 900 kB, and `doctor` is to stay quick."""


def automatic(namespace: str, level: str | None) -> Check:
    """`level`: of Pod Security that the namespace enforces, None for none."""
    given = f"'{names.ENGINE_STATE}' where a shipped file imports {engine.LIBRARY}"
    oldest = ".".join(map(str, names.OLDEST_TORCH))
    if level in ("baseline", "restricted"):
        other = f"any other job would get '{names.ENGINE_PROCESS}', and is refused here"
    else:
        other = f"else '{names.ENGINE_PROCESS}', which needs torch {oldest} or newer in the image, if any"
    return Check("engine auto", OK, f"namespace {namespace}: {given}; {other}")


def of_jobs(kube: Kube, jobs: list[Object]) -> Iterator[Check]:
    """One finding per job, also for those that wait."""
    for number, job in enumerate(jobs):
        name = f"engine of {kinds.job_key(job)}"
        try:
            yield Check(name, OK, _sentence(job, _files(kube, job) if number < MOST_READ else None))
        except Exception as error:  # whatever it is like, the others get theirs
            yield unexpected(name, error)


def _sentence(job: Object, files: Mapping[str, str] | None) -> str:
    has = Job.parse(job).engine
    if files is None:
        return f"{shown(has)}: its files are not looked at"
    auto = engine.automatic(files, list(_words(job)))
    if has == auto.name:
        return f"'{has}': {auto.why}"
    return f"{shown(has)}: the job asks for it; 'auto' is '{auto.name}', as {auto.why}"


def _words(job: Object) -> Iterator[str]:
    """Of the commands of a Job's pods."""
    for container in pod_spec(job).get("containers") or ():
        yield from map(str, (*(container.get("command") or ()), *(container.get("args") or ())))


def _files(kube: Kube, job: Object) -> dict[str, str] | None:
    """Path -> text of what was shipped with a Job, empty for one without files; None: they cannot be read."""
    try:
        return told.files(kube, job)
    except KubeError:
        return None
