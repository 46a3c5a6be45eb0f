"""The code has the field's terms. The private words that stood for them before do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TERMS = {
    "grain": "chunk", "inbox": "queue", "lever": "request, field or reshape", "courier": "reconciler",
    "ledger": "plan",
}  # fmt: skip
"""Private word -> the field's term. In no identifier and in no text."""
BARE = {"own": "expectations", "every": "interval"}
"""Private names, ordinary words: not the whole name of a module, a class, a function or an import."""
BARE_NAME = re.compile(rf"\b_*({'|'.join(BARE)})_*\b", re.IGNORECASE)
FOLDERS = (
    "airflow_provider", "benchmarks", "charts", "dags", "docs", "gpukit", "images", "kueue_integration",
    "localcluster", "proxy", "singularity_train", "tests",
)  # fmt: skip
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".js", ".css", ".sh", ".tpl", ".json"}
FILES = sorted(
    path
    for root in [ROOT.glob("*.*"), *((ROOT / folder).rglob("*") for folder in FOLDERS)]
    for path in root
    if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__)
)


def private(text: str) -> Iterator[str]:
    """Yield the private words of a text. Parts of an identifier are words, whatever joins them."""
    if not any(word in text.lower() for word in TERMS):
        return
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text):
        if word.lower().removesuffix("s") in TERMS:
            yield word


def bare(path: Path) -> Iterator[str]:
    """Yield the names of `BARE` that a module is called by, defines or imports."""
    names, text = [path.stem], path.read_text()
    for node in ast.walk(ast.parse(text)) if BARE_NAME.search(text) else ():
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.append(node.name)
        elif isinstance(node, ast.alias):
            names.append(node.asname or node.name.rpartition(".")[2])
    return (name for name in names if name.strip("_").lower() in BARE)


def test_no_private_word_stands_for_a_term_of_the_field() -> None:
    found = {str(path.relative_to(ROOT)): words for path in FILES if (words := [*private(path.read_text())])}
    assert found == {}, f"use the field's terms: {TERMS}"


def test_no_module_class_or_function_has_a_private_name() -> None:
    modules = [path for path in FILES if path.suffix == ".py"]
    assert len(modules) > 500
    found = {str(path.relative_to(ROOT)): names for path in modules if (names := [*bare(path)])}
    assert found == {}, f"use the field's terms: {BARE}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("MOST_GRAINS of a Grain", ["GRAINS", "Grain"]), ("self.inbox.get()", ["inbox"]), ("byLevers", ["Levers"]),
        ("leverage, clever, fine-grained: ordinary words", []),
    ],
)  # fmt: skip
def test_what_is_a_private_word(text: str, words: list[str]) -> None:
    assert list(private(text)) == words


def test_what_is_a_private_name(tmp_path: Path) -> None:
    module = tmp_path / "every.py"
    module.write_text("from . import own\nimport a.chunks as _every\n\ndef owners(own): pass\n\nclass Own: pass\n")
    assert sorted(bare(module)) == ["Own", "_every", "every", "own"]
