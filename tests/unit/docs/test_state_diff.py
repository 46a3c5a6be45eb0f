"""The change that the state engine asks of a script: at most five lines, in words that the library knows."""

from __future__ import annotations

import ast
import re

import pytest
from shell_blocks import ROOT

PAGES = ("README.md", "docs/guides/state-engine.md")
MOST = 5
"""Lines that are added."""


def added(page: str) -> list[str]:
    """The added lines of the first diff of a page."""
    (block, *_) = re.findall(r"```diff\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [line[1:] for line in block.splitlines() if line.startswith("+")]


def function(path: str, name: str) -> ast.FunctionDef:
    (found,) = (
        node
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_loop_needs_at_most_five_lines_and_attach_takes_them(page: str) -> None:
    lines = added(page)
    assert 0 < len(lines) <= MOST
    (call,) = (
        node
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "singularity_train.attach"
    )
    taken = function("singularity_train/attach.py", "attach").args
    keywords = {each.arg for each in call.keywords}
    assert keywords <= {each.arg for each in taken.kwonlyargs} and not call.args
    needed = {each.arg for each, value in zip(taken.kwonlyargs, taken.kw_defaults, strict=True) if value is None}
    assert needed and needed <= keywords
    assert {"steps", "epochs"} & keywords, "the loop would never end"
