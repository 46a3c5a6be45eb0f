"""What a hostile or broken writer puts where a value of ours should stand: strategies for hypothesis, all bounded.

`texts()` is for anything that is text (annotation, label, message, XCom); `values()` for anything that is decoded
JSON; `spoilt(text)` takes a good text and damages it in one place, which comes much deeper into a reader.
"""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from typing import Any

from hypothesis import strategies as st

KIB = 1024
LARGE = 250 * KIB
"""Bytes: what fits into the annotations of one object."""

EXTREMES: list[str] = [
    "",
    " ",
    "null",
    "true",
    "[]",
    "{}",
    '""',
    "0",
    "-1",
    "-0",
    "1e400",
    "-1e400",
    "1e308",
    "5e-324",
    "NaN",
    "Infinity",
    "-Infinity",
    "nan",
    "inf",
    "9" * 400,
    "9" * 5000,
    "9" * LARGE,
    "-" + "9" * 400,
    "0" * 400 + "7",
    str(2**53),
    str(2**63),
    str(2**64),
    "٣",  # a digit to Python, but not to JSON or Kubernetes
    "²",
    "１２",
    "1_000",
    "0x10",
    " 12 ",
    "12\n",
    "[" * 100_000,
    "{" * 1000,
    '{"a":' * 40_000,
    "[" * 40 + "]" * 40,
    "[[]," * 40_000,
    '"' + '\\"' * 120_000,
    '"' * LARGE,
    "\\" * LARGE,
    "x" * LARGE,
    "[" + "0," * 100_000 + "0]",
    "{" + ",".join(f'"a{i}":1' for i in range(15_000)) + ',"a1":2}',
    '{"a":1,"a":2}',
    r'"\ud800"',
    r'["\udfff"]',
    r'"\ud83d\ude00"',
    "\ud800",
    "\0",
    "a\x1b[31m\r\n",
    "\u202e",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2020-01-01T00:00:00",
    "2020-13-45T99:99:99Z",
    "-2020-01-01T00:00:00Z",
    "2020-01-01T00:00:00Z" * 1000,
]
"""Each of them has broken some reader somewhere."""

_SCALARS: list[Any] = [
    None, True, False, 0, -1, 1, 2**53, 2**63, 2**64, -(2**70), 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"),
    float("-inf"), "", "x", "9" * 400, "\ud800", "../../x", "\0", "a" * 5000, [], {}, [[]], [None], {"a": None},
    [1, "a"],
]  # fmt: skip


def halved(text: str) -> bool:
    """Whether half a character is in `text` itself: no JSON parser of an API server lets that through."""
    return re.search("[\ud800-\udfff]", text) is not None


@cache
def values() -> st.SearchStrategy[Any]:
    """Decoded JSON of any kind."""
    return st.sampled_from(_SCALARS) | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    )


@cache
def texts() -> st.SearchStrategy[str]:
    """Any text, most of it of kinds that have broken readers."""
    return (
        st.sampled_from(EXTREMES)
        | st.text(max_size=40)
        | values().map(json.dumps)
        | st.from_regex(r"[-+0-9eE._]{1,20}", fullmatch=True)
        | st.from_regex(r"[\[\]{}\",:0-9a-z\\]{1,30}", fullmatch=True)
    )


@st.composite
def spoilt(draw: st.DrawFn, text: str) -> str:
    """`text`, which is JSON, with one value replaced, removed or doubled, or with a few characters changed."""
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        return text[:at] + draw(st.text(max_size=3)) + text[at + draw(st.integers(0, 3)) :]
    tree = copy.deepcopy(json.loads(text))
    spots: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], (dict, list)):
                collect(node[key])

    if isinstance(tree, (dict, list)):
        collect(tree)
    if not spots:
        return json.dumps(draw(values()))
    node, key = draw(st.sampled_from(spots))
    how = draw(st.sampled_from(("replace", "replace", "remove", "add")))
    if how == "remove":
        del node[key]
    elif how == "add" and isinstance(node, dict):
        node[draw(st.text(max_size=5))] = draw(values())
    else:
        node[key] = draw(values())
    return json.dumps(tree)


@cache
def near(text: str) -> st.SearchStrategy[str]:
    """Any text, or the good one with some damage."""
    return texts() | spoilt(text)
