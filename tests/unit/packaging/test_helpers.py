"""What several folders of tests share lies in tests/support; a helper of one folder stays beside those who use it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[2]
SUPPORT = TESTS / "support"
COPIED = {
    ("e2e/scripts/hostile.py", "plant"): "the pod gets both files side by side",
    ("unit/proxy/fault_nursery.py", "small_world"): "its test copies both files into one folder",
}
"""Script and helper -> why the helper of another folder is there when the script runs."""


def helpers() -> dict[str, set[Path]]:
    """Name of each module that is neither a test nor a conftest -> the folders that have one of that name."""
    found: dict[str, set[Path]] = {}
    for path in TESTS.rglob("*.py"):
        if not path.name.startswith("test_") and path.name != "conftest.py":
            found.setdefault(path.stem, set()).add(path.parent)
    return found


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def borrowed() -> set[tuple[str, str]]:
    """(file, helper of another folder that is not tests/support)."""
    known = helpers()
    return {
        (str(path.relative_to(TESTS)), name)
        for path in TESTS.rglob("*.py")
        for name in imported(path) & known.keys()
        if not known[name] & {SUPPORT, *path.parents}
    }


def test_no_folder_of_tests_uses_helpers_of_another() -> None:
    assert len(helpers()) > 80
    assert borrowed() - COPIED.keys() == set(), "move the helper to tests/support"


def test_what_is_copied_is_still_used() -> None:
    assert borrowed() >= COPIED.keys()


def test_no_two_test_modules_have_one_name() -> None:
    """Each passes alone, and pytest collects only one of them in a run of all."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
