"""The state engine's tables of patterns name cases of tests, and all of them."""

from __future__ import annotations

import ast
import re

from shell_blocks import ROOT

PAGE = "docs/guides/state-engine.md"
TRAIN = ROOT / "tests/unit/train"
LISTS = {"test_reach.py": ("REFUSED", "TRAINED", "RESUMED", "HIDDEN"), "test_patterns.py": ("SAMPLERS", "REFUSED")}
"""Whose cases all have a row."""


def rows() -> list[tuple[str, list[str]]]:
    """File and cases of each row."""
    found = re.findall(r"^\|[^\n]*\| `(test_\w+\.py)`: ([^|\n]*) \|$", (ROOT / PAGE).read_text(), re.MULTILINE)
    return [(file, cases.split(", ")) for file, cases in found]


def tree(file: str) -> ast.Module:
    (path,) = TRAIN.rglob(file)
    return ast.parse(path.read_text())


def test_each_row_is_a_case_of_its_test() -> None:
    assert len(rows()) > 30
    for file, cases in rows():
        known = {node.value for node in ast.walk(tree(file)) if isinstance(node, ast.Constant)}
        known |= {node.name for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef)}
        assert {*cases} <= known, (file, {*cases} - known)


def test_each_case_has_a_row() -> None:
    for file, names in LISTS.items():
        named = {case for other, cases in rows() for case in cases if other == file}
        for node in tree(file).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if targets and isinstance(targets[0], ast.Name) and targets[0].id in names:
                assert isinstance(node, ast.Assign)
                cases = {*ast.literal_eval(node.value)}
                assert cases <= named, (file, targets[0].id, cases - named)
