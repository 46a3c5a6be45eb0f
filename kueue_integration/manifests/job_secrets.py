"""The Secret of a job: its values that are a `SecretText`. The Job names them only. Pure.

A variable takes its value from the Secret. A word of the command is a variable of its own, which Kubernetes puts into
the command's text. A file comes from the Secret instead of the ConfigMap.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from singularity_proxy.protocol import names

from ..kube.resources import Object
from ..spec.secret_text import SecretText

_LISTS: Final = ("initContainers", "containers")


def secret_name(job_name: str) -> str:
    """Name of the Secret of a job."""
    return f"{job_name}-secrets"


def command(words: Sequence[str]) -> list[Object]:
    """Variables with the command of the ranks: first those that its secret words come from."""
    told, entries = [], list[Object]()
    for word in words:
        if isinstance(word, SecretText):
            name = f"{names.SECRET_WORD}{len(entries)}"
            entries.append({"name": name, "value": SecretText(json.dumps(word)[1:-1])})
            told.append(f"$({name})")
        else:
            told.append(word.replace("$", "$$"))
    return [*entries, {"name": names.ENV_COMMAND, "value": json.dumps(told)}]


def found(pod: Mapping[str, Any]) -> dict[str, str]:
    """Key -> value of all that a pod spec must not say."""
    return {
        _key(container, entry): entry["value"]
        for kind in _LISTS
        for container in pod.get(kind) or ()
        for entry in container.get("env") or ()
        if isinstance(entry.get("value"), SecretText)
    }


def referred(pod: Object, job_name: str) -> Object:
    """The pod spec with a reference to the Secret of the job in place of each such value."""
    made = {kind: [_referred(each, job_name) for each in pod[kind]] for kind in _LISTS if pod.get(kind)}
    return {**pod, **made}


def _referred(container: Object, job_name: str) -> Object:
    if not any(isinstance(entry.get("value"), SecretText) for entry in container.get("env") or ()):
        return container
    entries = []
    for entry in container["env"]:
        if isinstance(entry.get("value"), SecretText):
            ref = {"name": secret_name(job_name), "key": _key(container, entry)}
            entries.append({"name": entry["name"], "valueFrom": {"secretKeyRef": ref}})
        else:
            entries.append(entry)
    return {**container, "env": entries}


def _key(container: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    return f"{container['name']}.{entry['name']}"


def secret(job_name: str, namespace: str, labels: Mapping[str, str], values: Mapping[str, str]) -> Object:
    """The Secret with these values."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(job_name), "namespace": namespace, "labels": dict(labels)},
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }


def named(pod: Mapping[str, Any], job_name: str) -> bool:
    """Whether the pods of a Job of that name take something from its own Secret."""
    return secret_name(job_name) in {ref.get("name") for ref in references(pod)}


def references(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of a pod spec that name a Secret for a variable, or for files beside a ConfigMap."""
    variables = [
        (entry.get("valueFrom") or {}).get("secretKeyRef")
        for kind in _LISTS
        for container in pod.get(kind) or ()
        for entry in container.get("env") or ()
    ]
    volumes = [
        source.get("secret")
        for volume in pod.get("volumes") or ()
        for source in (volume.get("projected") or {}).get("sources") or ()
    ]
    return [ref for ref in (*variables, *volumes) if ref]
