"""The rules of where pods may run and what devices they claim: `topology`, `node_selector`, `tolerations`,
`resource_claims`. Pure.

The API server and Kueue would refuse most of what is wrong here too. They would do so later, and by the names of fields
that the user never wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

from ..contract import job_names
from .train_spec import TrainSpec

Problem = tuple[str, object, str]

UNCONSTRAINED: Final = "unconstrained"
LEVELS: Final = ("required", "preferred")
"""How strictly a topology asks for its level."""
MOST_DEVICES: Final = 32
"""Devices of one ResourceClaim (AllocationResultsMaxSize of k8s.io/api/resource/v1)."""

_KEY = re.compile(r"([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_CLAIM = ("name", "device_class", "count", "selectors", "template")


def problems(spec: TrainSpec) -> list[Problem]:
    """Every problem of the four fields, and of what `pod_override` says about the same; empty when they are valid."""
    return [*_topology(spec.topology), *_node_selector(spec), *_tolerations(spec), *_claims(spec), *_twice(spec)]


def level(topology: Any) -> str | None:
    """The node label of the level that a valid `topology` names, None for none and for `unconstrained`."""
    return str(next(iter(topology.values()))) if isinstance(topology, Mapping) else None


def _topology(given: Any) -> Iterator[Problem]:
    if given is None or given == UNCONSTRAINED:
        return
    shape = f"{{'required': LABEL}}, {{'preferred': LABEL}} or {UNCONSTRAINED!r}; LABEL is the node label of a level"
    if not isinstance(given, Mapping):
        yield "topology", given, f"must be {shape}"
    elif len(given) != 1 or next(iter(given)) not in LEVELS:
        yield "topology", given, f"must have one entry: {shape}"
    else:
        ((how, label),) = given.items()
        if not _matches(_KEY, label):
            yield f"topology[{how!r}]", label, "is not a key of a node label, as 'example.com/rack' is"


def _node_selector(spec: TrainSpec) -> Iterator[Problem]:
    if not isinstance(spec.node_selector, Mapping):
        yield "node_selector", spec.node_selector, "must be a mapping of node labels, as {'disk': 'fast'} is"
        return
    for key, value in spec.node_selector.items():
        where = f"node_selector[{key!r}]"
        if not _matches(_KEY, key):
            yield where, value, "the key is not one that a node label can have"
        elif not _matches(_VALUE, value):
            yield where, value, "the value must be text of at most 63 letters, digits, '-', '_', '.'"


def _tolerations(spec: TrainSpec) -> Iterator[Problem]:
    if not _objects(spec.tolerations):
        yield "tolerations", spec.tolerations, "must be a list of mappings, as in a Pod"
        return
    for number, each in enumerate(spec.tolerations):
        where = f"tolerations[{number}]"
        for field in each:
            if field not in _TOLERATION:
                yield f"{where}.{field}", each[field], f"is not a field of a toleration; use {', '.join(_TOLERATION)}"
        key, operator, value = each.get("key"), each.get("operator", "Equal"), each.get("value")
        if operator not in ("Equal", "Exists"):
            yield f"{where}.operator", operator, "must be Equal or Exists"
        elif not key and operator != "Exists":
            yield f"{where}.key", key, "is missing; name the taint, or use operator Exists for every taint"
        elif operator == "Exists" and value:
            yield f"{where}.value", value, "must be left out with operator Exists"
        if key and not _matches(_KEY, key):
            yield f"{where}.key", key, "is not a key that a taint can have"
        if value is not None and not _matches(_VALUE, value):
            yield f"{where}.value", value, "is not a value that a taint can have"
        if each.get("effect") not in (None, "", *_EFFECTS):
            yield f"{where}.effect", each["effect"], f"must be {', '.join(_EFFECTS)}, or left out for all of them"
        yield from _seconds(where, each)


def _seconds(where: str, toleration: Mapping[str, Any]) -> Iterator[Problem]:
    seconds = toleration.get("tolerationSeconds")
    if seconds is None:
        return
    if not _whole(seconds):
        yield f"{where}.tolerationSeconds", seconds, "must be a whole number of seconds"
    elif toleration.get("effect") != "NoExecute":
        yield f"{where}.tolerationSeconds", seconds, "needs effect NoExecute; leave it out or set that effect"


def _claims(spec: TrainSpec) -> Iterator[Problem]:
    if not _objects(spec.resource_claims):
        yield "resource_claims", spec.resource_claims, "must be a list of mappings with name and device_class"
        return
    seen: set[Any] = set()
    for number, each in enumerate(spec.resource_claims):
        where, name = f"resource_claims[{number}]", each.get("name")
        for field in each:
            if field not in _CLAIM:
                why = "is not a field of a claim; use " + ", ".join(_CLAIM)
                yield f"{where}.{field}", each[field], why
        if not _matches(_LABEL, name):
            yield f"{where}.name", name, "is not a name that a claim can have (lower-case letters, digits, '-')"
        elif name in seen:
            yield f"{where}.name", name, "is there twice; give each claim a name of its own"
        seen.add(name)
        yield from _one_claim(where, each)


def _one_claim(where: str, claim: Mapping[str, Any]) -> Iterator[Problem]:
    device_class, template = claim.get("device_class"), claim.get("template")
    if (device_class is None) == (template is None):
        fix = "needs either device_class, or template (the name of a ResourceClaimTemplate)"
        yield where, dict(claim), fix
        return
    if template is not None:
        if not _matches(_NAME, template):
            yield f"{where}.template", template, "is not a name that a ResourceClaimTemplate can have"
        for field in ("count", "selectors"):
            if claim.get(field) is not None:
                yield f"{where}.{field}", claim[field], "belongs into the ResourceClaimTemplate; leave it out here"
        return
    if not _matches(_NAME, device_class):
        yield f"{where}.device_class", device_class, "is not a name that a DeviceClass can have"
    count = claim.get("count", 1)
    if not _whole(count) or not 1 <= count <= MOST_DEVICES:
        yield f"{where}.count", count, f"must be a whole number, 1 to {MOST_DEVICES}"
    selectors = claim.get("selectors", ())
    texts = isinstance(selectors, Sequence) and not isinstance(selectors, str)
    if not texts or not all(isinstance(text, str) and text.strip() for text in selectors):
        fix = "must be a list of CEL expressions, as [\"device.attributes['gpu.nvidia.com'].type == 'gpu'\"] is"
        yield f"{where}.selectors", selectors, fix


def _twice(spec: TrainSpec) -> Iterator[Problem]:
    """What `pod_override` would silently replace."""
    override = spec.pod_override if isinstance(spec.pod_override, Mapping) else {}
    body = override.get("spec")
    if not isinstance(body, Mapping):
        return
    if spec.tolerations and body.get("tolerations"):
        yield "pod_override.spec.tolerations", body["tolerations"], "tolerations are given too; put all of them there"
    if spec.resource_claims and body.get("resourceClaims"):
        fix = "resource_claims are given too; put all of them there"
        yield "pod_override.spec.resourceClaims", body["resourceClaims"], fix
    selector = body.get("nodeSelector")
    if isinstance(selector, Mapping) and isinstance(spec.node_selector, Mapping):
        for key in sorted(set(selector) & set(spec.node_selector), key=str):
            fix = "node_selector has this key too; say it once"
            yield f"pod_override.spec.nodeSelector[{key!r}]", selector[key], fix
    containers = body.get("containers")
    for number, container in enumerate(containers if _objects(containers) else ()):
        claims = (container.get("resources") or {}).get("claims")
        if spec.resource_claims and claims:
            where = f"pod_override.spec.containers[{number}].resources.claims"
            fix = f"resource_claims are given too, and are claims of container {job_names.CONTAINER_TRAIN!r} already"
            yield where, claims, fix


def _objects(value: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed and all(isinstance(item, Mapping) for item in value)


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
