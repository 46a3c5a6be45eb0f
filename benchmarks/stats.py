"""Medians, spreads and paired ratios. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

__all__ = ["median", "median_ratio", "spread"]


def spread(values: Sequence[float]) -> float:
    """Half the distance between the quartiles; half the range where there are fewer than four values.

    :raises ValueError: no values
    """
    if not values:
        raise ValueError("spread of no values")
    if len(values) < 4:
        return (max(values) - min(values)) / 2
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Median of first / second over pairs that were measured next to each other.

    :raises ValueError: no pairs, or a pair whose second value is not positive
    """
    if not pairs or any(second <= 0 for _, second in pairs):
        raise ValueError(f"pairs = {list(pairs)!r}: give at least one, each with a positive second value")
    return median(first / second for first, second in pairs)
