"""Running text of the documentation has short sentences: many readers read it in their second language.

So have the comments and docstrings of the code.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LONGEST = 25
"""Words."""
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PACKAGES = (
    "airflow_provider", "kueue_integration", "proxy", "singularity_train", "localcluster", "gpukit", "benchmarks",
    "dags",
)  # fmt: skip
MODULES = sorted(module for package in PACKAGES for module in (ROOT / package).rglob("*.py"))
SENTENCE_END = re.compile(r'(?<=[.!?:;])\s+(?=[A-Z0-9`"*(\[])')
PLACE = r"(?:in|on|with|under|above|below|beside|behind|between|among|after|before|to|from|at|next to)"
VERB = r"(?:is|are|was|were|stands?|lies|lie|lives?|comes?|goes|go|runs|follows?|sits?|belongs?|begins?|says?|waits?)"
INVERSION = re.compile(
    r"(?:(?:so|nor) (?:does|do|did|has|have|had|can|may|will|is|are|was|were|must) "
    r"|(?:never|seldom|rarely|hardly|not until|only (?:then|when|after|where|if)) "
    r"(?:[^,.;:]* )?(?:does|do|did|has|have|had|can|may|will) (?:the|a|an|it|they|its|this|that|any)\b"
    rf"|(?:here|{PLACE} (?:it|them|this|that)) {VERB} (?:the|a|an|its|this|that|all|every|two|three)\b)",
    re.IGNORECASE,
)
"""A verb before its subject, at the start of a sentence: a reader of a second language reads it twice."""
ITEM = re.compile(r"[-*] |\d+\. |:\w+[^:]*:")
"""An item of a list, or ``:param x:``: its further lines are indented."""
NEW_PARAGRAPH = re.compile(rf"\s*$|{ITEM.pattern}|Raises |\S+(?: \S+){{0,2}}  +\S")
"""Also a row of a table: a name, two spaces, its description."""


def sentences(page: str) -> Iterator[str]:
    """Of paragraphs and items; tables, headings and code are not sentences."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    text = re.sub(r"^[|#].*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", text):
        yield from SENTENCE_END.split(" ".join(paragraph.split()))


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring and each block of neighbouring comment lines, with the number of its first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, inspect.cleandoc(node.value.value)
    block: list[str] = []
    last = first = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start != (last[0] + 1, last[1]):
            yield first[0], "\n".join(block)
            block, first = [], token.start
        block.append(token.string.removeprefix("#").removeprefix(" "))
        last = token.start
    yield first[0], "\n".join(block)


def paragraphs(first: int, text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph with its line. Lines indented below no list item and no parameter are tables or commands."""
    begin, paragraph = first, ""
    for number, line in enumerate(text.splitlines(), first):
        indented = line.startswith("  ")
        if indented and not ITEM.match(paragraph):
            continue
        if NEW_PARAGRAPH.match(line):
            yield begin, paragraph
            begin, paragraph = number, ""
        begin = begin if paragraph else number
        paragraph = f"{paragraph} {line.strip()}".lstrip()
    yield begin, paragraph


def sentences_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence of comments and docstrings with the number of the line where its paragraph begins."""
    for first, text in texts(source):
        for line, paragraph in paragraphs(first, text):
            prose = re.sub(r"(`+)[^`]+\1", "`code`", paragraph)
            yield from ((line, sentence) for sentence in SENTENCE_END.split(prose) if sentence)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_long(page: Path) -> None:
    long = [sentence for sentence in sentences(page.read_text()) if len(sentence.split()) > LONGEST]
    assert long == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_no_sentence_of_the_code_is_long(module: Path) -> None:
    long = [
        f"{module.relative_to(ROOT)}:{line}: {len(sentence.split())} words: {sentence}"
        for line, sentence in sentences_of_code(module.read_text())
        if len(sentence.split()) > LONGEST
    ]
    assert not long, f"at most {LONGEST} words a sentence:\n" + "\n".join(long)


def test_no_verb_stands_before_its_subject() -> None:
    pages = {f"{page.relative_to(ROOT)}": sentences(page.read_text()) for page in PAGES}
    code = {f"{m.relative_to(ROOT)}": (text for _, text in sentences_of_code(m.read_text())) for m in MODULES}
    found = [f"{name}: {text}" for name, all_ in {**pages, **code}.items() for text in all_ if INVERSION.match(text)]
    assert not found, "subject, verb, object:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "inverted"),
    [
        ("So does every class.", True), ("Only then does the job end.", True), ("Beside it stands the size.", True),
        ("There is a limit.", False), ("Only the leader does it.", False), ("So a job goes on.", False),
    ],
)  # fmt: skip
def test_what_is_an_inversion(text: str, inverted: bool) -> None:
    assert bool(INVERSION.match(text)) is inverted


BARE = re.compile(
    r"\b(?:is|are|was|were|be|been|being|if not|never|and|or|what|as) (?:said|told)\b|(?:^|[|,;(]) ?(?:said|told)\b",
    re.IGNORECASE | re.MULTILINE,
)
"""`said` or `told` without who says it: name the message, the log or the page instead."""


def bare(page: str) -> list[str]:
    text = re.sub(r"```.*?```|`[^`]*`", "", page, flags=re.DOTALL)
    return [match.group(0).strip("|,;( \n") for match in BARE.finditer(re.sub(r"(?<=\w)\n[ ]*(?=\w)", " ", text))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_who_says_it(page: Path) -> None:
    assert bare(page.read_text()) == []


def test_comments_and_docstrings_name_who_says_it() -> None:
    code = ((m, line, text) for m in MODULES for line, text in sentences_of_code(m.read_text()))
    assert [f"{m.relative_to(ROOT)}:{line}: {text}" for m, line, text in code if bare(text)] == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("They are told so.", ["are told"]), ("It is\nsaid.", ["is said"]), ("| 403 | said at once |", ["said"]),
        ("The log tells it.", []), ("before the controller said that it ends", []), ("`is told`", []),
    ],
)  # fmt: skip
def test_what_is_bare(text: str, wanted: list[str]) -> None:
    assert bare(text) == wanted


def test_what_is_a_sentence() -> None:
    page = "# A title\n\nOne. Two: `three` is [here](x.md).\n\n| a | b. |\n\n```sh\nmake it.\n```\n- Item.\n- Two.\n"
    assert [s for s in sentences(page) if s] == ["One.", "Two:", "`three` is here.", "- Item.", "- Two."]


def test_what_is_a_sentence_of_the_code() -> None:
    source = '''"""Of a module. 40 `bytes or more` count.

    table  skipped
:param x: begins
    a paragraph
:raises Error: another
"""

a = "no docstring"  # Alone.
# A block
# of two lines.

if a:
    # Another.
    a = ""
'''
    assert list(sentences_of_code(source)) == [
        (1, "Of a module."),
        (1, "40 `code` count."),
        (4, ":param x: begins a paragraph"),
        (6, ":raises Error: another"),
        (9, "Alone."),
        (10, "A block of two lines."),
        (14, "Another."),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_checkout_that_it_links_to_are_there(page: Path) -> None:
    """The site's own build follows links between its pages only."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    outside = [target for target in targets if not (page.parent / target).resolve().is_relative_to(ROOT / "docs")]
    assert [target for target in outside if not (page.parent / target).exists()] == []
