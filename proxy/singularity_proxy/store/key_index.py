"""Chunk's key -> number, for tens of millions of chunks: 33 bytes of memory for each, where a `dict` takes 110.

What came last is in a `dict`. When that is full it becomes a sorted run of columns, and runs of like size become one.
Many keys are looked up at once: a search in a run costs several times as much as one in a `dict`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .chunking import KEY_SIZE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]
    Numbers = npt.NDArray[np.int64]

ABSENT: Final = -1
RECENT: Final = 1 << 17
"""Keys of the `dict`: 17 MB."""


@dataclass(frozen=True)
class _Run:
    """Ascending by `high`. Keys are digests: hardly two begin with the same eight bytes, unless somebody wants that."""

    high: Words
    low: Words
    numbers: Numbers

    def find(self, high: Words, low: Words) -> Numbers:
        import numpy as np

        found = np.full(len(high), ABSENT, dtype=np.int64)
        at = np.searchsorted(self.high, high)
        left = np.arange(len(high))
        while True:
            inside = at < len(self.high)
            left, at = left[inside], at[inside]
            same = self.high[at] == high[left]
            left, at = left[same], at[same]
            if not len(left):
                return found
            hit = self.low[at] == low[left]
            found[left[hit]] = self.numbers[at[hit]]
            left, at = left[~hit], at[~hit] + 1


class KeyIndex:
    """Of equal keys the first counts. Numbers are not negative."""

    def __init__(self) -> None:
        self._recent: dict[bytes, int] = {}
        self._runs: list[_Run] = []
        """The larger ones first."""

    def add(self, keys: Sequence[bytes], first: int) -> None:
        """Keys with the numbers `first`, `first + 1`, ..."""
        numbers = range(first, first + len(keys))
        if self._runs:
            known = self._in_runs(keys)
            new = [(key, number) for key, number, old in zip(keys, numbers, known, strict=True) if old == ABSENT]
            keys, many = [key for key, _ in new], [number for _, number in new]
            deque(map(self._recent.setdefault, keys, many), maxlen=0)
        else:
            deque(map(self._recent.setdefault, keys, numbers), maxlen=0)
        if len(self._recent) > RECENT:
            self._settle()

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The number of each key, or `ABSENT`."""
        get = self._recent.get
        found = [get(key, ABSENT) for key in keys]
        if self._runs:
            left = [index for index, number in enumerate(found) if number == ABSENT]
            for index, number in zip(left, self._in_runs([keys[index] for index in left]), strict=True):
                found[index] = number
        return found

    def forget(self, doomed: set[int], bits: int) -> None:
        """Every key whose number, without its last `bits` bits, is one of these."""
        import numpy as np

        self._recent = {key: number for key, number in self._recent.items() if number >> bits not in doomed}
        for at, run in enumerate(self._runs):
            stays = ~np.isin(run.numbers >> bits, [*doomed])
            self._runs[at] = _Run(run.high[stays], run.low[stays], run.numbers[stays])

    def _in_runs(self, keys: Sequence[bytes]) -> list[int]:
        import numpy as np

        found = np.full(len(keys), ABSENT, dtype=np.int64)
        high, low = _columns(keys)
        for run in self._runs:
            left = np.flatnonzero(found == ABSENT)
            found[left] = run.find(high[left], low[left])
        numbers: list[int] = found.tolist()
        return numbers

    def _settle(self) -> None:
        """Turn the `dict` into a run, and join runs that are not much larger."""
        import numpy as np

        high, low = _columns([*self._recent])
        numbers = np.fromiter(self._recent.values(), dtype=np.int64, count=len(self._recent))
        self._recent = {}
        while self._runs and len(self._runs[-1].high) < 2 * len(high):
            run = self._runs.pop()
            high, low = np.concatenate((run.high, high)), np.concatenate((run.low, low))
            numbers = np.concatenate((run.numbers, numbers))
        order = np.argsort(high, kind="stable")
        self._runs.append(_Run(high[order], low[order], numbers[order]))


def _columns(keys: Sequence[bytes]) -> tuple[Words, Words]:
    import numpy as np

    words = np.frombuffer(b"".join(keys), dtype="<u8").reshape(-1, KEY_SIZE // 8)
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])
