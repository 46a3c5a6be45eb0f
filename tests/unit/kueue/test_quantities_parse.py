"""Kubernetes' quantities are read as Kubernetes reads them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kueue_integration.kube.quantities import parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250m", Fraction(1, 4)), ("1", 1), ("0.5", Fraction(1, 2)), (".5", Fraction(1, 2)), ("2Gi", 2**31),
        ("1e3", 1000), ("1E3", 1000), ("1E", 10**18), ("1Ei", 2**60), ("100k", 100_000), ("-1", -1),
        ("5n", Fraction(5, 10**9)),        ("1e-1", Fraction(1, 10)), (4, 4),
    ],
)  # fmt: skip
def test_known(text: object, value: Fraction) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("text", ["", "m", "1 Gi", "1GiB", "1ki", "one", "1e", "--1", "1.2.3", None, "1\n"])
def test_refused(text: object) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        parse(text)


@given(st.integers(0, 10**9))
def test_a_thousand_millis_are_one(number: int) -> None:
    assert parse(f"{number}m") * 1000 == parse(str(number))
