"""The look at the search index that `make docs` makes: it sees a word that no page answers."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from module_files import loaded


@pytest.fixture(scope="module")
def search() -> ModuleType:
    return loaded(Path(__file__).parents[3] / "docs/search_words.py")


def section(location: str, title: str, text: str = "") -> dict[str, Any]:
    return {"location": location, "title": title, "text": text}


INDEX = [
    section("faq.html", "FAQ", "<p>Questions</p>"),
    section("faq.html#karpenter", "Karpenter", "A node that ends"),
    section("gpu.html", "GPUs", "a kit"),
    section("long.html", "Everything", "karpenter " + "and so on " * 200),
]


def test_a_title_comes_before_a_text_and_ends_of_words_do_not_count(search: ModuleType) -> None:
    assert search.pages(INDEX, "Karpenter") == ["faq.html", "long.html"]
    assert search.pages(INDEX, "gpu") == ["gpu.html"]


def test_a_word_that_no_page_answers_is_told(search: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "WORDS", {"karpenter": ("faq",), "kit": ("other/",), "argocd": ("faq",)})
    assert search.lost(INDEX) == [
        "'kit' finds gpu, and not other/",
        "'argocd' finds nothing, and not faq",
    ]
