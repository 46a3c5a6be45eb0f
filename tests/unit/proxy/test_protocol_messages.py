"""Messages, manifests and placement: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kueue_integration.contract import record_types as r
from singularity_proxy.protocol import decode
from singularity_proxy.protocol import manifest as mf
from singularity_proxy.protocol import messages as m
from singularity_proxy.protocol.decode import Unreadable
from singularity_proxy.protocol.manifest import ImageFile, Manifest, RankImage, Requirements, Stored
from singularity_proxy.protocol.placement import index_of, ranks_of
from singularity_proxy.sidecar.peers import Directive, PodReport

T = TypeVar("T")
MESSAGES: list[Any] = [
    r.AttemptRecord, m.CheckpointFailure, m.CheckpointRef, m.Command, m.CommitRequest, m.Hello, m.HelloReply,
    m.LauncherCommand, m.LauncherEvent, m.Plan, m.Progress, Directive, PodReport,
]  # fmt: skip


def _from_hint(hint: Any) -> st.SearchStrategy[Any]:
    """What hypothesis makes of a hint, with the ranges of our numbers."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        if isinstance(args[1], decode.Grows):
            return _from_hint(args[0])
        if isinstance(args[1], decode.Spelled):
            return st.from_regex(args[1].pattern, fullmatch=True)
        least, most = args[1].least, args[1].most
        return st.integers(int(least), int(most)) if args[0] is int else st.floats(least, most)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(map(_from_hint, args))
    if origin is list:
        return st.lists(_from_hint(args[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(_from_hint(args[0]), _from_hint(args[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return _build(hint)
    if hint is int:
        return st.integers(-decode.MAX_WHOLE, decode.MAX_WHOLE)
    if hint is float:
        return st.floats(-decode.MAX_NUMBER, decode.MAX_NUMBER)
    return st.text() if hint is str else st.from_type(hint)


@functools.cache
def _build(cls: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    own = [field.name for field in dataclasses.fields(cls) if field.name != "newer"]
    return st.builds(cls, **{name: _from_hint(hints[name]) for name in own})


def any_message() -> st.SearchStrategy[Any]:
    return st.one_of(map(_build, MESSAGES))


def _typed(cls: type[T], data: Any) -> T:
    """As the messages' own readers do it. Raises MessageError."""
    found = decode.typed(cls, data)
    if isinstance(found, Unreadable):
        raise m.MessageError(found.why)
    return found


@given(any_message())
def test_round_trip(message: Any) -> None:
    assert m.from_json(type(message), m.to_json(message)) == message


@given(any_message(), st.data())
def test_unknown_missing_and_mistyped_fields_are_named(message: Any, data: st.DataObject) -> None:
    cls = type(message)
    good = decode.plain(message)
    found = decode.typed(cls, {**good, "extra": 1}, strict=True)
    assert isinstance(found, Unreadable) and "unknown field 'extra'" in found.why
    assert decode.plain(_typed(cls, {**good, "extra": 1})).keys() - good.keys() <= {"extra"}
    required = [
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    name = data.draw(st.sampled_from(required))
    with pytest.raises(m.MessageError, match=f"'{name}' is missing"):
        _typed(cls, {k: v for k, v in good.items() if k != name})
    with pytest.raises(m.MessageError, match=rf"{cls.__name__}\.{name}"):
        _typed(cls, {**good, name: {"no": "field has this"}} if name != "labels" else {**good, name: 3})


@given(st.text())
def test_any_text_is_a_message_or_a_message_error(text: str) -> None:
    for cls in MESSAGES:
        try:
            m.from_json(cls, text)
        except m.MessageError as error:
            assert cls.__name__ in str(error)


@given(st.text(max_size=9000))
def test_last_words_fit_into_a_termination_message(text: str) -> None:
    for long in (text, text * 50, '"\\n显' * 3000):
        said = m.last_words(long, "program")
        assert len(said.encode()) <= m.LAST_WORDS_BYTES
        found = m.from_json(m.LastWords, said)
        assert found.cause == "program" and len(found.text) >= min(len(long), 600)


def test_booleans_are_not_numbers_and_integers_are_floats() -> None:
    ref = {"seq": 1, "op": "checkpoint", "reason": "r", "remaining_s": 5}
    assert _typed(m.Command, ref).remaining_s == 5.0
    for field in ("seq", "remaining_s"):
        with pytest.raises(m.MessageError, match=f"Command.{field}"):
            _typed(m.Command, {**ref, field: True})
    assert decode.messages(m.Command, json.dumps([ref])) == [_typed(m.Command, ref)]
    found = decode.messages(m.Command, "{}")
    assert isinstance(found, Unreadable) and "expected a JSON list" in found.why


object_names = st.builds(
    mf.object_name, *(st.text("0123456789abcdef", min_size=digits, max_size=digits) for digits in (64, 16))
)
stored = st.builds(Stored, object_names, st.integers(0, 1 << 30))
parts = st.text("abcdefghijklmnop-.", min_size=1, max_size=8).filter(lambda p: p not in (".", ".."))
files = st.builds(
    lambda n, p, size: ImageFile("/".join([f"{n}x", *p]), size),
    st.integers(0, 1 << 40),
    st.lists(parts, max_size=2),
    st.integers(0, 1 << 40),
)
images = st.tuples(
    st.lists(files, max_size=2, unique_by=lambda f: f.path.split("/")[0]), st.lists(stored, max_size=3), stored
)
manifests = st.builds(
    lambda ids, number, each: Manifest(
        id=ids, namespace="n", job="j", attempt=1, generation=1, step=number, world_size=len(each), engine="process",
        created_at=1.0, ranks=[RankImage(i, *e) for i, e in enumerate(each)],
        requirements=Requirements("x86_64", ""),
    ),
    st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True),
    st.integers(0, 1 << 40),
    st.lists(images, min_size=1, max_size=3),
)  # fmt: skip


@given(manifests)
def test_manifest_round_trip(manifest: Manifest) -> None:
    assert mf.loads(mf.dumps(manifest)) == manifest


@given(manifests, st.integers(0, 10**6), st.integers(0, 255))
def test_damaged_manifest_is_refused_or_equal_in_meaning(manifest: Manifest, at: int, byte: int) -> None:
    data = bytearray(mf.dumps(manifest).encode())
    data[at % len(data)] = byte
    try:
        got = mf.loads(bytes(data))
    except m.MessageError:
        return
    assert got == manifest


RECIPE = Stored(mf.object_name("0" * 64, "0" * 16), 4)


def _with(*files: ImageFile, packs: list[Stored] | None = None, recipe: Stored = RECIPE) -> str:
    manifest = Manifest(
        "i", "n", "j", 1, 1, 1, 1, "process", 1.0, [RankImage(0, list(files), packs or [], recipe)],
        Requirements("x86_64", ""),
    )  # fmt: skip
    return mf.dumps(manifest)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "a//b", "", ".", "a/.", "a\0b"])
def test_paths_that_leave_the_directory_are_refused(path: str) -> None:
    with pytest.raises(m.MessageError, match="not a plain relative path"):
        mf.loads(_with(ImageFile(path, 1)))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (_with(ImageFile("a", -1)), "'a' has -1 bytes"),
        (_with(ImageFile("a", 1), ImageFile("a", 1)), "'a' is named twice"),
        (_with(ImageFile("a/b", 1), ImageFile("a", 1)), "'a' is a file and the folder of 'a/b'"),
        (_with(packs=[Stored("../../etc", 1)]), "no name of one"),
        (_with(packs=[dataclasses.replace(RECIPE, size=-1)]), "no name of one"),
        (_with(recipe=Stored("0" * 63 + "A-" + "0" * 16, 1)), "no name of one"),
        (_with(recipe=Stored("0" * 64, 1)), "no name of one"),
    ],
)
def test_inconsistent_images_are_refused(text: str, match: str) -> None:
    with pytest.raises(m.MessageError, match=match):
        mf.loads(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(manifests, st.data())
def test_a_manifest_with_any_value_replaced_is_refused_or_stays_within_bounds(
    manifest: Manifest, data: st.DataObject
) -> None:
    """Every field of every level, any JSON value: MessageError, or a manifest in which no name leads out."""
    tree = json.loads(mf.dumps(manifest))
    del tree["sha256"]
    spots: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], (dict, list)):
                collect(node[key])

    collect(tree)
    node, key = data.draw(st.sampled_from(spots))
    node[key] = data.draw(json_values | st.sampled_from(["../x", "/x", "a/../b", "\0", "0" * 64, -1, 1 << 70]))
    try:
        got = mf.loads(mf.seal(tree))
    except m.MessageError:
        return
    for rank in got.ranks:
        for file in rank.files:
            assert not {"", ".", ".."} & set(file.path.split("/")) and "\0" not in file.path and file.size >= 0
        for stored in (*rank.packs, rank.recipe):
            assert re.fullmatch(r"[0-9a-f]{64}-[0-9a-f]{16}", stored.name) and stored.size >= 0


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_anything_that_is_no_manifest_is_refused(data: bytes | str) -> None:
    with pytest.raises(m.MessageError):
        mf.loads(data)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(m.MessageError, match="not valid JSON"):
        mf.loads("[" * 200_000)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("format", 3, "format: 3 is not supported, this build reads formats 4 to 5"),
        ("format", 6, "format: 6 is not supported"),
        ("id", "../x", "not a checkpoint id"),
        ("world_size", 2, r"wants 0..1 once each"),
    ],
)
def test_manifest_header_is_checked(field: str, value: object, text: str) -> None:
    data = json.loads(_with())
    del data["sha256"]
    data[field] = value
    with pytest.raises(m.MessageError, match=text):
        mf.loads(mf.seal(data))


def test_a_manifest_that_was_changed_is_refused() -> None:
    data = json.loads(_with())
    for changed in ({**data, "step": 2}, {k: v for k, v in data.items() if k != "sha256"}, {**data, "sha256": 0}):
        with pytest.raises(m.MessageError, match=r"Manifest\.sha256: does not match"):
            mf.loads(json.dumps(changed))
    assert mf.loads(json.dumps(data, indent=2, sort_keys=True)) == mf.loads(_with()), "how it is written is no matter"


@given(st.integers(1, 40), st.integers(0, 200))
def test_placement_is_a_balanced_contiguous_partition(workers: int, more: int) -> None:
    world = workers + more
    blocks = [ranks_of(i, workers, world) for i in range(workers)]
    assert [r for block in blocks for r in block] == list(range(world))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
    assert all(index_of(r, workers, world) == i for i, block in enumerate(blocks) for r in block)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ranks_of(0, 0, 1), "workers = 0"),
        (lambda: ranks_of(0, 3, 2), "world_size = 2"),
        (lambda: ranks_of(3, 3, 3), "index = 3"),
        (lambda: index_of(4, 2, 4), "rank = 4"),
    ],
)
def test_impossible_placement_is_named(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()
