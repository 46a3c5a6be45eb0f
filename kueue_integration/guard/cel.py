"""Data as CEL."""

from __future__ import annotations

import json
from typing import Any


def literal(value: Any) -> str:
    """JSON-like data as a CEL literal."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    return json.dumps(value)
