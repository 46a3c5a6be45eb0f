"""The digest by which an upload knows bytes again that it has looked at."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_proxy.store.fingerprint import WORD, Fingerprint

SIZE = 4096
one = Fingerprint(SIZE)


def of(data: bytes) -> tuple[int, int]:
    return one.of(memoryview(bytearray(data)))


@given(st.integers(0, 999), st.integers(0, SIZE - 1), st.integers(1, 255))
def test_a_byte_that_changes_shows(seed: int, at: int, change: int) -> None:
    data = random.Random(seed).randbytes(SIZE)
    changed = bytearray(data)
    changed[at] ^= change
    assert of(bytes(changed)) != of(data)
    assert of(data) == of(data)


def test_the_highest_bits_of_two_words_do_not_cancel_out() -> None:
    """Modulo 2**64 alone they would for half of all weights."""
    plain = bytes(SIZE)
    for first in range(0, 256, WORD):
        for second in range(first + WORD, 256, WORD):
            changed = bytearray(plain)
            changed[first + 7] = changed[second + 7] = 0x80
            assert of(bytes(changed)) != of(plain)


PAIRS = st.lists(st.integers(0, SIZE // WORD - 1), min_size=2, max_size=2, unique=True)


@given(PAIRS, st.integers(0, 999))
def test_words_that_change_places_show(places: list[int], seed: int) -> None:
    data = random.Random(seed).randbytes(SIZE)
    words = np.frombuffer(data, dtype=np.uint64).copy()
    words[places] = words[places[::-1]]
    assert of(words.tobytes()) != of(data)


def test_weights_are_secret_and_drawn_for_each_upload() -> None:
    data = memoryview(bytearray(b"x" * SIZE))
    assert len({Fingerprint(SIZE).of(data) for _ in range(20)}) == 20


@pytest.mark.parametrize("size", [WORD, 64, SIZE])
def test_any_length_of_whole_words(size: int) -> None:
    assert of(bytes(size)) == (0, 0)
    assert of(b"\1" * size) != (0, 0)
