"""`SecretText`: a value of a TrainSpec that must not stand in the Job. It travels in a Secret, which the Job owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .train_spec import TrainSpec


class SecretText(str):
    """A text as any other, whose `repr` does not show it: variables of `env` and `pod_override`, words of the command,
    files."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def marked(spec: TrainSpec, is_secret: Callable[[str], bool]) -> TrainSpec:
    """`spec` with each variable, word of the command and file as a SecretText of which `is_secret` says that."""

    def mark(value: Any) -> Any:
        return SecretText(value) if isinstance(value, str) and is_secret(value) else value

    return replace(
        spec,
        command=[mark(word) for word in spec.command],
        env={name: mark(value) for name, value in spec.env.items()},
        files={path: mark(text) for path, text in spec.files.items()},
        pod_override=_variables(spec.pod_override, mark),
    )


def has_secrets(spec: TrainSpec) -> bool:
    """Whether `spec` has a SecretText."""
    seen = []

    def look(value: Any) -> Any:
        seen.append(isinstance(value, SecretText))
        return value

    _variables(spec.pod_override, look)
    texts = (*spec.command, *spec.env.values(), *spec.files.values())
    return any(seen) or any(isinstance(text, SecretText) for text in texts)


def _variables(pod: Any, mark: Callable[[Any], Any]) -> Any:
    """A piece of a Pod with its containers' literal variables marked; what is none is left to `validate`."""
    spec = pod.get("spec") if isinstance(pod, Mapping) else None
    if not isinstance(spec, Mapping):
        return pod
    lists = {key: spec[key] for key in ("containers", "initContainers") if isinstance(spec.get(key), (list, tuple))}
    told = {key: [_container(each, mark) for each in containers] for key, containers in lists.items()}
    return {**pod, "spec": {**spec, **told}}


def _container(container: Any, mark: Callable[[Any], Any]) -> Any:
    entries = container.get("env") if isinstance(container, Mapping) else None
    if not isinstance(entries, (list, tuple)):
        return container
    made = [{**e, "value": mark(e["value"])} if isinstance(e, Mapping) and "value" in e else e for e in entries]
    return {**container, "env": made}
