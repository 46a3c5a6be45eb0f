"""SECURITY.md promises nothing without a test: each line of the table names some that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "SECURITY.md").read_text()


def promises() -> dict[str, list[str]]:
    """The tests of each promise."""
    table = PAGE.partition("## What is promised")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert all(len(row) == 3 for row in rows), [row for row in rows if len(row) != 3]
    return {row[0]: re.findall(r"`([\w/.]+::\w+)`", row[2]) for row in rows}


@pytest.mark.parametrize("promise", promises())
def test_each_promise_has_a_test(promise: str) -> None:
    named = promises()[promise]
    assert named, "no test"
    for name in named:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / "tests/unit" / file).read_text())
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in there, name


def test_there_are_promises_and_a_line_for_each_role() -> None:
    assert len(promises()) >= 18
    roles = PAGE.partition("## Who may do what, and what is left")[2].partition("\n## ")[0]
    for role in ("tenant", "Dag", "rank", "node", "store", "network"):
        assert re.search(rf"^\| [^|]*\b{role}\b", roles, re.MULTILINE), role
