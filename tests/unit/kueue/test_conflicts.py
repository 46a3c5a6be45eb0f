"""A write that somebody was faster than is made again, so many times and no more."""

from __future__ import annotations

import pytest

from kueue_integration.errors import Conflict, Forbidden
from kueue_integration.kube import conflicts


class Attempt:
    """Fails `fails` times with `error`."""

    def __init__(self, fails: int, error: type[Exception] = Conflict) -> None:
        self.fails, self.error, self.made = fails, error, 0

    def __call__(self) -> str:
        self.made += 1
        if self.made <= self.fails:
            raise self.error("no")
        return "done"


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_it_is_made_again_after_a_conflict(fails: int) -> None:
    attempt = Attempt(fails)
    assert (conflicts.outlasted(3, attempt), attempt.made) == ("done", fails + 1)


@pytest.mark.parametrize(("tries", "error", "made"), [(3, Conflict, 3), (1, Conflict, 1), (3, Forbidden, 1)])
def test_the_last_conflict_and_every_other_error_is_told(tries: int, error: type[Exception], made: int) -> None:
    attempt = Attempt(9, error)
    with pytest.raises(error):
        conflicts.outlasted(tries, attempt)
    assert attempt.made == made
