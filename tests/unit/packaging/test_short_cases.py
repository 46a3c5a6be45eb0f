"""No test case is longer than a screen: who reads it sees its beginning and its end at once."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[2]
SCREEN = 50
"""Lines."""


def cases(path: Path) -> list[tuple[str, int]]:
    """Name and number of lines of each test function of a file."""
    functions = (
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    return [(n.name, (n.end_lineno or n.lineno) - n.lineno + 1) for n in functions if n.name.startswith("test_")]


def test_no_case_is_longer_than_a_screen() -> None:
    found = {path: cases(path) for path in TESTS.rglob("test_*.py")}
    assert sum(map(len, found.values())) > 1000, "the tests are found"
    long = [f"{path.relative_to(TESTS)}: {name} has {lines} lines" for path, all_of_it in found.items()
            for name, lines in all_of_it if lines > SCREEN]  # fmt: skip
    assert not long, "split these cases: " + "; ".join(long)
