"""The time of a step as a function of the number of workers, fitted to what was measured. Pure.

Optimus (Peng et al., EuroSys 2018) models a synchronous step. It has computation that is shared by the workers, a
constant part, and communication that grows with them. Its terms for parameter servers are left out here:

    T(w) = a / w + b + c * w        a, b, c >= 0

It fits the coefficients by non-negative least squares. With two sizes `c` is left out. Each size weighs as much as any
other, however long it was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Model:
    """Seconds of a step: `a` / workers + `b` + `c` * workers."""

    a: float
    b: float
    c: float

    def step_s(self, workers: int) -> float:
        return self.a / workers + self.b + self.c * workers


def fit(step_s: Mapping[int, float]) -> Model | None:
    """Of workers -> measured seconds of a step. None: fewer than two sizes, or no time at all."""
    points = [(w, t) for w, t in sorted(step_s.items()) if w >= 1 and t > 0]
    if len(points) < 2:
        return None
    terms = 2 if len(points) == 2 else 3
    rows = [[1 / w, 1.0, float(w)][:terms] for w, _ in points]
    times = [t for _, t in points]
    best: tuple[float, list[float]] | None = None
    # Non-negative least squares of three terms: the best of all subsets whose own least squares are not negative.
    for count in range(1, terms + 1):
        for used in combinations(range(terms), count):
            found = _least_squares([[row[i] for i in used] for row in rows], times)
            if found is None or min(found) < 0:
                continue
            full = [0.0] * 3
            for place, value in zip(used, found, strict=True):
                full[place] = value
            error = sum((sum(x * k for x, k in zip(row, full, strict=False)) - t) ** 2
                        for row, t in zip(rows, times, strict=True))  # fmt: skip
            if best is None or error < best[0] - 1e-15:
                best = error, full
    return None if best is None else Model(*best[1])


def _least_squares(rows: Sequence[Sequence[float]], times: Sequence[float]) -> list[float] | None:
    """Solves the normal equations; None where they are singular."""
    size = len(rows[0])
    matrix = [
        [sum(r[i] * r[j] for r in rows) for j in range(size)]
        + [sum(r[i] * t for r, t in zip(rows, times, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(matrix[k][i]))
        if abs(matrix[pivot][i]) < 1e-12:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        matrix[i] = [value / matrix[i][i] for value in matrix[i]]
        for k in range(size):
            if k != i:
                matrix[k] = [x - matrix[k][i] * y for x, y in zip(matrix[k], matrix[i], strict=True)]
    return [row[size] for row in matrix]
