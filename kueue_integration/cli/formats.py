"""`-o`: JSON, YAML, names and paths, as kubectl has them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import yaml

# Generic in newer releases of click only.
if TYPE_CHECKING:
    _Type = click.ParamType[str]
else:
    _Type = click.ParamType

API_VERSION = "cli.singularity.dev/v1"
"""Of what is printed as JSON or YAML: fields are added within it, and none is taken away or changed."""
WORDS = ("table", "wide", "json", "yaml", "name")
JSONPATH = "jsonpath="
_PIECE = re.compile(r"\{([^{}]*)\}")
_STEP = re.compile(r"\.(\w+)|\['([^']*)'\]|\[(\d+|\*)\]")


class Output(_Type):
    """One of `words`, or `jsonpath=TEMPLATE`."""

    name = "output"

    def __init__(self, words: Sequence[str] = WORDS) -> None:
        self.words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self.words)}|{JSONPATH}TEMPLATE]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in self.words:
            return value
        if value.startswith(JSONPATH):
            for piece in _PIECE.findall(value):
                if _STEP.sub("", _escapes(piece)):
                    self.fail(f"{{{piece}}} is not supported: give fields, ['a.b'], [0] and [*], as in {{.phase}}")
            return value
        return self.fail(f"{value!r} is not one of {', '.join(self.words)}, {JSONPATH}TEMPLATE")


def described(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return `data` with what says how to read it."""
    return {"apiVersion": API_VERSION, "kind": kind, **data}


def shown(kind: str, data: dict[str, Any], output: str) -> str:
    """Return one object as `output` wants it."""
    return text(described(kind, data), output)


def listed(kind: str, items: Iterable[dict[str, Any]], output: str) -> str:
    """Return a list of objects; a template finds them in `items`."""
    data = [described(kind, each) for each in items]
    return text({"items": data} if output.startswith(JSONPATH) else data, output)


def text(data: Any, output: str) -> str:
    """Return `data` as JSON, YAML, or what a template finds in it."""
    if output == "json":
        return json.dumps(data, indent=2)
    if output == "yaml":
        return yaml.safe_dump(data, sort_keys=False, explicit_start=True).rstrip()
    return _PIECE.sub(lambda found: _piece(found[1], data), output.removeprefix(JSONPATH))


def _escapes(piece: str) -> str:
    """Return `piece` without the texts that kubectl takes for a line end and a tab."""
    return piece.replace('"\\n"', "").replace('"\\t"', "")


def _piece(piece: str, data: Any) -> str:
    if piece in ('"\\n"', '"\\t"'):
        return "\n" if "n" in piece else "\t"
    found = [data]
    for field, quoted, index in _STEP.findall(piece):
        found = [below for one in found for below in _below(one, field or quoted, index)]
    return " ".join(one if isinstance(one, str) else json.dumps(one) for one in found)


def _below(data: Any, field: str, index: str) -> list[Any]:
    if field:
        return [data[field]] if isinstance(data, dict) and field in data else []
    if not isinstance(data, list):
        return []
    return data if index == "*" else data[int(index) : int(index) + 1]
