"""Look whether words of a new user find their page first or second in the built site: `make docs` runs it.

    python docs/search_words.py build/site/search/search_index.json

The order is that of the site's search, simplified: a word in a title counts a thousand times, every other by how rare
it is and how much of the section it is, and a section with all words comes before one with some.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

WORDS: dict[str, tuple[str, ...]] = {
    "KubernetesPodOperator": ("start/moving",),
    "PyTorchJob": ("start/moving",),
    "karpenter": ("faq", "administration/"),
    "argocd": ("faq", "administration/"),
    "troubleshooting": ("faq", "operations/"),
    "FAQ": ("faq",),
    "glossary": ("glossary",),
    "compatibility": ("start/is-it-for-me", "administration/"),
    "imagePullSecrets": ("faq", "operator", "administration/"),
    "airgapped": ("faq", "administration/"),
    "rollback": ("faq", "administration/"),
    "service account": ("faq", "operator", "administration/"),
    "preemption": ("concepts/preemption", "operator"),
    "GPU": ("devices", "gpu", "faq"),
    "torch version": ("start/is-it-for-me", "faq"),
    "exit code": ("reference/exit-codes", "faults", "operations/"),
    "uninstall": ("faq", "administration/"),
    "upgrade": ("faq", "administration/", "operations/"),
    "quota": ("operations/cluster", "administration/"),
    "checkpoint size": ("faq",),
}
"""What is typed -> pages, or folders of pages, that answer it; one of them has to come first or second."""
TITLE, FLAT = 1000.0, 0.75


def words(text: str) -> list[str]:
    """Words as the index has them: without case, and without the ends that English puts on them."""
    return [_stem(word) for word in re.findall(r"[a-z0-9]+", re.sub(r"<[^>]+>", " ", text).lower())]


def _stem(word: str) -> str:
    for end in ("ing", "ed", "es", "s"):
        if word.endswith(end) and len(word) - len(end) > 2:
            return word.removesuffix(end)
    return word


def pages(index: list[dict[str, Any]], typed: str) -> list[str]:
    """Pages for what is typed, best first."""
    sections = [(each["location"], Counter(words(each["title"])), Counter(words(each["text"]))) for each in index]
    mean = sum(sum(text.values()) for _, _, text in sections) / len(sections)
    asked = words(typed)
    best: dict[str, float] = {}
    for place, title, text in sections:
        score = 0.0
        for word in asked:
            having = sum(1 for _, heads, body in sections if word in heads or word in body)
            rare = math.log(1 + (len(sections) - having + 0.5) / (having + 0.5))
            for weight, count, usual in ((TITLE, title, 4.0), (1.0, text, mean)):
                long = 1 - FLAT + FLAT * sum(count.values()) / usual
                score += weight * rare * 2.2 * count[word] / (1.2 * long + count[word])
        if score:
            whole = all(word in title or word in text for word in asked)
            page, _, anchor = place.partition("#")
            score *= 1 + (int(whole) + int(not anchor)) ** 2
            best[page] = max(best.get(page, 0.0), score)
    return sorted(best, key=lambda page: -best[page])


def lost(index: list[dict[str, Any]]) -> list[str]:
    """A line for each word that does not find its page."""
    lines = []
    for typed, wanted in WORDS.items():
        found = [page.removesuffix(".html") for page in pages(index, typed)][:2]
        if not any(page == each or (each.endswith("/") and page.startswith(each)) for page in found for each in wanted):
            lines.append(f"{typed!r} finds {', '.join(found) or 'nothing'}, and not {' or '.join(wanted)}")
    return lines


def main() -> int:
    index = json.loads(Path(sys.argv[1]).read_text())["docs"]
    found = lost(index)
    print("\n".join(found) or f"search: {len(WORDS)} words find their page first or second")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
