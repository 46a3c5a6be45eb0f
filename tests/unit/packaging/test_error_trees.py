"""Each package has one tree of errors, drawn at the top of the module that has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TREES = {
    "kueue_integration/errors.py": "SingularityError",
    "airflow_provider/exceptions.py": "SingularityProviderError",
    "proxy/errors.py": "ProxyError",
    "proxy/launcher/errors.py": "LauncherError",
    "localcluster/errors.py": "LocalClusterError",
    "singularity_train/errors.py": "TrainError",
    "singularity_train/storage/errors.py": "StateStorageError",
}
"""Module -> its root."""


def below(parent: str, bases: dict[str, list[str]], depth: int = 0) -> Iterator[str]:
    yield "    " * depth + parent
    for name, its in bases.items():
        if parent in its:
            yield from below(name, bases, depth + 1)


def drawn(tree: ast.Module, root: str) -> str:
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return "\n".join(f"    {line}" for line in below(root, bases))


@pytest.mark.parametrize("module", TREES)
def test_the_tree_at_the_top_is_that_of_the_classes(module: str) -> None:
    tree = ast.parse((ROOT / module).read_text())
    wanted = drawn(tree, TREES[module])
    assert wanted in (ast.get_docstring(tree, clean=False) or ""), f"{module} should have at its top:\n\n{wanted}"


@pytest.mark.parametrize("module", TREES)
def test_every_class_is_in_the_tree(module: str) -> None:
    tree = ast.parse((ROOT / module).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert names == {line.strip() for line in drawn(tree, TREES[module]).splitlines()}


def test_stored_state_is_a_branch_of_its_package() -> None:
    """One `except TrainError` of a script is enough."""
    tree = ast.parse((ROOT / "singularity_train/storage/errors.py").read_text())
    (root,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "StateStorageError"]
    assert [ast.unparse(base) for base in root.bases] == ["TrainError"]
