"""Handles of asynchronous collectives that do not keep communication alive.

A Work of gloo holds its context, and so every socket of the group, for as long as the script holds the Work. Ours lets
go of the real one as soon as it has been waited for, and at a freeze.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

_open: weakref.WeakSet[Any] = weakref.WeakSet()
"""Works that nobody has waited for yet."""


def make_work_class(base: Any) -> Any:
    """SwapWork, a subclass of torch's Work; `base` is completed (`complete`) on the way."""

    class SwapWork(base):  # type: ignore[misc]
        def __init__(self, inner: Any, message: bool = False) -> None:
            super().__init__()
            self._inner = inner
            self.message = message
            """A send or receive: ends only once the peer has issued its part, which it may do many steps later."""
            self._future: Any = None
            _open.add(self)

        def wait(self, *timeout: Any) -> bool:
            inner = self._inner
            if inner is None:
                return True
            done = bool(inner.wait(*timeout))
            if done:
                self._let_go(inner)
            return done

        def get_future(self) -> Any:
            if self._inner is not None:
                return self._inner.get_future()
            if self._future is None:
                raise RuntimeError("Work::getFuture not implemented.")  # what the real one says
            return self._future

        def _let_go(self, inner: Any) -> None:
            # Once only: gloo's reduce-scatter copies its result again at every wait, over what was added to it since.
            with contextlib.suppress(RuntimeError):  # gloo's reduce-scatter has none
                self._future = inner.get_future()
            self._inner = None
            _open.discard(self)

    complete(base)
    return SwapWork


def make_source_class(base: Any, future: Any) -> Any:
    """SourceWork, a subclass of torch's Work, for a receive from any rank: its future tells from whom (`complete`)."""

    class SourceWork(base):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self._inner = inner
            self._source = -1

        def wait(self, *timeout: Any) -> bool:
            if self._inner is not None:
                if not self._inner.wait(*timeout):
                    return False
                self._source = self._inner._source_rank()
                self._inner = None
            return True

        def get_future(self) -> Any:
            if self._inner is not None:
                raise RuntimeError("Work::getFuture not implemented.")
            told = future()
            told.set_result(self._source)
            return told

    return SourceWork


def complete(work: Any) -> None:
    """A Work that went through a Python backend forwards only wait() and get_future() (torch 2.15): add the rest."""

    def through_future(name: str, read: Any) -> None:
        stock = getattr(work, name)

        def method(self: Any) -> Any:
            try:
                future = self.get_future()
            except Exception:
                return stock(self)
            return read(future)

        setattr(work, name, method)

    through_future("is_completed", lambda future: future.done())
    through_future("is_success", lambda future: future.done())
    through_future("result", lambda future: future.value())
    _add_source(work)


def _add_source(work: Any) -> None:
    stock = work._source_rank

    def source_rank(self: Any) -> int:
        try:
            return int(stock(self))
        except RuntimeError:
            try:
                found = self.get_future().value()
            except RuntimeError:
                found = None
            if not isinstance(found, int):
                raise
            return found

    work._source_rank = source_rank


def messages() -> bool:
    """Are there sends or receives that nobody has waited for yet?"""
    return any(work.message for work in list(_open))


def finish() -> None:
    """Wait for works that are in flight. They complete: every rank is at the same step and has issued the same ones."""
    for work in list(_open):
        work.wait()
