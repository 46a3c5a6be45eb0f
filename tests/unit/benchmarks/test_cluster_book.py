"""The page of the studies: it says what its book has, and the book is what this code plays."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.cluster import pages, study
from benchmarks.cluster.book import BOOK, Book

DOCS = Path(__file__).parents[3] / "docs"
SHARED = study.SCENARIOS[0]


def test_the_page_and_its_pictures_say_what_the_book_has(tmp_path: Path) -> None:
    shutil.copy(DOCS / pages.PAGE, tmp_path)
    pages.put(tmp_path, study.SCENARIOS, Book(DOCS / BOOK))
    for made in sorted(tmp_path.iterdir()):
        assert made.read_text() == (DOCS / made.name).read_text(), f"{made.name}: run make studies DOCS=1 GO_ON=1"


def test_the_book_has_all_of_all_scenarios() -> None:
    book = Book(DOCS / BOOK)
    for scenario in study.SCENARIOS:
        assert list(book.found(scenario.name, scenario.names())) == list(scenario.names()), scenario.name
        assert not book.endless(scenario.name)


@pytest.mark.parametrize("contender", [study.HOLD, "attained service"])
def test_the_book_is_what_this_code_plays(contender: str) -> None:
    (first, *_) = Book(DOCS / BOOK).found(SHARED.name)[contender]
    now = study.play(study.Run(SHARED, contender, 1))
    assert now == pytest.approx(first, rel=1e-9), "policies or simulator have changed: run make studies DOCS=1"
