"""What the code does never depends on a sentence: causes and outcomes are values, and text is made from them.

A comparison with two or more words is one with prose. Texts of other programs that say something nowhere else are named
here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OTHERS = {
    ("kueue_integration/controller/attempt_history.py", "Preempted to accommodate"): "Kueue keeps the reason of an "
    "eviction that is over in the message of its condition, and nowhere else",
    ("kueue_integration/doctor/probe.py", " is supported"): "`criu check --feature` answers in a line",
    ("localcluster/images/gobuild.py", "no space left"): "Go's compiler says it in its output",
    ("gpukit/parts/limits.py", "this pod has no GPU"): "the sentence itself is what is tried",
    ("gpukit/parts/limits.py", "needs the same type of GPU"): "the sentence itself is what is tried",
}
METHODS = {
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "find", "index",
    "count",
}  # fmt: skip


def prose(node: ast.expr) -> Iterator[str]:
    for each in node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]:
        text = ""
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            text = each.value
        if isinstance(each, ast.JoinedStr):
            text = "".join(part.value for part in each.values if isinstance(part, ast.Constant))
        if len(text.split()) > 1:
            yield text


def compared(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from prose(side)
        elif isinstance(node, ast.MatchValue):
            yield from prose(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            for argument in node.args[:1]:
                yield from prose(argument)


@pytest.mark.parametrize(
    "package", ["kueue_integration", "proxy", "airflow_provider", "singularity_train", "localcluster", "gpukit"]
)
def test_nothing_is_compared_with_prose(package: str) -> None:
    found = {
        (str(path.relative_to(ROOT)), text)
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in compared(ast.parse(path.read_text()))
    }
    assert found - OTHERS.keys() == set(), "make it a value, or say here whose text it is"


def test_what_is_excused_is_still_there() -> None:
    for name, text in OTHERS:
        assert text in list(compared(ast.parse((ROOT / name).read_text())))


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("x == 'a b'", ["a b"]), ("'not ready' in y", ["not ready"]), ("y in ('a b', 'c')", ["a b"]),
        ("y.startswith('went away')", ["went away"]), ("f'{z} is over' in y", [" is over"]), ("y == 'one'", []),
        ("print('a b')", []),
    ],
)  # fmt: skip
def test_the_search(code: str, wanted: list[str]) -> None:
    assert list(compared(ast.parse(code))) == wanted
