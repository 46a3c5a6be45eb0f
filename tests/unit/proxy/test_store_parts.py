"""Chunks, packs and recipes: cutting is exact and finds shifted content, nothing altered is accepted."""

from __future__ import annotations

import hashlib
import random
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_samples import noise

from singularity_proxy.protocol.manifest import ImageFile
from singularity_proxy.store import chunking, layout_map, pack
from singularity_proxy.store.draft import Draft

CONTENT = noise(1, 900_000) + bytes(40_000) + noise(2, 200_000) + b"text, again and again\n" * 30_000


def sparse(seed: int, size: int) -> bytes:
    """Numbers of 64 bits, all of them small: every word has bytes of zero."""
    return np.random.default_rng(seed).integers(0, 1 << 40, size // 8, dtype="<u8").tobytes()


def cut(data: bytes) -> list[bytes]:
    found, last = [], 0
    for end in chunking.ends(data, True):
        found.append(data[last:end])
        last = end
    return found


@pytest.mark.parametrize("size", [0, 1, 63, 64, 2047, 2048, 16384, 16385, 100_000, len(CONTENT)])
def test_chunks_cover_the_data_and_keep_their_bounds(size: int) -> None:
    found = cut(CONTENT[:size])
    assert b"".join(found) == CONTENT[:size]
    assert all(0 < len(g) <= chunking.LARGEST for g in found)
    sparse = sum(len(g) for g in found if g.count(0) > len(g) // 2)
    assert (
        all(len(g) <= chunking.FINE.largest for g in found if g.count(0) > len(g) // 2)
        and sparse < 40_000 + chunking.FINE.largest
    )
    assert len(found) <= 2 + size // chunking.FINE.smallest


def test_dense_content_is_cut_coarsely_and_all_else_finely() -> None:
    """Wherever it lies: weights among pointers, in files that were cut elsewhere."""
    weights = np.random.default_rng(1).standard_normal(1 << 20, dtype=np.float32).tobytes()
    pointers = (np.random.default_rng(2).integers(0, 1 << 20, 1 << 18) * 16 + 0x7F0000000000).astype("<u8").tobytes()
    for data in (weights, noise(3, 4 << 20)):
        assert chunking.STRETCH.smallest < len(data) / len(cut(data)) < chunking.STRETCH.largest
    assert 3000 < len(pointers) / len(cut(pointers)) < 12_000
    mixed = cut(pointers + weights + pointers)
    alone = {chunking.key_of(g) for g in [*cut(weights), *cut(pointers)]}
    assert sum(len(g) for g in mixed if chunking.key_of(g) in alone) > 0.9 * sum(map(len, mixed))


@given(st.lists(st.integers(1, 300_000), max_size=6))
def test_reading_in_parts_cuts_at_the_same_places(sizes: list[int]) -> None:
    whole = chunking.ends(CONTENT, True)
    found: list[int] = []
    rest, at, begin = b"", 0, 0
    for size in [*sizes, len(CONTENT)]:
        text = rest + CONTENT[at : at + size]
        at += size
        ends = chunking.ends(text, at >= len(CONTENT))
        found += [begin + end for end in ends]
        last = ends[-1] if ends else 0
        rest, begin = text[last:], begin + last
        if at >= len(CONTENT):
            break
    assert found == whole


@pytest.mark.parametrize("shift", [64, 640, 4032])
def test_content_that_moved_by_lines_of_64_bytes_is_found_again(shift: int) -> None:
    for content in (noise(7, 8 << 20), sparse(7, 1 << 20)):
        one = {chunking.key_of(g) for g in cut(content)}
        other = cut(noise(8, 128 * 64 + shift) + content)
        again = sum(len(g) for g in other if chunking.key_of(g) in one)
        assert again > 0.93 * len(content)


def build(draft: Draft, content: list[tuple[bytes, bytes]]) -> tuple[str, bytes]:
    for key, chunk in content:
        draft.add([key], [len(chunk)])[:] = chunk
    name, data = draft.build()
    return name, bytes(data)


def packed() -> tuple[list[tuple[bytes, bytes]], str, bytes]:
    content = [(chunking.key_of(g), g) for g in cut(CONTENT)]
    return (content, *build(Draft(), content))


def unpack(name: str, data: bytes) -> bytes:
    head = pack.read_head(name, data)
    if head.size != len(data):
        raise pack.PackError("has another size")
    return b"".join(pack.read_block(head, number, data) for number in range(len(head.blocks)))


def test_a_pack_gives_back_what_went_in_and_is_smaller_where_that_helps() -> None:
    content, name, data = packed()
    assert unpack(name, data) == CONTENT
    assert len(data) < len(CONTENT) - 500_000
    head = pack.read_head(name, data[: pack.HEAD_SIZE])
    assert head.keys == [key for key, _ in content]
    codecs = {b.codec for b in head.blocks}
    assert codecs == {0, 1}, "noise is stored as it is, text compressed"
    begin, end = head.span(3, 2)
    assert CONTENT[begin:end] == content[3][1] + content[4][1]
    for first, count in ((-1, 1), (0, 0), (len(content), 1), (0, len(content) + 1)):
        with pytest.raises(pack.PackError, match="has no chunks"):
            head.span(first, count)


def test_a_draft_makes_the_same_pack_again_after_any_other_and_when_it_is_full() -> None:
    content, name, data = packed()
    draft = Draft()
    chunk = noise(5, chunking.LARGEST)
    while not draft.full:
        draft.add([chunking.key_of(chunk)], [len(chunk)])[:] = chunk
    assert draft.size == pack.CONTENT_SIZE
    full, made = draft.build()
    assert unpack(full, bytes(made)) == chunk * len(draft.keys)
    draft.clear()
    assert build(draft, content) == (name, data)


def test_a_full_pack_with_the_longest_last_chunk_has_room() -> None:
    draft = Draft()
    for size, count in ((chunking.LARGEST, 31), (chunking.LARGEST - 64, 1)):
        draft.add([chunking.key_of(bytes(size))] * count, [size] * count)[:] = bytes(count * size)
    assert not draft.full
    last = noise(6, chunking.LARGEST)
    draft.add([chunking.key_of(last)], [len(last)])[:] = last
    name, data = draft.build()
    assert draft.full and unpack(name, bytes(data))[-len(last) :] == last


def test_zeros_are_zeros_up_to_the_last_byte() -> None:
    for size in (1, 64, 2048, chunking.LARGEST):
        assert chunking.is_zero(bytes(size)) and chunking.is_zero(memoryview(bytes(size)))
        assert not chunking.is_zero(bytes(size - 1) + b"x")


def test_every_altered_byte_of_a_pack_is_noticed() -> None:
    _, name, data = packed()
    head = pack.read_head(name, data)
    first = head.blocks[0].offset
    chosen = random.Random(3)
    # Each class of byte: magic, counts, block table, keys, lengths, and the content of each block.
    spots = [*range(16), *range(16, 100), *(chosen.randrange(100, first) for _ in range(60))]
    spots += [b.offset + chosen.randrange(b.stored) for b in head.blocks]
    for at in spots:
        altered = bytearray(data)
        altered[at] ^= 1 << chosen.randrange(8)
        with pytest.raises(pack.PackError):
            unpack(name, bytes(altered))
    for size in (0, 3, 15, 16, first - 1, first, len(data) - 1):
        with pytest.raises(pack.PackError):
            unpack(name, data[:size])
    with pytest.raises(pack.PackError):
        unpack(name, data + b"x")


def test_a_chunk_that_lies_in_two_blocks_is_refused() -> None:
    """Whoever makes a head may write anything into it; each block is compared with its chunks alone."""
    halves = [noise(1, 1000), noise(2, 1000)]
    blocks = [(len(half), len(half), pack.RAW, b"") for half in halves]
    whole = b"".join(halves)
    for cuts in ([2000], [500, 1500]):
        parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, 2000], strict=True) if b > a]
        lengths = array("I", [len(part) for part in parts])
        head = pack.encode_head([chunking.key_of(part) for part in parts], lengths, blocks)
        with pytest.raises(pack.PackError, match="contradicts itself"):
            pack.read_head(hashlib.sha256(head).hexdigest(), head + whole)


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_of_packs_fail_otherwise(data: bytes) -> None:
    for start in (b"", b"SGPACK\x00\x02", b"SGPACK\x00\x03"):
        with pytest.raises(pack.PackError):
            pack.read_head("0" * 64, start + data)


FILES = [ImageFile("a", 300), ImageFile("b", 0), ImageFile("c", 70)]
RUNS = [[layout_map.Run(1, 0, 2, 200), layout_map.Run(0, 0, 2, 100)], [], [layout_map.Run(2, 5, 1, 70)]]
ZERO = layout_map.NOWHERE


@pytest.mark.parametrize(
    ("places", "runs"),
    [
        ([], []),
        ([7, 8, ZERO, ZERO], [(7, 2, 200), (ZERO, 2, 200)]),
        ([0, 1, 3, 3], [(0, 2, 200), (3, 1, 100), (3, 1, 100)]),
        ([ZERO, 0, 1, ZERO], [(ZERO, 1, 100), (0, 2, 200), (ZERO, 1, 100)]),
    ],
)
def test_neighbours_in_a_pack_and_zeros_become_one_run(places: list[int], runs: list[tuple[int, int, int]]) -> None:
    assert layout_map.join(places, [100] * len(places)) == runs


def test_no_run_is_longer_than_a_word_can_say() -> None:
    half = layout_map.LONGEST // 2
    assert layout_map.join([ZERO] * 3, [half] * 3) == [(ZERO, 2, 2 * half), (ZERO, 1, half)]


def test_a_recipe_reads_back() -> None:
    assert layout_map.decode(layout_map.encode(RUNS), FILES, 2) == RUNS


@given(st.binary(max_size=120) | st.just(layout_map.encode(RUNS)), st.integers(0, 200), st.integers(0, 255))
def test_any_bytes_are_a_recipe_of_these_files_or_refused(data: bytes, at: int, byte: int) -> None:
    altered = bytearray(data)
    if altered:
        altered[at % len(altered)] = byte
    try:
        runs = layout_map.decode(bytes(altered), FILES, 2)
    except layout_map.RecipeError:
        return
    assert [sum(r.size for r in of_file) for of_file in runs] == [f.size for f in FILES]
    assert all(0 <= r.pack <= 2 for of_file in runs for r in of_file)
