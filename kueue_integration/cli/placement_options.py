"""Options of `submit` and `render` for place and devices, and what they become in a TrainSpec."""

from __future__ import annotations

from typing import Any

import click

from ..spec.pod_placement import UNCONSTRAINED

Problem = tuple[str, object, str]

OPTIONS = (
    click.option(
        "--resource",
        multiple=True,
        metavar="NAME=QUANTITY",
        help="Another resource per worker, as nvidia.com/mig-1g.10gb=1; may be repeated.",
    ),
    click.option(
        "--device-class",
        multiple=True,
        metavar="CLASS[=COUNT]",
        help="Devices per worker by DRA: a claim of this DeviceClass; may be repeated.",
    ),
    click.option(
        "--claim-template", multiple=True, metavar="NAME", help="A ResourceClaimTemplate per worker; may be repeated."
    ),
    click.option(
        "--topology",
        metavar="HOW",
        help="Pods in one domain: required=LABEL or preferred=LABEL (a level's node label), or unconstrained.",
    ),
    click.option("--node-selector", multiple=True, metavar="K=V", help="Node label of every pod; may be repeated."),
    click.option(
        "--toleration",
        multiple=True,
        metavar="KEY[=VALUE][:EFFECT]",
        help="Taint that the pods accept, written as for `kubectl taint`; may be repeated.",
    ),
)


def fields(options: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Take the options above, but `resource`, out of `options`: fields of a TrainSpec. Adds to `problems`."""
    claims = [_device_class(number, text, problems) for number, text in enumerate(options.pop("device_class"))]
    first = len(claims)
    for number, name in enumerate(options.pop("claim_template"), first):
        claims.append({"name": f"claim-{number}", "template": name})
    selector: dict[str, str] = {}
    for text in options.pop("node_selector"):
        key, equals, value = text.partition("=")
        if not equals:
            problems.append(("node_selector", text, "must be LABEL=VALUE"))
        selector[key] = value
    return {
        "topology": _topology(options.pop("topology"), problems),
        "node_selector": selector,
        "tolerations": [_toleration(text) for text in options.pop("toleration")],
        "resource_claims": claims,
    }


def _topology(text: str | None, problems: list[Problem]) -> Any:
    if text is None or text == UNCONSTRAINED:
        return text
    how, equals, label = text.partition("=")
    if not equals:
        problems.append(("topology", text, f"must be required=LABEL, preferred=LABEL or {UNCONSTRAINED}"))
    return {how: label}


def _toleration(text: str) -> dict[str, str]:
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    made = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**made, "effect": effect} if effect else made


def _device_class(number: int, text: str, problems: list[Problem]) -> dict[str, Any]:
    name, equals, count = text.partition("=")
    if equals and not count.isdecimal():
        problems.append(("device_class", text, "must be CLASS or CLASS=COUNT, the count a whole number"))
        return {}
    return {"name": f"claim-{number}", "device_class": name, **({"count": int(count)} if equals else {})}
