"""Running text of the documentation has short sentences: many readers read it in their second language."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LONGEST = 25
"""Words."""
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def sentences(page: str) -> Iterator[str]:
    """Of paragraphs and items; tables, headings and code are not sentences."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    text = re.sub(r"^[|#].*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", text):
        yield from re.split(r'(?<=[.!?:;])\s+(?=[A-Z`"*(\[])', " ".join(paragraph.split()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_long(page: Path) -> None:
    long = [sentence for sentence in sentences(page.read_text()) if len(sentence.split()) > LONGEST]
    assert long == []


def test_what_is_a_sentence() -> None:
    page = "# A title\n\nOne. Two: `three` is [here](x.md).\n\n| a | b. |\n\n```sh\nmake it.\n```\n- Item.\n- Two.\n"
    assert [s for s in sentences(page) if s] == ["One.", "Two:", "`three` is here.", "- Item.", "- Two."]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_checkout_that_it_links_to_are_there(page: Path) -> None:
    """The site's own build follows links between its pages only."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    outside = [target for target in targets if not (page.parent / target).resolve().is_relative_to(ROOT / "docs")]
    assert [target for target in outside if not (page.parent / target).exists()] == []
