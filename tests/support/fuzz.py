"""Cases of a fuzzer: each is made by a seed and its number, and can be made again.

SINGULARITY_FUZZ_SEED names the seed (0), SINGULARITY_FUZZ_SECONDS the time of all parts together (600).
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

SEED = int(os.environ.get("SINGULARITY_FUZZ_SEED", "0"))
SECONDS = float(os.environ.get("SINGULARITY_FUZZ_SECONDS", "600"))
PARTS = 3
"""Tests that share the time."""
ODD: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 1e308, "", " ", "0", "true", "null", "..", "/", "//", "/../", "a\nb",
    "\x00", "\u00e9", "\U0001f600", "x" * 5000, {}, [], [[]], {"": ""}, [None],
)  # fmt: skip


def cases(part: str) -> Iterator[tuple[str, random.Random]]:
    """The name of each case, to make it again, and its own chance; until this part's time is over."""
    end, number = time.monotonic() + SECONDS / PARTS, 0
    while time.monotonic() < end:
        name = f"{part}, seed {SEED}, case {number}"
        yield name, random.Random(name)
        number += 1


def mutated(chosen: random.Random, value: Any, fragments: Sequence[tuple[str, Any]] = (), times: int = 3) -> Any:
    """A copy of JSON in which a few places are replaced, left out, doubled or moved.

    :param fragments: keys with values that are set somewhere
    """
    made = copy.deepcopy(value)
    for _ in range(chosen.randint(1, times)):
        places = list(_places(made))
        if not places:
            return chosen.choice(ODD)
        holder, key = chosen.choice(places)
        way = chosen.random()
        if fragments and way < 0.5:
            where = chosen.choice([each for each, _ in places if isinstance(each, dict)] or [{}])
            name, fragment = chosen.choice(fragments)
            where[name] = copy.deepcopy(fragment)
        elif way < 0.7:
            holder[key] = copy.deepcopy(chosen.choice(ODD))
        elif way < 0.8:
            del holder[key]
        elif isinstance(holder, list) and way < 0.9:
            holder.insert(chosen.randint(0, len(holder)), copy.deepcopy(chosen.choice(holder)))
        else:
            source, other = chosen.choice(places)
            if (isinstance(source, dict) and other in source) or (isinstance(source, list) and other < len(source)):
                holder[key] = copy.deepcopy(source[other])
    return made


def text(chosen: random.Random, good: str) -> str:
    """A text near a good one."""
    try:
        value = json.loads(good)
    except ValueError:
        value = good
    way = chosen.random()
    if way < 0.6 and isinstance(value, (dict, list)):
        return json.dumps(mutated(chosen, value))
    if way < 0.8 and good:
        at = chosen.randrange(len(good))
        return good[:at] + chosen.choice(["", '"', "{", "]", "\\", "\\ud800", "9" * 400, good]) + good[at + 1 :]
    odd = chosen.choice(ODD)
    return odd if isinstance(odd, str) else json.dumps(odd)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each holder and key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])
