"""`start_from`: the checkpoint of another job that a new one begins with, as a user names it. Blocking."""

from __future__ import annotations

from typing import Final

from proxy.protocol import names

from ..contract import branches, job_names, kinds
from ..errors import RequestRefusedError, SpecError
from ..kube.api import Kube
from ..kube.resources import Object
from ..manifests.pod import command_text, literal
from ..spec import engine
from ..spec.platform_config import PlatformConfig
from ..spec.train_spec import TrainSpec
from . import lifecycle, time_travel
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
    job, slash, checkpoint = wanted.strip().partition("/")
    try:
        if slash or kinds.named(kube, namespace, job) is not None:
            if not job:
                raise SpecError([("start_from", wanted, f"has no name of a job before '/'; give {forms}")])
            return time_travel.find(kube, namespace, job, checkpoint or None)
    except SpecError as error:
        field, value, why = error.problems[0]
        if field == "start_from":
            raise
        raise SpecError([("start_from", wanted, f"{value} {why}")]) from None
    for known in kinds.list_managed(kube, namespace):
        if any(ref.id == job for ref in branches.known(known)):
            return time_travel.find(kube, namespace, kinds.job_key(known), job)
    where = f"is neither a training job of namespace {namespace!r} nor a checkpoint that one of them knows"
    raise SpecError([("start_from", wanted, f"{where}; give {forms}")])


def require_fit(start: Start, spec: TrainSpec, platform: PlatformConfig) -> None:
    """Raises SpecError that names `start_from` if the job of `spec` cannot begin so."""
    wishes = {job_names.ANN_WORLD_SIZE: str(spec.ranks), job_names.ANN_STORE: spec.store or platform.store}
    wishes[job_names.ANN_ENGINE] = chosen = engine.chosen(spec).name
    unread = "" if chosen == names.ENGINE_STATE else _unread(start.source, spec)
    if unread:
        raise SpecError([("start_from", f"{start.job}/{start.ref.id}", _UNREAD.format(unread, chosen))])
    try:
        time_travel.require_fit({"metadata": {"annotations": wishes}}, start)
    except SpecError as error:
        raise SpecError([("start_from", value, why) for _, value, why in error.problems]) from None


def _unread(source: Object, spec: TrainSpec) -> str:
    """What of `spec` the saved processes of `source` would not see, "" if they run it already, or nobody knows."""
    pod = (((source.get("spec") or {}).get("template") or {}).get("spec")) or {}
    trains = next((c for c in pod.get("containers") or () if c.get("name") == job_names.CONTAINER_TRAIN), None)
    had = {str(entry["name"]): entry.get("value") for entry in (trains or {}).get("env") or ()}
    if had.get(names.ENV_COMMAND) is None:
        return ""
    if had[names.ENV_COMMAND] != literal(command_text(spec.command)):
        return "command"
    told = {name: literal(value) for name, value in spec.env.items() if name != "PYTHONPATH"}
    return next((f"env {name}" for name, value in told.items() if had.get(name) != value), "")


def hold(kube: Kube, start: Start, spec: TrainSpec, platform: PlatformConfig, ask: Ask | None = None) -> None:
    """Keep the checkpoint for the new Job, which it has to fit. Raises SpecError, PlatformError, KubeError."""
    require_fit(start, spec, platform)
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
    require_fit(start, spec, platform)
    lifecycle.validate_only(kube, spec, platform)
    asked = ask or time_travel.in_a_pod(kube, spec.namespace)
    hold(kube, start, spec, platform, asked)
    try:
        return lifecycle.submit(kube, spec, platform, start.origin), start
    except BaseException:
        time_travel.release(asked, start, spec.name)
        raise
