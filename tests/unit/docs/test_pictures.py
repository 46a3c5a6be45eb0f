"""Pictures of the documentation are seen everywhere: XML, a title, a ground of their own, and nothing from outside."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
PICTURES = sorted(DOCS.rglob("*.svg"))
CONCEPTS = sorted((DOCS / "concepts").glob("*.svg"))


def outside(text: str) -> list[str]:
    """Addresses that a browser would fetch."""
    return [found for found in re.findall(r"https?://[^\"'\s)]+", text) if found != "http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: str(path.name))
def test_a_picture_is_readable_on_any_ground(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    assert root.tag == f"{SVG}svg" and (root.findtext(f"{SVG}title") or root.get("aria-label"))
    ground = root.find(f"{SVG}rect")
    assert ground is not None and root.get("viewBox")
    assert (ground.get("fill") or "").lower() in ("#ffffff", "#fff", "white"), "dark mode would show dark on dark"
    assert not outside(picture.read_text())


@pytest.mark.parametrize("picture", CONCEPTS, ids=lambda path: str(path.name))
def test_no_word_of_a_picture_leaves_it(picture: Path) -> None:
    """A letter is reckoned with 6.2 units: the text of the pictures has 11.5 to 13."""
    root = ElementTree.parse(picture).getroot()
    width = float(root.get("width", "0"))
    for text in root.iter(f"{SVG}text"):
        words, x, kind = text.text or "", float(text.get("x", "0")), (text.get("class") or "").split()
        room = 2 * min(x, width - x) if "m" in kind else x if "e" in kind else width - x
        assert len(words) * 6.2 <= room, words


def test_every_picture_of_the_concepts_is_on_a_page() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "concepts").glob("*.md"))
    assert CONCEPTS and not [picture.name for picture in CONCEPTS if f"]({picture.name})" not in pages]


def test_what_is_fetched_is_found() -> None:
    assert outside('<image href="https://example.org/a.png"/>') == ["https://example.org/a.png"]
