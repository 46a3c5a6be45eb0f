"""`PlatformConfig`: what the platform team decided once, published for everyone who submits jobs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from singularity_proxy.protocol import decode
from singularity_proxy.protocol.user_namespace import NODE as NODE
from singularity_proxy.protocol.user_namespace import USER_NAMESPACE as USER_NAMESPACE

from ..contract import job_names
from ..errors import ChartError, Forbidden, NotFound

if TYPE_CHECKING:
    from ..kube.api import Kube

CONFIG_KEY = "platform.json"
PRIVILEGES = (NODE, USER_NAMESPACE)
"""Where capabilities of the launcher may count: the level of a pod."""
AUTO = "auto"
"""The level that the nodes can give: see `privileges`."""


@dataclass(frozen=True)
class PlatformConfig:
    """Key `platform.json` of the ConfigMap `singularity-platform` in the chart's namespace.

    :param agent_image: image with agent, launcher, CRIU and sidecar
    :param train_image: default training image, "" when users must name one
    :param store: default checkpoint store URL, "" when users must name one
    :param controller_url: `https://singularity-controller.<namespace>.svc:443`
    :param controller_ca: PEM text, one or several authorities; "" in what the chart tells the controller
    :param volumes, volume_mounts, env: added to every training pod (store, data sets, Python environment);
        mounts go to the training container and the sidecar
    :param store_pods: what sidecars alone have for the store, `volumes`, `volumeMounts`, `env`, `secret`,
        `serviceAccount`: see `store_access`
    :param store_keys: `secret` with the keys that checkpoints are encrypted with, and the only `namespaces` where they
        are (none: all); empty: they are not
    :param stores: by namespace, its own `url`, what `store_pods` has, and `encrypt`
    :param outputs: prefixes of URLs below which jobs may store their outputs, with `{namespace}`; none: see
        `outputs_place`. `stores` may have its own
    :param max_budget_s: platform's ceiling for `checkpoint_budget_s`
    :param checkpoint_disk: default of jobs that name none, as in TrainSpec; "": derived from the memory
    :param checkpoint_memory: the same; "": none
    :param privileges: where the launcher's capabilities count, one of PRIVILEGES or AUTO
    :param user_namespaces: by ResourceFlavor, whether its nodes can give pods a user namespace (`privileges`); empty
        where nobody has looked
    :param apparmor: profile of the nodes that the launcher runs under; "": none
    :param tiers: WorkloadPriorityClass -> promised share of the device time that its jobs ask for, 0 to 1
    :param tiers_window_s: seconds over which these shares are measured
    :param namespaces: the only ones whose jobs the controller follows; none: all
    :param training_runtime: the version of the ClusterTrainingRuntime that TrainJobs get now; "" where they are off
    :param guard_problem: what of the guard of pods is not in force, so that no job begins; "": nothing
    """

    agent_image: str
    controller_url: str
    controller_ca: str
    train_image: str = ""
    store: str = ""
    volumes: Sequence[Mapping[str, Any]] = ()
    volume_mounts: Sequence[Mapping[str, Any]] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    store_pods: Mapping[str, Any] = field(default_factory=dict)
    store_keys: Mapping[str, Any] = field(default_factory=dict)
    stores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    max_budget_s: int = 600
    image_pull_policy: str = "IfNotPresent"
    checkpoint_disk: str = ""
    checkpoint_memory: str = ""
    privileges: str = NODE
    user_namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    apparmor: str = ""
    tiers: Mapping[str, float] = field(default_factory=dict)
    tiers_window_s: int = 3600
    namespaces: Sequence[str] = ()
    training_runtime: str = ""
    guard_problem: str = ""


def to_json(config: PlatformConfig) -> str:
    """JSON text of `config`, one line, sorted keys."""
    return json.dumps(dataclasses.asdict(config), sort_keys=True)


MAX_TEXT = 1 << 20
"""Bytes: what a ConfigMap can have."""


def from_json(text: str) -> PlatformConfig:
    """Parse the JSON of the platform. Raises ChartError that names the field.

    Unknown fields are ignored: a chart may be newer than the library of the one who submits.
    """
    data = decode.json_value(text, MAX_TEXT)
    if isinstance(data, decode.Unreadable):
        raise ChartError(f"{CONFIG_KEY} is {data.why}", _FIX)
    if not isinstance(data, dict):
        raise ChartError(f"{CONFIG_KEY} must be an object, is {type(data).__name__}", _FIX)
    values: dict[str, Any] = {}
    for item in dataclasses.fields(PlatformConfig):
        if item.name not in data or data[item.name] is None:
            if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                raise ChartError(f"{CONFIG_KEY} has no {item.name}", _FIX)
            continue
        value = data[item.name]
        wanted = _TYPES.get(item.name, str)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ChartError(f"{CONFIG_KEY}: {item.name} = {value!r} must be of type {wanted.__name__}", _FIX)
        values[item.name] = tuple(value) if isinstance(value, list) else value
    wrong = {k: v for k, v in values.get("tiers", {}).items() if isinstance(v, bool) or not _is_share(v)}
    if wrong:
        raise ChartError(f"{CONFIG_KEY}: tiers = {wrong!r}: shares must be numbers from 0 to 1", _FIX)
    level = values.get("privileges", NODE)
    if level not in (*PRIVILEGES, AUTO):
        known = ", ".join((*PRIVILEGES, AUTO))
        raise ChartError(f"{CONFIG_KEY}: privileges = {level!r}: must be one of {known}", _FIX)
    if not all(isinstance(told, dict) for told in values.get("user_namespaces", {}).values()):
        raise ChartError(f"{CONFIG_KEY}: user_namespaces must be objects by flavor", _FIX)
    if not all(isinstance(own, dict) for own in values.get("stores", {}).values()):
        raise ChartError(f"{CONFIG_KEY}: stores must be objects by namespace", _FIX)
    if values["agent_image"] == "" or values["controller_url"] == "":
        raise ChartError(f"{CONFIG_KEY}: agent_image and controller_url must not be empty", _FIX)
    return PlatformConfig(**values)


def load(kube: Kube, namespace: str = job_names.SYSTEM_NAMESPACE) -> PlatformConfig:
    """The platform's configuration from the cluster. Raises ChartError when the chart is not there."""
    from ..kube.resources import CONFIG_MAP

    where = f"ConfigMap {job_names.PLATFORM_CONFIGMAP} in namespace {namespace}"
    try:
        text = kube.get(CONFIG_MAP, namespace, job_names.PLATFORM_CONFIGMAP).get("data", {}).get(CONFIG_KEY)
    except NotFound:
        raise ChartError(f"{where} does not exist: the chart is not installed here", _FIX) from None
    except Forbidden as error:
        raise ChartError(f"{where} cannot be read: {error}", _FIX) from error
    if text is None:
        raise ChartError(f"{where} has no key {CONFIG_KEY}: the controller has not written it yet", _LOOK)
    return from_json(text)


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= 1


_TYPES: dict[str, type] = {
    "volumes": list, "volume_mounts": list, "env": dict, "max_budget_s": int, "tiers": dict,
    "tiers_window_s": int, "namespaces": list, "user_namespaces": dict, "store_pods": dict, "store_keys": dict,
    "stores": dict, "outputs": list,
}  # fmt: skip
_LOOK = f"See whether it runs and leads: kubectl -n {job_names.SYSTEM_NAMESPACE} get pods,leases"
_FIX = f"Install or upgrade it: helm upgrade --install singularity charts/singularity -n {job_names.SYSTEM_NAMESPACE}"
