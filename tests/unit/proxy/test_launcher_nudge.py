"""Whom the launcher nudges: ranks that a stop is asked of and that have not come to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_sidecar import Page

from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.ranks.nudge import Nudge
from singularity_proxy.protocol import page


@pytest.fixture
def shared(tmp_path: Path) -> Page:
    (tmp_path / "run").mkdir()
    shared = Page(tmp_path / "run", 4)
    states = (page.STATE_RUNNING, page.STATE_RUNNING, page.STATE_FROZEN, page.STATE_RUNNING)
    for rank, state in enumerate(states):
        shared.words[page.rank_word(rank, page.R_PID)] = 1000 + rank
        shared.words[page.rank_word(rank, page.R_STATE)] = state
    return shared


def test_nobody_while_nothing_is_asked(tmp_path: Path, shared: Page) -> None:
    assert Nudge(Paths(tmp_path)).waited_for([0, 1, 2, 3]) == {}


def test_our_running_ranks_that_are_not_blocked(tmp_path: Path, shared: Page) -> None:
    shared.publish(7, 5, 0)
    shared.words[page.rank_word(1, page.R_BLOCKED)] = 7
    assert Nudge(Paths(tmp_path)).waited_for([0, 1, 2]) == {0: 1000}


def test_nobody_once_it_is_acquired(tmp_path: Path, shared: Page) -> None:
    shared.publish(7, 5, 7)
    assert Nudge(Paths(tmp_path)).waited_for([0, 1]) == {}


def test_no_page_yet(tmp_path: Path) -> None:
    assert Nudge(Paths(tmp_path)).waited_for([0]) == {}
