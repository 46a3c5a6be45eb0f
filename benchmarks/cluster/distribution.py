"""Distributions as tables of quantiles: drawn from, derived from samples, compared. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

Table = Sequence[tuple[float, float]]
"""(share of the samples that are at most the value, value), both ascending, from 0 to 1."""
POINTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


def derive(samples: Sequence[float], points: Sequence[float] = POINTS) -> Table:
    """The quantiles of `samples` to four digits.

    :raises ValueError: no samples
    """
    if not samples:
        raise ValueError("quantiles of no samples")
    ordered = sorted(samples)
    return [(point, float(f"{ordered[min(int(point * len(ordered)), len(ordered) - 1)]:.4g}")) for point in points]


def quantile(table: Table, share: float) -> float:
    """The value below which `share` of the distribution lies: between two quantiles along the logarithm.

    Durations and gaps spread over six orders of magnitude. A straight line between two quantiles would put most of its
    weight at the upper one. Values below 1 second lie on a straight line all the same.
    """
    place = min(max(bisect_right([point for point, _ in table], share), 1), len(table) - 1)
    (left, low), (right, high) = table[place - 1], table[place]
    part = (share - left) / (right - left)
    if low < 1:
        return low + (high - low) * part
    return float(math.exp(math.log(low) + (math.log(high) - math.log(low)) * part))


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's: the largest difference of the two empirical distribution functions, 0 to 1.

    :raises ValueError: one of them has no samples
    """
    if not first or not second:
        raise ValueError("distance of no samples")
    one, two = sorted(first), sorted(second)
    return max(abs(bisect_right(one, at) / len(one) - bisect_right(two, at) / len(two)) for at in {*one, *two})


def distance_to(samples: Sequence[float], share_up_to: Callable[[float], float]) -> float:
    """The same from samples to a distribution function.

    :raises ValueError: no samples
    """
    if not samples:
        raise ValueError("distance of no samples")
    ordered, count = sorted(samples), len(samples)
    return max(
        max(abs((place + 1) / count - share_up_to(at)), abs(place / count - share_up_to(at)))
        for place, at in enumerate(ordered)
    )


def share_up_to(table: Table, value: float) -> float:
    """The distribution function of `quantile`: its inverse, by halving."""
    if value >= table[-1][1]:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if quantile(table, middle) <= value else (low, middle)
    return low
