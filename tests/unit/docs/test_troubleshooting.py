"""Each check of doctor, phase and message of status stands on the page that leads to runbooks; each link arrives."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shell_blocks import ROOT

from kueue_integration.jobs import phase

PAGE = ROOT / "docs/operations/troubleshooting.md"
RUNBOOKS = ROOT / "docs/operations/runbooks.md"
HOLD_NAMES = ("name", "NAME", "MISSING")
"""Variables of doctor that hold the name of a check."""


def first_words(node: ast.expr, names: dict[str, list[str]]) -> list[str]:
    """What the name of a check is or begins with; `names`: values of the file's variables that hold one."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return [f"{str(node.values[0].value).strip()} ..."]
    return names.get(node.id, []) if isinstance(node, ast.Name) else []


def checks() -> Iterator[str]:
    """Yield the names of doctor's checks, from the calls that make them."""
    for file in (ROOT / "kueue_integration/doctor").glob("*.py"):
        tree = ast.parse(file.read_text())
        names: dict[str, list[str]] = {}
        for node in ast.walk(tree):
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and target.id in HOLD_NAMES:
                names.setdefault(target.id, []).extend(first_words(node.value, {}))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Check":
                yield from first_words(node.args[0], names)


def shown() -> set[str]:
    """What stands as code in the first cells of the page's tables."""
    rows = re.findall(r"^\| (`.*?) \| ", PAGE.read_text(), re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_each_check_of_doctor_has_its_row() -> None:
    found = {name for name in checks() if not name.startswith("singularity-")}  # these are names of pods
    assert {"API server", "queue ...", "GPUs of ...", "namespace"} <= found and len(found) > 25
    assert found <= shown(), sorted(found - shown())


def test_each_phase_and_message_of_status_has_its_row() -> None:
    page = shown()
    assert {str(each) for each in phase.Phase} <= page
    words = {*phase._PENDING_WORDS.values(), *phase._EVICTED_WORDS.values()}
    assert not [text for text in words if not any(known in text for known in page)]


def test_links_to_runbooks_arrive() -> None:
    anchors = set(re.findall(r"\{#([a-z-]+)\}", RUNBOOKS.read_text()))
    pages = [page for page in ROOT.glob("docs/**/*.md") if "runbooks.md#" in page.read_text()]
    wanted = {anchor for page in pages for anchor in re.findall(r"runbooks\.md#([a-z-]+)", page.read_text())}
    assert wanted and wanted <= anchors, sorted(wanted - anchors)
    within = set(re.findall(r"\]\(#([a-z-]+)\)", RUNBOOKS.read_text()))
    assert within <= anchors, sorted(within - anchors)
