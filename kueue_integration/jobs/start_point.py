"""`start_from`: the checkpoint of another job that a new one begins with, as a user names it. Blocking."""

from __future__ import annotations

from typing import Final

from singularity_proxy.protocol import names

from ..contract import branches, job_names, kinds
from ..errors import RequestRefusedError, SpecError
from ..kube.api import Kube
from ..kube.resources import Object
from ..manifests.job_manifests import job
from ..spec import engine, store_access
from ..spec.platform_config import PlatformConfig
from ..spec.train_spec import TrainSpec
from . import lifecycle, time_travel, told
from .lifecycle import Submitted
from .time_travel import Ask, Start

_UNREAD: Final = (
    "its saved processes go on with the {0} that they were started with, and this job's is another one (engine {1!r}). "
    "Give the same, or begin anew; for other arguments the script has to use singularity_train, with engine 'state'"
)
FORMS: Final = "a job, JOB/CHECKPOINT, or the id of a checkpoint"


def find(kube: Kube, namespace: str, wanted: str, forms: str = FORMS) -> Start:
    """What `wanted` names. Raises SpecError that names `start_from`, KubeError.

    :param forms: what the user may give, for the error
    """
    name, slash, checkpoint = wanted.strip().partition("/")
    try:
        if slash or kinds.named(kube, namespace, name) is not None:
            if not name:
                raise SpecError([("start_from", wanted, f"has no name of a job before '/'; give {forms}")])
            return time_travel.find(kube, namespace, name, checkpoint or None)
    except SpecError as error:
        field, value, why = error.problems[0]
        if field == "start_from":
            raise
        raise SpecError([("start_from", wanted, f"{value} {why}")]) from None
    for known in kinds.list_managed(kube, namespace):
        if any(ref.id == name for ref in branches.known(known)):
            return time_travel.find(kube, namespace, kinds.job_key(known), name)
    where = f"is neither a training job of namespace {namespace!r} nor a checkpoint that one of them knows"
    raise SpecError([("start_from", wanted, f"{where}; give {forms}")])


def require_fit(kube: Kube, start: Start, spec: TrainSpec, platform: PlatformConfig) -> None:
    """Raises SpecError that names `start_from` if the job of `spec` cannot begin so, KubeError."""
    url = store_access.url_of(spec.store, platform, spec.namespace)
    wishes = {job_names.ANN_WORLD_SIZE: str(spec.ranks), job_names.ANN_STORE: url}
    wishes[job_names.ANN_ENGINE] = chosen = engine.chosen(spec).name
    unread = "" if chosen == names.ENGINE_STATE else _unread(kube, start.source, spec, platform)
    if unread:
        raise SpecError([("start_from", f"{start.job}/{start.ref.id}", _UNREAD.format(unread, chosen))])
    try:
        time_travel.require_fit({"metadata": {"annotations": wishes}}, start)
    except SpecError as error:
        raise SpecError([("start_from", value, why) for _, value, why in error.problems]) from None


def _unread(kube: Kube, source: Object, spec: TrainSpec, platform: PlatformConfig) -> str:
    """What of `spec` the saved processes of `source` would not see, "" if they run it already, or nobody knows."""
    before, wanted = told.told(source, but(spec, platform)), told.told(job(spec, platform), but(spec, platform))
    if before is None or wanted is None:
        return ""
    unlike = told.difference(before, wanted)
    had = None if unlike else told.files(kube, source)
    if had is None:
        return unlike
    paths = sorted({*had, *spec.files} - {job_names.RETURN_FILE})
    return next((f"file {path}" for path in paths if had.get(path) != spec.files.get(path)), "")


def but(spec: TrainSpec, platform: PlatformConfig) -> set[str]:
    """Variables of the platform, which its administrator may change between two jobs of `spec`."""
    return {*platform.env} - {*spec.env}


def hold(kube: Kube, start: Start, spec: TrainSpec, platform: PlatformConfig, ask: Ask | None = None) -> None:
    """Keep the checkpoint for the new Job, which it has to fit. Raises SpecError, PlatformError, KubeError."""
    require_fit(kube, start, spec, platform)
    try:
        time_travel.hold(ask or time_travel.in_a_pod(kube, spec.namespace), start, spec.name)
    except RequestRefusedError as error:
        raise SpecError([("start_from", start.ref.id, error.problem[2])]) from None


def submit(
    kube: Kube, spec: TrainSpec, platform: PlatformConfig, wanted: str, ask: Ask | None = None
) -> tuple[Submitted, Start | None]:
    """`lifecycle.submit` of a Job that begins with what `wanted` names; no Start where it was there already.

    Raises as `find` and `lifecycle.submit`. Nothing is held then, and nothing was created.
    """
    if lifecycle.existing(kube, spec) is not None:
        return lifecycle.submit(kube, spec, platform), None
    start = find(kube, spec.namespace, wanted)
    require_fit(kube, start, spec, platform)
    lifecycle.validate_only(kube, spec, platform)
    asked = ask or time_travel.in_a_pod(kube, spec.namespace)
    hold(kube, start, spec, platform, asked)
    try:
        return lifecycle.submit(kube, spec, platform, start.origin), start
    except BaseException:
        time_travel.release(asked, start, spec.name)
        raise
