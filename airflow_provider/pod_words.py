"""The parameters of Airflow's KubernetesPodOperator and KubernetesJobOperator, and what they mean for a training job.

`WORDS` is the table: the operator's signature is made of it, and the page `docs/start/moving.md` is held to it. Most
become a part of `pod_override`. Pure, but for `read`.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from airflow.sdk import BaseOperator

from kueue_integration.contract.job_names import CONTAINER_TRAIN
from kueue_integration.spec.pod_override import BASE, REFUSED_SPEC, merge
from kueue_integration.spec.train_spec import TrainSpec

from .parameters import is_open, plain


@dataclass(frozen=True)
class Word:
    """What becomes of a parameter: `spec` and `train` are the field of the pod, or of its training container."""

    spec: str = ""
    train: str = ""
    refused: str = ""
    """Why there is no such thing here, and what to do."""
    idle: bool = False
    """Changes nothing here."""


GRACE_S: Final = TrainSpec.grace_period_s
"""Of an operator that is given none."""
_IDLE: Final = Word(idle=True)
_ALONE: Final = "the platform makes the Job; leave it out"
_LOGS: Final = "the task log has the output of rank 0 as it is; `kubectl logs` has that of other containers"
_CLUSTER: Final = "set it in the connection, where Airflow's servers find it too"


def _no(field: str) -> Word:
    return Word(refused=REFUSED_SPEC[field])


WORDS: Final[Mapping[str, Word]] = {
    # what has a place in the pod
    "service_account_name": Word(spec="serviceAccountName"), "image_pull_secrets": Word(spec="imagePullSecrets"),
    "affinity": Word(spec="affinity"), "runtime_class_name": Word(spec="runtimeClassName"),
    "host_aliases": Word(spec="hostAliases"), "dnspolicy": Word(spec="dnsPolicy"), "dns_config": Word(spec="dnsConfig"),
    "schedulername": Word(spec="schedulerName"), "priority_class_name": Word(spec="priorityClassName"),
    "security_context": Word(spec="securityContext"), "init_containers": Word(spec="initContainers"),
    "image_pull_policy": Word(train="imagePullPolicy"), "ports": Word(train="ports"),
    "container_security_context": Word(train="securityContext"), "container_resources": Word(train="resources"),
    "termination_message_policy": Word(train="terminationMessagePolicy"), "env_from": Word(train="envFrom"),
    # what is said otherwise here
    "cmds": Word(), "arguments": Word(), "env_vars": Word(), "configmaps": Word(), "secrets": Word(),
    "pod_runtime_info_envs": Word(), "pod_template_dict": Word(), "full_pod_spec": Word(),
    "base_container_name": Word(), "termination_grace_period": Word(), "on_finish_action": Word(),
    "parallelism": Word(), "completions": Word(), "ttl_seconds_after_finished": Word(),
    "schedule_timeout_seconds": Word(), "wait_until_job_complete": Word(),
    # what is so in any case
    **dict.fromkeys(
        ("random_name_suffix", "startup_timeout_seconds", "startup_check_interval_seconds", "poll_interval",
         "base_container_status_polling_interval", "log_events_on_failure", "log_events_on_startup",
         "log_pod_spec_on_failure", "container_name_log_prefix_enabled", "job_poll_interval", "suspend",
         "discover_pods_retry_number", "unwrap_single", "xcom_sidecar_container_security_context"), _IDLE),
    # what cannot be
    "in_cluster": Word(refused=_CLUSTER), "cluster_context": Word(refused=_CLUSTER),
    "config_file": Word(refused=_CLUSTER),
    "hostnetwork": _no("hostNetwork"), "hostname": _no("hostname"), "subdomain": _no("subdomain"),
    "automount_service_account_token": _no("automountServiceAccountToken"),
    "active_deadline_seconds": Word(refused=f"{REFUSED_SPEC['activeDeadlineSeconds']}: execution_timeout"),
    "reattach_on_restart": Word(refused="a try always goes on with the Job that is there; leave it out"),
    "durable": Word(refused="a try always goes on with the Job that is there; leave it out"),
    "on_kill_action": Word(refused="the Job of a task that a user ends always ends; leave it out, or give wait=False"),
    "container_logs": Word(refused=_LOGS), "init_container_logs": Word(refused=_LOGS),
    "log_formatter": Word(refused=_LOGS),
    "callbacks": Word(refused="they are told of one pod, and a training has many; use the callbacks of Airflow's task"),
    "progress_callback": Word(refused="the XCom `lineage` has the progress, kept current while the task is deferred"),
    "trigger_kwargs": Word(refused="the trigger has nothing else to set; leave it out"),
    "backoff_limit": Word(refused="set infrastructure_retries instead"),
    "completion_mode": Word(refused=_ALONE), "manual_selector": Word(refused=_ALONE), "selector": Word(refused=_ALONE),
    "on_kill_propagation_policy": Word(refused=_ALONE),
    "job_template_file": Word(refused="give the template of its pods as pod_template_file"),
    "full_job_spec": Word(refused="give the template of its pods as full_pod_spec"),
}  # fmt: skip
_LISTS: Final = (
    "image_pull_secrets", "host_aliases", "init_containers", "ports", "env_from", "configmaps", "secrets",
    "pod_runtime_info_envs",
)  # fmt: skip
FINISH: Final = {
    "delete_pod": "always", "delete_succeeded_pod": "on_success", "keep_pod": "never", "delete_active_pod": "never",
}  # fmt: skip
"""`on_finish_action` as a `deletion_policy`."""


class PodWords(BaseOperator):  # type: ignore[misc]
    """Takes the parameters of `WORDS`, besides an operator's own; `settle` says what they come to."""

    def __init__(self, **kwargs: Any) -> None:
        self._pod_words = {name: plain(kwargs.pop(name)) for name in WORDS if name in kwargs}
        super().__init__(**kwargs)

    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in WORDS),
            inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
        ]
    )


def settle(operator: Any) -> None:
    """Set the operator's own parameters as its words of KubernetesPodOperator say. Raises ValueError with the word."""
    words = {name: value for name, value in operator._pod_words.items() if value not in (None, False)}
    operator.idle_words = sorted(name for name in words if WORDS[name].idle)
    for name, value in words.items():
        if WORDS[name].refused:
            raise ValueError(f"{name} = {value!r}: {WORDS[name].refused}")
    for name in _LISTS:
        value = words.get(name)
        named = name == "image_pull_secrets" and isinstance(value, str)
        if not (value is None or named or isinstance(value, (list, tuple)) or is_open(value)):
            raise ValueError(f"{name} = {value!r}: must be a list")
    _numbers(operator, words)
    _command(operator, words)
    parts = [_pod(words), operator.pod_override]
    if operator.env is not None or words.get("env_vars") is not None:
        operator.env, entries = _env(operator.env, words.get("env_vars"))
        parts.insert(1, _train({"env": entries}) if entries else None)
    if isinstance(operator.pod_resources, Mapping) and {*operator.pod_resources} & {"limits", "requests", "claims"}:
        parts.insert(1, _train({"resources": operator.pod_resources}))
        operator.pod_resources = None
    operator.pod_override = _together(parts)
    for name in ("full_pod_spec", "pod_template_dict"):
        if name in words:
            under(operator, name, words[name])


def under(operator: Any, name: str, pod: Any) -> None:
    """Take from a Pod what the operator says nothing of, as KubernetesPodOperator does. Raises ValueError."""
    if not isinstance(pod, Mapping):
        raise ValueError(f"{name} = {pod!r}: must be a Pod")
    try:
        given, rest = _apart(pod)
        _drop_said(rest, operator)
        operator.pod_override = _together([rest, operator.pod_override])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: is not a Pod that can be merged ({type(error).__name__}: {error})") from None
    for parameter, value in given.items():
        own = getattr(operator, parameter)
        if parameter == "command" and operator.script is not None:
            continue
        if own is None or (parameter == "grace_period_s" and own == GRACE_S):
            setattr(operator, parameter, value)


def _drop_said(pod: dict[str, Any], operator: Any) -> None:
    """Leave out of a template what parameters of the operator say, which are no part of its `pod_override`."""
    meta, spec = pod["metadata"], pod["spec"]
    (train, *_) = spec["containers"]
    whole = (
        (spec, "nodeSelector", "node_selector"), (spec, "tolerations", "tolerations"),
        (train, "resources", "pod_resources"),
    )  # fmt: skip
    for owner, field, parameter in whole:
        if getattr(operator, parameter):
            owner.pop(field, None)
    for name in ("labels", "annotations"):
        meta[name] = {k: v for k, v in (meta.get(name) or {}).items() if k not in (getattr(operator, name) or ())}
    listed = (
        (train, "env", "name", operator.env), (spec, "volumes", "name", _keys(operator.volumes, "name")),
        (train, "volumeMounts", "mountPath", _keys(operator.volume_mounts, "mountPath")),
    )  # fmt: skip
    for owner, field, key, said in listed:
        if owner.get(field) and said:
            owner[field] = [item for item in owner[field] if item[key] not in said]


def _keys(items: Any, key: str) -> set[Any]:
    return {item.get(key) for item in items if isinstance(item, Mapping)} if isinstance(items, Sequence) else set()


def read(path: Path) -> Any:
    """The Pod of a file. Raises ValueError."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"pod_template_file = {str(path)!r}: cannot be read as YAML ({error})") from None


def _numbers(operator: Any, words: Mapping[str, Any]) -> None:
    action = words.get("on_finish_action")
    if action is not None:
        action = str(getattr(action, "value", action))
        if action not in FINISH:
            raise ValueError(f"on_finish_action = {action!r}: must be one of {', '.join(FINISH)}")
        operator.deletion_policy = FINISH[action]
    for name, parameter in (("ttl_seconds_after_finished", "ttl"), ("schedule_timeout_seconds", "queue_timeout")):
        if name in words:
            try:
                setattr(operator, parameter, datetime.timedelta(seconds=words[name]))
            except (TypeError, OverflowError):
                raise ValueError(f"{name} = {words[name]!r}: must be a number of seconds") from None
    if operator._pod_words.get("wait_until_job_complete") is not None:
        operator.wait = operator._pod_words["wait_until_job_complete"]
    if "termination_grace_period" in words:
        operator.grace_period_s = words["termination_grace_period"]
    parallelism, completions = words.get("parallelism"), words.get("completions")
    if completions is not None and completions != parallelism:
        raise ValueError(f"completions = {completions!r}: all pods of a training run together; make parallelism equal")
    if parallelism is not None:
        operator.workers = parallelism


def _command(operator: Any, words: Mapping[str, Any]) -> None:
    cmds, arguments = words.get("cmds"), words.get("arguments")
    if cmds is None and arguments is None:
        return
    for name, value in (("cmds", cmds), ("arguments", arguments)):
        if value is not None and (isinstance(value, str) or not isinstance(value, Sequence)):
            raise ValueError(f"{name} = {value!r}: must be a list of words; give command for another task's value")
    if operator.command is not None or operator.script is not None:
        name, value = ("cmds", cmds) if cmds is not None else ("arguments", arguments)
        raise ValueError(f"{name} = {value!r}: give either command, script, or cmds with arguments")
    if not cmds:
        raise ValueError(f"arguments = {arguments!r}: the image's entrypoint is not used; name the program in cmds")
    operator.command = [*cmds, *(arguments or ())]


def _pod(words: Mapping[str, Any]) -> dict[str, Any] | None:
    """The words that have a place in the pod, as a piece of one."""
    spec = {WORDS[name].spec: value for name, value in words.items() if WORDS[name].spec}
    train = {WORDS[name].train: value for name, value in words.items() if WORDS[name].train}
    pulls = spec.get("imagePullSecrets")
    if isinstance(pulls, str) and not is_open(pulls):
        spec["imagePullSecrets"] = [{"name": name.strip()} for name in pulls.split(",")]
    sources = [*(train.get("envFrom") or ()), *({"configMapRef": {"name": n}} for n in words.get("configmaps") or ())]
    entries = list(words.get("pod_runtime_info_envs") or ())
    volumes, mounts = [], []
    for number, secret in enumerate(words.get("secrets") or ()):
        if secret.deploy_type == "volume":
            name = f"secretvol-{number}"
            items = {"items": plain(secret.items)} if secret.items else {}
            volumes.append({"name": name, "secret": {"secretName": secret.secret, **items}})
            mounts.append({"name": name, "mountPath": secret.deploy_target, "readOnly": True})
        elif secret.key is None:
            sources.append({"secretRef": {"name": secret.secret}})
        else:
            key = {"name": secret.secret, "key": secret.key}
            entries.append({"name": secret.deploy_target, "valueFrom": {"secretKeyRef": key}})
    if volumes:
        spec["volumes"] = volumes
    lists = {"envFrom": sources, "env": entries, "volumeMounts": mounts}
    train.update({name: items for name, items in lists.items() if items})
    if train:
        spec["containers"] = [{"name": CONTAINER_TRAIN, **train}]
    return {"spec": spec} if spec else None


def _env(*given: Any) -> tuple[Any, list[Any]]:
    """Literal values as a mapping, and entries of a Pod that take theirs from elsewhere."""
    literal: dict[str, Any] = {}
    entries: list[Any] = []
    for each in given:
        if isinstance(each, Mapping):
            literal.update(each)
        elif isinstance(each, (list, tuple)) and all(isinstance(item, Mapping) for item in each):
            for item in each:
                if item.get("valueFrom") is None:
                    literal[str(item.get("name"))] = item.get("value", "")
                else:
                    entries.append(item)
        elif each is not None:
            others = [other for other in given if other is not None and other is not each]
            if others:
                raise ValueError(f"env_vars = {each!r}: give one of env and env_vars")
            return each, []  # a template, or nothing that can be taken: `validate` says so
    return literal, entries


def _train(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": CONTAINER_TRAIN, **fields}]}}


def _together(parts: Sequence[Any]) -> Any:
    """Pieces of a Pod in one; what comes later wins."""
    parts = [part for part in parts if part is not None]
    if len(parts) < 2:
        return parts[0] if parts else None
    for part in parts:
        if not isinstance(part, Mapping):
            fix = "must be a mapping where parameters of KubernetesPodOperator or a pod's template are given too"
            raise ValueError(f"pod_override = {part!r}: {fix}")
    found = _called_train(parts[0])
    for part in parts[1:]:
        found = merge(found, _called_train(part))
    return found


def _called_train(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The main container under our name for it."""
    spec = pod.get("spec") or {}
    containers = [
        {**each, "name": CONTAINER_TRAIN} if isinstance(each, Mapping) and each.get("name") == BASE else each
        for each in spec.get("containers") or ()
    ]
    return {**pod, "spec": {**spec, **({"containers": containers} if containers else {})}}


def _apart(pod: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of the operator that a Pod has, and the rest. Its first container is the one that trains."""
    meta, spec = ({k: v for k, v in (pod.get(part) or {}).items() if v is not None} for part in ("metadata", "spec"))
    first, *others = spec.pop("containers", None) or [{}]
    first = {key: value for key, value in first.items() if value is not None}
    command = [*(first.pop("command", None) or ()), *(first.pop("args", None) or ())]
    given = {
        "image": first.pop("image", None), "workdir": first.pop("workingDir", None), "command": command or None,
        "name": meta.pop("name", None), "namespace": meta.pop("namespace", None),
        "grace_period_s": spec.pop("terminationGracePeriodSeconds", None),
    }  # fmt: skip
    if spec.get("restartPolicy") == "Never":
        del spec["restartPolicy"]
    spec["containers"] = [{**first, "name": CONTAINER_TRAIN}, *others]
    return {k: v for k, v in given.items() if v is not None}, {"metadata": meta, "spec": spec}
