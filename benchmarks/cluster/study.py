"""The studies: which workloads, who contends, and how they are run.

Each scenario is run with each contender on the same seeds, so that changes can be paired.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from . import generator
from .book import Book, Found
from .derive import Parameters
from .generator import Mix
from .measures import measures
from .model import DEVICES_PER_NODE, HELD, PLAIN, PRICES, SAVES, Cluster, Costs, Flavor, Setting
from .outcome import EndlessError
from .seam import Planner, acting, modes
from .simulator import Simulation

DAY_S = 86400.0
Say = Callable[[str], None]

RESTART, SAVING, HOLD = "Kueue, jobs never save", "Kueue, jobs save every 30 min", "Kueue with the hold"
BASE = HOLD
"""The others are compared with it."""


@dataclass(frozen=True)
class Scenario:
    """:param load: demand of the jobs that arrive, as a share of the device time of the window
    :param dear: moves cost this many times what was measured
    :param classes: each tier has a WorkloadPriorityClass
    :param ranked: a higher tier's class has a higher value; otherwise a class only names the promise
    :param contenders: names; empty: all
    :param given: what the generator draws from; None: what the project ships
    """

    name: str
    about: str
    devices: int = 256
    days: float = 4.0
    load: float = 0.9
    flavors: tuple[str, ...] = ("v100",)
    mix: Mix = field(default_factory=Mix)
    classes: bool = False
    ranked: bool = True
    dear: float = 1.0
    seeds: int = 3
    contenders: tuple[str, ...] = ()
    given: Parameters | None = None

    def names(self) -> Sequence[str]:
        """Of the contenders."""
        idle = [*([] if self.classes else ONLY_WITH_CLASSES), *(ONLY_WITH_FLAVORS if len(self.flavors) == 1 else [])]
        return self.contenders or tuple(n for n in CONTENDERS if n not in idle)

    def with_seeds(self, seeds: int) -> Scenario:
        return replace(self, seeds=seeds)

    def cluster(self) -> Cluster:
        nodes = self.devices // DEVICES_PER_NODE // len(self.flavors)
        flavors = [Flavor(name, nodes, PRICES[name]) for name in self.flavors]
        return Cluster(flavors, (self.given or generator.shipped()).tenants)

    def setting(self, costs: Costs) -> Setting:
        dearer = replace(
            costs,
            leave_s=costs.leave_s * self.dear,
            leave_s_per_gb=costs.leave_s_per_gb * self.dear,
            come_s=costs.come_s * self.dear,
            come_s_per_gb=costs.come_s_per_gb * self.dear,
        )
        return Setting(dearer, self.classes, self.ranked)


LOOK_S = 300.0
"""Between two looks of the planner (`planner.everySeconds`). The chart has 30 s, with which a study takes ten times as
long. One move starts in a cohort per look, so this is also the shortest time between two moves."""
HERE = [name for name in modes() if name not in ("cordon", "health")]
"""The policies of the planner that have something to do here: no node leaves, and none is sick."""
ONLY_WITH_CLASSES, ONLY_WITH_FLAVORS = ("sla tiers",), ("introspection",)
WITH_REGROWTH = ("marginal_gain",)
"""Alone it does nothing: it needs a job's speed at two sizes, and without regrowth few jobs change their size."""
REGROWTH, ALL = "regrowth", "all"


def compatible(names: Sequence[str]) -> list[str]:
    """As many as the controller lets stand together, the first ones first."""
    found: list[str] = []
    for name in names:
        try:
            acting([*found, name], LOOK_S)
        except ValueError:
            continue
        found.append(name)
    return found


@dataclass(frozen=True)
class Contender:
    """:param policies: fields of `PlannerSettings`; None: no planner
    :param regrowth: it is on, too
    """

    costs: Costs
    policies: tuple[str, ...] | None = None
    regrowth: bool = False

    def planner(self) -> Planner | None:
        """One for each run: it remembers."""
        return None if self.policies is None else Planner.of(acting(self.policies, LOOK_S), self.regrowth)


CONTENDERS: Mapping[str, Contender] = {
    RESTART: Contender(PLAIN),
    SAVING: Contender(SAVES),
    HOLD: Contender(HELD),
    REGROWTH: Contender(HELD, (), True),
    **{name.replace("_", " "): Contender(HELD, (name,), name in WITH_REGROWTH) for name in HERE},
    ALL: Contender(HELD, tuple(compatible(HERE)), True),
}
TIERED = Mix(tiers=(0.3, 0.5, 0.2))
SCENARIOS: Sequence[Scenario] = (
    Scenario("shared", "Philly's mix on one type of device"),
    Scenario("busy", "the same with more work than devices", load=1.2),
    Scenario("topology", "every job of 2 to 8 workers needs one node", mix=Mix(one_node=1.0)),
    Scenario("mixed", "half V100, half P100", load=0.7, flavors=("v100", "p100")),
    Scenario("tiers", "three tiers with a priority class each", 256, 3.0, 1.1, mix=TIERED, classes=True),
    Scenario("promises", "the same, but of one priority", 256, 3.0, 1.1, mix=TIERED, classes=True, ranked=False),
    Scenario("dear moves", "`shared`, but a move costs ten times as much", dear=10.0),
    Scenario("1024 devices", "`busy`, larger", load=1.2, devices=1024, days=2.0),
    Scenario("4096 devices", "`busy`, larger", load=1.2, devices=4096, days=2.0, seeds=1),
)


@dataclass(frozen=True)
class Run:
    scenario: Scenario
    contender: str
    seed: int


def quick(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Two days on 64 devices with two seeds: to try things out."""
    small = [one for one in scenarios if one.devices <= 256]
    return [replace(one, devices=64, days=2.0, seeds=2) for one in small]


def runs(scenarios: Sequence[Scenario], first_seed: int) -> Iterator[Run]:
    for scenario in scenarios:
        for contender in scenario.names():
            for seed in range(first_seed, first_seed + scenario.seeds):
                yield Run(scenario, contender, seed)


def play(run: Run) -> dict[str, float]:
    """Raises RuntimeError, ValueError."""
    scenario, contender = run.scenario, CONTENDERS[run.contender]
    cluster, window_s = scenario.cluster(), scenario.days * DAY_S
    demand = scenario.load * cluster.devices * window_s
    jobs = generator.workload(run.seed, demand, window_s, scenario.flavors, scenario.mix, scenario.given)
    outcome = Simulation(cluster, jobs, scenario.setting(contender.costs), contender.planner(), run.seed).run()
    return {**measures(outcome), "jobs": float(len(jobs)), "refused": float(sum(outcome.refused.values()))}


def play_all(
    scenarios: Sequence[Scenario],
    first_seed: int,
    say: Say,
    processes: int | None = None,
    book: Book | None = None,
    go_on: bool = False,
) -> dict[str, Found]:
    """By scenario. One process for each core. A contender with a run that has no end is left out of its scenario.

    :param book: gets each run when it is done
    :param go_on: leave out what the book has already
    :raises RuntimeError: a run failed, or the contender that all are compared with has no end
    :raises ValueError: settings that the controller would refuse
    """
    book = Book() if book is None else book
    for scenario in scenarios:
        book.begin(scenario, first_seed, go_on)
    every = list(runs(scenarios, first_seed))
    todo = [run for run in every if not book.has(run)]
    if len(todo) < len(every):
        say(f"{len(every) - len(todo)} of {len(every)} runs are in the book")
    workers = processes or os.cpu_count() or 1
    if workers > 1:  # the largest first: otherwise one of them runs alone at the end
        todo.sort(key=lambda run: -run.scenario.devices * run.scenario.days)
    pool = ProcessPoolExecutor(workers)
    try:
        futures = {pool.submit(play, run): run for run in todo}
        for count, future in enumerate(as_completed(futures), 1):
            run = futures[future]
            told = f"{run.scenario.name}, {run.contender}, seed {run.seed}"
            try:
                measured = future.result()
            except EndlessError as error:
                say(f"{count} of {len(todo)}: {told}: {error}")
                book.enter_endless(run, str(error))
                continue
            book.enter(run, measured)
            say(f"{count} of {len(todo)}: {told}: {measured['completion_mean_h']:.2f} h")
    finally:
        pool.shutdown(cancel_futures=True)
    for scenario in scenarios:
        if BASE in book.endless(scenario.name):
            raise RuntimeError(f"{scenario.name}: {BASE} has no end, and all are compared with it")
    return {one.name: book.found(one.name, one.names()) for one in scenarios}
