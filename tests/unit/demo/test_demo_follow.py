"""Following a job on a slow machine: who gets on is waited for, who stands still is not, and nobody for ever."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from localcluster.demo import follow
from localcluster.demo.errors import StoryTimeoutError
from localcluster.demo.follow import PATIENCE, Follower


def following(monkeypatch: pytest.MonkeyPatch, steps: Iterable[int], said: list[str]) -> Follower:
    """A job that has done one more of `steps` at each look."""
    attempt, rest = SimpleNamespace(attempt=1, flavor="spot", pods=2), iter(steps)

    def describe(*_: object) -> SimpleNamespace:
        words = {"phase": "Running", "reason": "", "message": "", "checkpoints": (), "attempts": [attempt]}
        return SimpleNamespace(step=next(rest), **words)

    monkeypatch.setattr(follow, "describe", describe)
    monkeypatch.setattr(follow, "running_pods", lambda *_: 2)
    return Follower(None, "default", "job", said.append)  # type: ignore[arg-type]


def test_a_job_that_gets_on_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    follower = following(monkeypatch, range(1, 9), said)
    assert follower.until(lambda s: s.step == PATIENCE, "the last step", 0).step == PATIENCE
    assert sum("still waiting for: the last step" in line for line in said) == PATIENCE - 1


def test_a_job_that_stands_still_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = following(monkeypatch, [1, 2, 2, 3], [])
    with pytest.raises(StoryTimeoutError, match=r"in vain for: step 3; last seen: Running .*\(step 2\)"):
        follower.until(lambda s: s.step == 3, "step 3", 0)


def test_nobody_is_waited_for_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = following(monkeypatch, range(1, 100), [])
    with pytest.raises(StoryTimeoutError, match="step 50"):
        follower.until(lambda s: s.step == 50, "step 50", 0)
    assert len(follower.samples) == PATIENCE
