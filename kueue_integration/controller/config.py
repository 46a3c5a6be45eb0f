"""Configuration of the controller: environment variables, as the chart sets them; flags override them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from singularity_proxy.protocol import decode, names

from ..contract import job_names
from ..errors import ChartError
from ..planner import settings
from ..planner.settings import PlannerSettings
from ..spec import platform_config
from .errors import ConfigError
from .hold import Settings
from .keys import TLS_FILES
from .published import Settings as Published


@dataclass(frozen=True)
class Config:
    """Times in seconds."""

    identity: str
    """Who holds the Lease: the pod's name."""
    namespace: str
    settings: Settings
    secret_dir: Path | None = None
    """Where a Secret of somebody else is mounted: ca.crt, tls.crt, tls.key, maybe peer-key. None: keys of our own."""
    certificate_days: int = 3650
    published: Published | None = None
    """What the controller publishes for those who submit jobs. None: it was started by hand, without a chart."""
    lease_name: str = job_names.HOLD_LEASE
    lease_duration_s: int = 10
    lease_renew_s: float = 2.0
    api_port: int = 9443
    health_port: int = 8080
    log_level: str = "INFO"
    kubeconfig: str | None = None
    trial_after_s: float | None = 120.0
    """Seconds of training after which an attempt finds out whether it can be saved; None: it does not."""
    multikueue_namespace: str = ""
    """Of Kueue, when this cluster is a MultiKueue manager: it has the Secrets of the worker clusters. "" for none."""
    access_providers: str = "[]"
    """The chart's `multikueue.manager.accessProviders`, as JSON."""
    agent_images: tuple[str, ...] = ()
    """What the chart trusts as agent image: its own first, then those of `images.trusted`."""
    namespaces: tuple[str, ...] = ()
    """The only ones whose jobs are followed: the account has rights in these alone. None: all."""

    @property
    def lease_timeout_s(self) -> float:
        """Of a request about the Lease: one that hangs leaves time for the next round while this replica may act."""
        return self.lease_duration_s * 0.3

    @property
    def request_timeout_s(self) -> float:
        """Of any other request: with all that it may take to connect, half as much again, it is shorter than the Lease.

        Workers that all wait for such answers are back before anybody doubts that they live.
        """
        return self.lease_duration_s * 0.6


def _number(env: Mapping[str, str], name: str, default: float, minimum: float) -> float:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name} = {text!r}: not a number of seconds") from None
    if not value >= minimum:
        raise ConfigError(f"{name} = {text!r}: must be at least {minimum:g}")
    return value


def _regrow(env: Mapping[str, str]) -> settings.Mode:
    text = env.get("SINGULARITY_REGROW") or "propose"
    known: dict[str, settings.Mode] = {mode: mode for mode in get_args(settings.Mode)}
    if text not in known:
        raise ConfigError(f"SINGULARITY_REGROW = {text!r}: must be none, propose or act")
    return known[text]


def _trial(env: Mapping[str, str]) -> float | None:
    name = "SINGULARITY_TRIAL_AFTER_SECONDS"
    return None if env.get(name) == "off" else _number(env, name, 120.0, minimum=1)


def _agent_images(env: Mapping[str, str]) -> tuple[str, ...]:
    name = "SINGULARITY_AGENT_IMAGES"
    text = env.get(name) or "[]"
    found = decode.json_value(text)
    if not isinstance(found, list) or not all(isinstance(image, str) and image for image in found):
        raise ConfigError(f"{name} = {text!r} (chart values images.agent and images.trusted): must be a list of images")
    return tuple(found)


def _namespaces(env: Mapping[str, str], core: Settings) -> tuple[str, ...]:
    name = "SINGULARITY_NAMESPACES"
    text = env.get(name) or "[]"
    found = decode.json_value(text)
    if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
        raise ConfigError(f"{name} = {text!r} (chart value controller.namespaces): must be a list of namespaces")
    if found and core.planner.defragmentation.mode != "none":
        raise ConfigError(
            f"{name} = {text!r} (chart value controller.namespaces): the policy defragmentation counts the pods of all "
            "namespaces; set planner.defragmentation.mode to none, or name no namespaces"
        )
    return tuple(dict.fromkeys(found))


def _published(env: Mapping[str, str]) -> Published | None:
    name = "SINGULARITY_PLATFORM"
    if not env.get(name):
        return None
    try:
        found = platform_config.from_json(env[name])
    except ChartError as error:
        raise ConfigError(f"{name}: {error}") from error
    data = decode.json_value(env[name], platform_config.MAX_TEXT)
    return Published(found, adoption=data.get("adoption") is True, trainjob=data.get("trainjob") is True)


def planner(env: Mapping[str, str]) -> PlannerSettings:
    """What the chart value `planner` says, as JSON. Raises ConfigError that names the value."""
    text = env.get("SINGULARITY_PLANNER", "") or "{}"
    data = decode.json_value(text)
    found = (
        data
        if isinstance(data, decode.Unreadable)
        else decode.typed(PlannerSettings, _snake(data), "planner", strict=True)
    )
    why = found.why if isinstance(found, decode.Unreadable) else settings.problem(found)
    if isinstance(found, decode.Unreadable) or why:
        raise ConfigError(f"SINGULARITY_PLANNER (chart value planner): {_camel(why)}")
    return found


def _snake(data: object, depth: int = 2) -> object:
    """Keys of the chart as we call them, two levels deep: what is further down are names of others."""
    if not isinstance(data, dict) or not depth:
        return data
    return {re.sub("([A-Z])", r"_\1", key).lower().replace("_seconds", "_s"): _snake(v, depth - 1)
            for key, v in data.items()}  # fmt: skip


def _camel(text: str) -> str:
    """Names of ours in a sentence as the chart calls them."""
    return re.sub(r"_([a-z])", lambda found: found.group(1).upper(), re.sub(r"_s\b", "_seconds", text))


def load(argv: Sequence[str], env: Mapping[str, str]) -> Config:
    """Raises ConfigError that names the variable; exits for bad flags as argparse does."""
    parser = argparse.ArgumentParser(prog="python -m kueue_integration.serve", description=__doc__)
    parser.add_argument("--kubeconfig", help="default: the pod's own credentials, else $KUBECONFIG")
    parser.add_argument("--namespace", default=env.get(names.ENV_NAMESPACE) or job_names.SYSTEM_NAMESPACE)
    parser.add_argument("--identity", default=env.get(names.ENV_POD) or "", help="name in the Lease, the pod's name")
    parser.add_argument("--secret-dir", default=env.get("SINGULARITY_SECRET_DIR") or "")
    parser.add_argument("--api-port", type=int, default=9443)
    parser.add_argument("--health-port", type=int, default=8080)
    parser.add_argument("--log-level", default=env.get("SINGULARITY_LOG_LEVEL") or "INFO")
    args = parser.parse_args(argv)
    if not args.identity:
        raise ConfigError(f"{names.ENV_POD} is not set: it names this replica in the Lease (flag --identity)")
    secret_dir = Path(args.secret_dir) if args.secret_dir else None
    for name in TLS_FILES:
        if secret_dir is not None and not (secret_dir / name).is_file():
            where = f"SINGULARITY_SECRET_DIR = {str(secret_dir)!r}"
            raise ConfigError(f"{where}: has no file {name}; the Secret of the chart's tls.existingSecret needs it")
    duration = _number(env, "SINGULARITY_LEASE_DURATION_SECONDS", 10, minimum=3)
    renew = _number(env, "SINGULARITY_LEASE_RENEW_SECONDS", 2, minimum=0.1)
    if renew * 2 > duration:
        raise ConfigError(f"SINGULARITY_LEASE_RENEW_SECONDS = {renew:g}: must be at most half of {duration:g}")
    core = Settings(
        max_budget_s=_number(env, "SINGULARITY_MAX_BUDGET_SECONDS", 600, minimum=1),
        regrow=_regrow(env),
        regrow_min_run_s=_number(env, "SINGULARITY_REGROW_MIN_RUN_SECONDS", 10, minimum=0),
        planner=planner(env),
    )
    return Config(
        identity=args.identity,
        namespace=args.namespace,
        settings=core,
        secret_dir=secret_dir,
        certificate_days=int(_number(env, "SINGULARITY_CERTIFICATE_DAYS", 3650, minimum=1)),
        published=_published(env),
        lease_duration_s=int(duration),
        lease_renew_s=renew,
        api_port=args.api_port,
        health_port=args.health_port,
        log_level=args.log_level,
        kubeconfig=args.kubeconfig,
        trial_after_s=_trial(env),
        multikueue_namespace=env.get("SINGULARITY_MULTIKUEUE_NAMESPACE") or "",
        access_providers=env.get("SINGULARITY_MULTIKUEUE_ACCESS_PROVIDERS") or "[]",
        agent_images=_agent_images(env),
        namespaces=_namespaces(env, core),
    )
