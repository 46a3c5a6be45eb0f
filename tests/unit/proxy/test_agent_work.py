"""Handles of operations, where C++ keeps its own half only: those that it may still ask stay."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from singularity_proxy.agent import work


class Base:
    """As torch's Work: what went through a group in Python has no more than this."""

    def is_completed(self) -> bool:
        return False

    is_success = result = _source_rank = is_completed


class Inner:
    """gloo's handle."""

    def wait(self) -> bool:
        return True

    def get_future(self) -> str:
        return "future"


def made(keep: bool) -> Any:
    """Reference to a handle that no Python holds."""
    return weakref.ref(work.make_work_class(type("Work", (Base,), {}), keep)(Inner()))


@pytest.mark.parametrize("asks", ["wait", "get_future"])
def test_a_handle_that_only_the_old_torchs_cpp_has_stays_until_it_is_asked(asks: str) -> None:
    kept, gone = made(keep=True), made(keep=False)
    gc.collect()
    assert gone() is None and kept() is not None
    work.finish()  # a stop: the operation has ended, and C++ may still wait for it
    gc.collect()
    assert getattr(kept(), asks)() in (True, "future")
    gc.collect()
    assert kept() is None and not work._kept


def test_handles_that_nobody_asks_for_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "KEPT", 3)
    handles = [made(keep=True) for _ in range(5)]
    gc.collect()
    assert [handle() is not None for handle in handles] == [False, False, True, True, True]
    work._kept.clear()
