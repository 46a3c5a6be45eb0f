"""No module needs itself, and no package needs one that needs it: imports go one way, also those within functions.

Imports for type checkers alone do not count. Layers that import-linter knows (pyproject.toml) say which way; this says
that there is one, for every package, also between modules that no contract names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "airflow_provider",
    "benchmarks",
    "gpukit",
    "kueue_integration",
    "localcluster",
    "proxy",
    "singularity_train",
)
EXCUSES: dict[tuple[str, ...], str] = {}
"""A circle, its members in order -> why it has to be."""

Graph = Mapping[str, Iterable[str]]


def modules(root: Path, packages: Iterable[str]) -> dict[str, Path]:
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in node.orelse if isinstance(node, ast.If) and for_type_checkers(node) else ast.iter_child_nodes(node):
        yield child
        yield from statements(child)


def imported(name: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    """The modules of `known` that a module imports, anywhere in it."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *(node.module or "").split(".")]).rstrip(".")
            found |= {
                inner if (inner := f"{source}.{alias.name}") in known else source for alias in node.names
            }  # fmt: skip
    return (found & known.keys()) - {name}


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Sets of nodes that all reach each other, each in order."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for target in graph.get(ahead.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    ahead.append(target)
        return seen

    reach = {node: reached(node) for node in graph}
    return sorted({
        tuple(sorted(other for other in reach[node] if node in reach[other])) for node in graph if node in reach[node]
    })  # fmt: skip


def between_siblings(graph: Graph) -> dict[str, set[str]]:
    """The same imports as those of the two packages, or modules, in which their paths part."""
    found: dict[str, set[str]] = {}
    for source, targets in graph.items():
        for target in targets:
            ours, theirs = source.split("."), target.split(".")
            same = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            if same is not None:  # else one is in the other
                found.setdefault(".".join(ours[: same + 1]), set()).add(".".join(theirs[: same + 1]))
    return found


def imports(root: Path, packages: Iterable[str]) -> dict[str, set[str]]:
    known = modules(root, packages)
    return {name: imported(name, path, known) for name, path in known.items()}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return imports(ROOT, PACKAGES)


def test_no_module_needs_itself(graph: Graph) -> None:
    assert len(list(graph)) > 400, "the modules are found"
    assert [circle for circle in circles(graph) if circle not in EXCUSES] == []


def test_no_package_needs_one_that_needs_it(graph: Graph) -> None:
    assert [circle for circle in circles(between_siblings(graph)) if circle not in EXCUSES] == []


def test_what_is_excused_is_still_there(graph: Graph) -> None:
    assert EXCUSES.keys() <= {*circles(graph), *circles(between_siblings(graph))}


def written(root: Path, **files: str) -> dict[str, set[str]]:
    for name, text in {"__init__": "", **files}.items():
        path = root / "p" / f"{name.replace('__in__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return imports(root, ["p"])


@pytest.mark.parametrize(
    ("back", "wanted"),
    [
        ("from . import a", [("p.a", "p.b")]),
        ("from .a import x", [("p.a", "p.b")]),
        ("import p.a", [("p.a", "p.b")]),
        ("def f():\n    from . import a", [("p.a", "p.b")]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import p.a", [("p.a", "p.b")]),
        ("from . import c", []),
    ],
)
def test_a_circle_of_modules_is_found(tmp_path: Path, back: str, wanted: list[tuple[str, ...]]) -> None:
    assert circles(written(tmp_path, a="from p import b", b=back, c="")) == wanted


def test_a_circle_of_packages_is_found_where_no_module_has_one(tmp_path: Path) -> None:
    found = written(
        tmp_path, a__in____init__="", a__in__x="from ..b import y", a__in__z="", b__in____init__="",
        b__in__y="from ..a.z import q",
    )  # fmt: skip
    assert circles(found) == []
    assert circles(between_siblings(found)) == [("p.a", "p.b")]
