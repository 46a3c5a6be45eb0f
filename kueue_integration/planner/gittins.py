"""The Gittins index: how soon a job is likely to end for what it has had, from what earlier jobs needed. Pure.

Source: Gittins (Journal of the Royal Statistical Society B, 1979), as Tiresias uses it (Gu et al., NSDI 2019).
For a job that has had `a` and needs `S` in all, the index is the largest over every further service `d` of

    P(S - a <= d | S > a) / E(min(S - a, d) | S > a)

To serve the largest index first makes the mean completion least on one server. Where most jobs are short and some are
very long, it falls with what a job has had, as in least attained service. Where all need about as much, it grows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

SAME = 1.25
"""Indices that differ by a smaller factor are alike: a history of some jobs tells no more."""


def index(had: float, history: Sequence[float]) -> float:
    """Ends of jobs per unit of service; 0 for a job that has had as much as the longest of the history, or more.

    :param history: what jobs needed, as quantiles at equal steps of their share: two or more that grow
    """
    best = spent = 0.0
    before = had
    # Between two quantiles each need is as likely. So the likelihood of an end grows there, and only ends of such
    # pieces can be where the largest ratio is.
    for end in (each for each in history if each > had):
        spent += (end - before) * (1 - (_share(before, history) + _share(end, history)) / 2)
        best, before = max(best, (_share(end, history) - _share(had, history)) / spent), end
    return best


def ranks(thresholds: Sequence[float], history: Sequence[float]) -> list[int]:
    """For each queue between two thresholds, the first begins at 0: how many queues have a larger index than it."""
    found = [index(begin, history) for begin in (0.0, *thresholds)]
    return [sum(other > SAME * each for other in found) for each in found]


def _share(need: float, history: Sequence[float]) -> float:
    """Of the jobs, those that needed less."""
    if need <= history[0]:
        return 0.0
    if need >= history[-1]:
        return 1.0
    place = bisect_right(history, need)
    low, high = history[place - 1], history[place]
    return (place - 1 + (need - low) / (high - low)) / (len(history) - 1)
