"""The docstring of each subpackage says what belongs there, and what never does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("airflow_provider", "gpukit", "kueue_integration", "localcluster", "proxy", "singularity_train")
NEVER = re.compile(r"\b(never|nothing|not here|must not|may not|no other)\b", re.IGNORECASE)
INITS = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py"))


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def test_the_packages_are_found() -> None:
    assert len(INITS) > 40


@pytest.mark.parametrize("path", INITS, ids=[str(path.parent.relative_to(ROOT)) for path in INITS])
def test_it_says_what_never_belongs_there(path: Path) -> None:
    assert NEVER.search(docstring(path)), "say what belongs to another package, as in: Nothing here asks a cluster."
