"""Handles of asynchronous collectives that do not keep communication alive.

A Work of gloo holds its context, and so every socket of the group, for as long as the script holds the Work. Ours lets
go of the real one as soon as it has been waited for, and at a freeze. What goes wrong in an operation is the script's
to hear of, from the Work, also when the agent was the first to wait.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

from . import gate, guard

_open: weakref.WeakSet[Any] = weakref.WeakSet()
"""Works that nobody has waited for yet."""
_sources: weakref.WeakSet[Any] = weakref.WeakSet()
"""Receives from any rank that are under way."""
KEPT = 10_000
"""Works that nobody asks for are kept up to this number."""
_kept: dict[Any, None] = {}
"""Works that C++ may still ask, oldest first, where it does not keep them itself."""


def make_work_class(base: Any, keep: bool = False) -> Any:
    """SwapWork, a subclass of torch's Work; `base` is completed (`complete`) on the way.

    :param keep: C++ keeps of a Work its own half only (torch before 2.8), whose wait never ends without Python's: each
        stays until it was waited for, or its future was taken
    """

    class SwapWork(base):  # type: ignore[misc]
        def __init__(self, inner: Any, message: bool = False) -> None:
            super().__init__()
            self._inner = inner
            self.message = message
            """A send or receive: ends only once the peer has issued its part, which it may do many steps later."""
            self._future: Any = None
            self._error: Exception | None = None
            self._waits = threading.RLock()
            """One thread at a time waits: gloo's reduce-scatter copies its result again at every wait."""
            with gate.lock:
                _open.add(self)
                if keep:
                    _kept[self] = None
                    if len(_kept) > KEPT:
                        del _kept[next(iter(_kept))]

        def wait(self, *timeout: Any) -> bool:
            gate.begin()
            try:
                with self._waits:
                    if self._error is not None:
                        raise self._error
                    inner = self._inner
                    if inner is None:
                        return True
                    done = bool(inner.wait(*timeout))
                    if done:
                        self._let_go(inner)
                    del inner
                    return done
            finally:
                _kept.pop(self, None)
                gate.leave()

        def settle(self) -> Exception | None:
            """Wait for the end, and let go. The error that it ended with is the script's to hear of."""
            with self._waits:
                inner = self._inner
                if inner is not None:
                    try:
                        inner.wait()
                    except Exception as error:
                        self._error = error
                    self._let_go(inner)
                return self._error

        def get_future(self) -> Any:
            _kept.pop(self, None)
            inner = self._inner  # a stop in another thread may take it away
            if inner is not None:
                return inner.get_future()
            if self._future is None:
                raise RuntimeError("Work::getFuture not implemented.")  # what the real one says
            return self._future

        def _let_go(self, inner: Any) -> None:
            try:
                with contextlib.suppress(RuntimeError):  # gloo's reduce-scatter has none
                    self._future = inner.get_future()
                self._inner = None
                with gate.lock:
                    _open.discard(self)
            except Exception as error:
                guard.took(error, "after an operation of the script")

    complete(base)
    return SwapWork


def make_source_class(base: Any, future: Any) -> Any:
    """SourceWork, a subclass of torch's Work, for a receive from any rank: its future tells from whom (`complete`)."""

    class SourceWork(base):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self._inner = inner
            self._source = -1
            with gate.lock:
                _sources.add(self)

        def wait(self, *timeout: Any) -> bool:
            gate.begin()
            try:
                if self._inner is not None:
                    if not self._inner.wait(*timeout):
                        return False
                    self._source = self._inner._source_rank()
                    self._inner = None
                    with gate.lock:
                        _sources.discard(self)
                return True
            finally:
                gate.leave()

        def get_future(self) -> Any:
            if self._inner is not None:
                raise RuntimeError("Work::getFuture not implemented.")
            told = future()
            told.set_result(self._source)
            return told

    return SourceWork


def handle(started: Any, kind: Any, message: bool = False) -> Any:
    """What the script gets for an operation that was issued: `started` below a Work of ours, or `started` itself."""
    if started is None:
        return None
    try:
        return kind(started, message) if message else kind(started)
    except Exception as error:
        guard.took(error, "after an operation of the script")
        return started


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


def _listed(works: weakref.WeakSet[Any]) -> list[Any]:
    with gate.lock:
        return list(works)


def messages() -> bool:
    """Are there sends or receives that nobody has waited for yet?"""
    return any(work.message for work in _listed(_open))


def open_sources() -> bool:
    """Are there receives from any rank that have not ended? From whom is known only then: no stop is consistent."""
    return bool(_listed(_sources))


def finish() -> Exception | None:
    """Wait for works that are in flight. They end: what belongs to them has been issued everywhere.

    Returns the error of one that has failed.
    """
    errors = [work.settle() for work in _listed(_open)]
    return next((error for error in errors if error is not None), None)
