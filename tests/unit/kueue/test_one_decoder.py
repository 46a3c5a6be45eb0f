"""Text of others is read by `protocol.decode` alone: a module that parses by itself is named here, with why."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAY_PARSE = {
    "proxy/singularity_proxy/protocol/decode.py": "it is the decoder",
    "proxy/singularity_proxy/protocol/cut.py": "ranks of one job tell each other, through a store of their own",
    "proxy/singularity_proxy/agent/groups.py": "ranks of one job tell each other, through a store of their own",
    "proxy/singularity_proxy/agent/store.py": "the same: the keys that ranks of one job have listed",
    "proxy/singularity_proxy/agent/resume_order.py": "in the rank: what its launcher has written for it",
    "proxy/singularity_proxy/launcher/ranks/slot.py": "answers of our own helper, over a pipe that ranks do not have",
    "proxy/singularity_proxy/launcher/ranks/slot_init.py": "orders of our own launcher, over that pipe",
    "proxy/singularity_proxy/launcher/device/facts.py": "what a program of ours prints",
    "airflow_provider/parameters.py": "what the author of the Dag writes, in the author's own task",
    "airflow_provider/sensors.py": "the same",
    "airflow_provider/return_value.py": "what the wrapper of a finished function wrote: a bad one is no return value",
    "proxy/singularity_proxy/store/clients.py": "times that the server of the store gives its own files",
}
PARSERS = {("json", "loads"), ("json", "load"), ("datetime", "fromisoformat")}


def _is_copy(call: ast.Call) -> bool:
    """`json.loads(json.dumps(x))` copies what is decoded already."""
    inner = call.args[0] if call.args else None
    return isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "dumps"


def _parses(path: Path) -> list[int]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not _is_copy(node):
            owner = node.func.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if (name, node.func.attr) in PARSERS:
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("package", ["kueue_integration", "proxy", "airflow_provider"])
def test_nobody_else_parses(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    found = {
        str(path.relative_to(ROOT)): lines for path in files if (lines := _parses(path))
    }
    unknown = {name: lines for name, lines in found.items() if name not in MAY_PARSE}
    assert unknown == {}, "read it with singularity_proxy.protocol.decode, or say here why not"


def test_what_is_excused_still_parses() -> None:
    assert all(_parses(ROOT / name) for name in MAY_PARSE)
