"""Runs pieces of code that use a store in every order of their requests, one at a time, with faults where they count.

A schedule is a list of choices. At each request there is a choice: who goes on, and what becomes of it. To go on with
who ran last costs nothing; another one, a fault, or a lost request that arrives after all cost 1 each. All schedules up
to a cost are tried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from singularity_proxy.errors import StoreAwayError, StoreError
from singularity_proxy.store import Store
from singularity_proxy.store.backend import Backend
from singularity_proxy.store.chunk_index import Known

Act = Callable[[], None]


class DivergedError(Exception):
    """A schedule cannot be repeated: time itself has changed what an actor does, as where a second ended meanwhile."""


AGAIN = 5
"""So often is a schedule tried that cannot be repeated. Those that always diverge fail the test."""


class Killed(BaseException):
    """The process has ended: nothing that it does afterwards has an effect."""


@dataclass(frozen=True)
class Option:
    who: str
    what: str = "go"
    """`go`; `lose`: the answer is lost, the request arrives later; `kill`; `arrive`: a lost request."""
    cost: int = 0


class Inline(Executor):
    """Does at once what it is given, so that each actor is one thread."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **options))
        except BaseException as error:
            future.set_exception(error)
            if isinstance(error, Killed):
                raise
        return future


class _Actor(threading.Thread):
    def __init__(self, name: str, act: Act) -> None:
        super().__init__(name=name, daemon=True)
        self.act = act
        self.at: tuple[str, str] | None = None
        """The request that it is about to send."""
        self.dead = False
        self.order = ""
        self.error: BaseException | None = None
        self.granted = threading.Semaphore(0)
        self.stopped = threading.Semaphore(0)

    def run(self) -> None:
        self.granted.acquire()
        try:
            self.act()
        except (StoreError, Killed):
            pass  # as in a pod: it is logged
        except BaseException as error:
            self.error = error
        self.at = None
        self.stopped.release()

    def step(self) -> None:
        """Up to its next request."""
        self.granted.release()
        assert self.stopped.acquire(timeout=120), f"{self.name} does not come to its next request"
        if self.error is not None:
            raise self.error

    def request(self, what: str, path: str) -> str:
        if self.dead:
            raise Killed
        self.at = (what, path)
        self.stopped.release()
        self.granted.acquire()
        if self.order == "kill":
            self.dead = True
            raise Killed
        return self.order


@dataclass
class Run:
    """One schedule. `faulty`: names of actors whose deletes get lost and who may be killed."""

    prefix: list[int]
    faulty: frozenset[str]
    kills: bool
    chosen: list[int] = field(default_factory=list)
    costs: list[list[int]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    lost: list[Act] = field(default_factory=list)

    def options(self, actors: Mapping[str, _Actor], last: str) -> list[Option]:
        ready = [name for name, actor in actors.items() if actor.at is not None]
        found: list[Option] = []
        for name in sorted(ready, key=lambda n: n != last):
            away = 1 if last in ready and name != last else 0
            found.append(Option(name, cost=away))
            at = actors[name].at
            if name in self.faulty and at is not None:
                if at[0] == "delete":
                    found.append(Option(name, "lose", away + 1))
                if self.kills:
                    found.append(Option(name, "kill", away + 1))
        found += [Option(str(number), "arrive", 1 if ready else 0) for number in range(len(self.lost))]
        return found

    def choose(self, options: list[Option]) -> Option:
        number = self.prefix[len(self.chosen)] if len(self.chosen) < len(self.prefix) else 0
        if number >= len(options):
            raise DivergedError(f"{self.prefix}: choice {len(self.chosen)} is not there: {options}")
        self.chosen.append(number)
        self.costs.append([option.cost for option in options])
        return options[number]

    def play(self, acts: Mapping[str, Act]) -> None:
        actors = {name: _Actor(name, act) for name, act in acts.items()}
        with _intercepted(self):
            for actor in actors.values():
                actor.start()
                actor.step()
            last = ""
            while options := self.options(actors, last):
                option = self.choose(options)
                if option.what == "arrive":
                    self.log.append("a lost delete arrives")
                    self.lost.pop(int(option.who))()
                    continue
                actor = actors[last := option.who]
                assert actor.at is not None
                self.log.append(f"{option.who}: {' '.join(actor.at)}{'' if option.what == 'go' else ' ' + option.what}")
                actor.order = option.what
                actor.step()


class _intercepted:
    """While it lasts every request of an actor's thread waits for its turn."""

    def __init__(self, run: Run) -> None:
        self._run, self._patch = run, pytest.MonkeyPatch()

    def __enter__(self) -> None:
        run = self._run

        def wrap(name: str) -> None:
            stock = getattr(Backend, name)

            def method(backend: Backend, path: str, *args: Any, **options: Any) -> Any:
                actor = threading.current_thread()
                if not isinstance(actor, _Actor):
                    return stock(backend, path, *args, **options)
                if actor.request(name, path) == "lose":
                    run.lost.append(lambda: stock(Backend(backend.url), path))
                    raise StoreAwayError(f"no answer to {name} {path}")
                return stock(backend, path, *args, **options)

            self._patch.setattr(Backend, name, method)

        for name in ("write", "read", "find", "delete"):
            wrap(name)
        self._patch.setattr(Store, "pool", lambda store, name: Inline())
        # Whether a look at the store is cheap depends on the clock; a schedule must not.
        self._patch.setattr(Known, "refresh_if_cheap", Known.refresh)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def schedules(most: int, play: Callable[[list[int]], Run]) -> Iterator[Run]:
    """Every schedule that costs no more than `most`, played."""
    left: list[list[int]] = [[]]
    while left:
        prefix = left.pop()
        run = _repeated(play, prefix)
        yield run
        spent = sum(costs[number] for costs, number in zip(run.costs, prefix, strict=False))
        for at in range(len(prefix), len(run.chosen)):
            # Beyond its prefix a run took the first option each time, which costs nothing.
            others = range(1, len(run.costs[at]))
            left += [[*run.chosen[:at], number] for number in others if spent + run.costs[at][number] <= most]


def _repeated(play: Callable[[list[int]], Run], prefix: list[int]) -> Run:
    for _ in range(AGAIN - 1):
        try:
            return play(prefix)
        except DivergedError:
            continue
    return play(prefix)
