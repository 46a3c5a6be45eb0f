"""The commands in the shell blocks of the documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("charts/**/*.md")])


def scripts(page: str, *languages: str) -> dict[str, str]:
    """Heading of a page -> its blocks in these languages, as one script each; headings without any are left out."""
    found = {}
    for part in re.split(r"^##+ ", page.removeprefix("# "), flags=re.MULTILINE):
        blocks = re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        found[re.sub(r" \{#.*", "", part.splitlines()[0])] = "\n".join(blocks)
    return {heading: script for heading, script in found.items() if script}


def lines(page: str) -> Iterator[str]:
    """Yield the commands of the shell blocks; one that goes on in the next line is one."""
    for block in re.findall(r"^ *```(?:sh|bash|console)\n(.*?)^ *```", page, flags=re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip().removeprefix("$ ")


def words_after(program: str, page: str) -> Iterator[list[str]]:
    """Yield the words behind each call of `program`, also within `$(...)` and behind `&&`, `|` and assignments."""
    for line in lines(page):
        for part in re.split(r"&&|\|\||[|;]|\$\(", line):
            words = shlex.split(part.replace(")", " ") if "$(" in line else part, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words and words[0] == program:
                yield words[1 : words.index(">") if ">" in words else None]


def calls(program: str) -> list[tuple[str, list[str]]]:
    """(page, words behind the program) of all pages."""
    return [(str(page.relative_to(ROOT)), words) for page in PAGES for words in words_after(program, page.read_text())]
