"""The manifest reader against anything: it returns a manifest that keeps every promise, or says what is wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_samples import manifest

from singularity_proxy.protocol import manifest as mf
from singularity_proxy.protocol.manifest import ImageFile, Manifest, RankImage, Stored
from singularity_proxy.protocol.messages import MessageError

PACKS = [Stored(f"{letter * 64}-{16 * '1'}", 100) for letter in "ab"]
RANKS = [RankImage(r, [ImageFile("pages-1.img", 7), ImageFile("sub/x", 0)], PACKS, PACKS[0]) for r in (0, 1)]
TEXT = mf.dumps(manifest(RANKS)).encode()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
NASTY = st.sampled_from(
    [10**18, -1, 0, True, None, "", ".", "..", "/etc/passwd", "a/../b", "a//b", "\0", "\ud800", "x" * 5000, [], {}]
)


def read(text: bytes) -> Manifest | None:
    """None: refused, with a sentence."""
    try:
        made = mf.loads(text)
    except MessageError as error:
        assert str(error).strip()
        return None
    assert [r.rank for r in sorted(made.ranks, key=lambda r: r.rank)] == list(range(len(made.ranks)))
    assert made.world_size == len(made.ranks) > 0 and mf.is_id(made.id) and made.format == mf.FORMAT
    for image in made.ranks:
        for file in image.files:
            file.path.encode()
            assert file.size >= 0 and not file.path.startswith("/") and ".." not in file.path.split("/")
        assert all(mf.is_object(s.name) and len(s.name) == 81 and s.size >= 0 for s in (*image.packs, image.recipe))
    assert mf.loads(mf.dumps(made)) == made
    return made


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in inner for place in places(item, (*at, key)))]


FIELDS = {key: value for key, value in json.loads(TEXT).items() if key != "sha256"}
PLACES = places(FIELDS)[1:]


def test_the_sample_is_read() -> None:
    assert read(TEXT) == manifest(RANKS)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | JSON.map(lambda v: json.dumps(v).encode()))
def test_anything(text: bytes) -> None:
    assert read(text) is None


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(PLACES), JSON | NASTY)
def test_any_value_in_any_place(place: tuple[Any, ...], value: Any) -> None:
    target = data = copy.deepcopy(FIELDS)
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    read(mf.seal(data).encode())


@settings(max_examples=600, deadline=None)
@given(st.integers(0, len(TEXT) - 1), st.binary(min_size=1, max_size=3), st.integers(0, 3))
def test_any_bytes_anywhere(at: int, new: bytes, instead_of: int) -> None:
    assert read(TEXT[:at] + new + TEXT[at + instead_of :]) in (None, manifest(RANKS))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(TEXT) - 1))
def test_a_manifest_that_is_cut_off(length: int) -> None:
    assert read(TEXT[:length]) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.update(world_size=10**15), "wants 0..999999999999999 once each"),
        (lambda d: d.update(world_size=0, ranks=[]), "Manifest.ranks: has [], wants"),
        (lambda d: d["ranks"][0]["files"][0].update(path="\ud800"), "half a character"),
    ],
)
def test_what_the_fuzzing_found(change: Callable[[dict[str, Any]], None], text: str) -> None:
    data = copy.deepcopy(FIELDS)
    change(data)
    with pytest.raises(MessageError) as caught:
        mf.loads(mf.seal(data))
    assert text in str(caught.value)
