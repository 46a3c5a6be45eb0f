"""Whether bytes are still those that were looked at: a digest for one comparison, at the speed of memory.

Nobody outside knows the weights, which are drawn for each upload. So no writer can choose a change that goes unnoticed,
and no accident is more likely to than another. A change is missed with a probability of at most 2**-33. It is
multilinear hashing modulo 2**64 over halves of words. Sources: Carter, Wegman, New hash functions and their
use in authentication and set equality, 1981. Lemire, Kaser, Strongly universal string hashing is fast, 2014.

If the lower halves of two texts differ anywhere, the first sum differs with this probability. Otherwise the upper
halves differ, and then the second sum does. sha256 would take four times as long for an answer that is as good.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]

WORD: Final = 8
"""Bytes."""
Mark = tuple[int, int]


class Fingerprint:
    """:param most: bytes of the longest text; memory: twice as much"""

    def __init__(self, most: int) -> None:
        self._words = -(-most // WORD)
        self._drawn: tuple[Words, Words] | None = None

    def _room(self) -> tuple[Words, Words]:
        """The weights, and room for upper halves. Drawn at the first text: most uploads have none."""
        if self._drawn is None:
            import numpy as np  # `memory.load`

            weights = np.frombuffer(os.urandom(self._words * WORD), dtype=np.uint64)
            self._drawn = weights, np.empty(self._words, dtype=np.uint64)
        return self._drawn

    def of(self, text: memoryview) -> Mark:
        """Compare it with marks of the same object and of texts of the same length alone.

        :param text: whole words, no more than `most` bytes
        """
        import numpy as np

        words = np.frombuffer(text, dtype=np.uint64)
        weights, upper = (row[: len(words)] for row in self._room())
        np.right_shift(words, np.uint64(32), out=upper)
        return int(np.einsum("i,i", words, weights)), int(np.einsum("i,i", upper, weights))
