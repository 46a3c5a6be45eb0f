"""A job of the state engine that is resized 4 -> 2 -> 8 on a cluster, and the size of its checkpoint.

Seconds are those of the job's trace. Which samples it was given is what its ranks have written. The same script then
runs under the process engine, with the same number of workers, for one checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from kueue_integration.jobs import lifecycle
from kueue_integration.jobs.status import JobStatus, describe
from kueue_integration.requests import verbs
from kueue_integration.spec.train_spec import TrainSpec
from localcluster.addons.chart import SHARED_MOUNT
from localcluster.demo import samples
from localcluster.demo.samples import Given
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.story import QUEUE, remove

from .model import Group, Measured, Options, Say, Spec
from .move_small import until_trains
from .preemption import stage
from .programs import train_resized_source
from .stats import median

WORKERS = (4, 2, 8)
CPU = "100m"
"""Of one pod: eight have room on the flavor with a quota of one."""
WIDTH, PACE_S, BATCH = 1024, 0.05, 16
"""13 MB of trained state. `BATCH`: samples of a step, as the script has them."""
LIMIT_S = 600.0
STEPS = 20
"""That an attempt does before the next request."""


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    with stage(say) as on:
        runs = [resized(on, f"resized-{number}", say) for number in range(1 if options.quick else 3)]
        sizes = {"state": runs[0]["checkpoint"], "process": saved_by_processes(on, "resized-processes", say)}
    return {**resize_figures(runs), **size_figure(sizes)}


def resize_figures(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Measured]:
    come = {f"{one} -> {other}": [run["come_s"][at] for run in runs] for at, (one, other) in enumerate(_steps())}
    leave = {name: [run["leave_s"][at] for run in runs] for at, name in enumerate(come)}
    words = [f"{name} {median(come[name]):.3g} s, asked to quota free {median(leave[name]):.3g} s" for name in come]
    lost, wrong = sum(run["steps_lost"] for run in runs), sum(len(run["wrong"]) for run in runs)
    told = f"{lost} steps and {wrong} samples lost or given twice in {len(runs)} runs"
    return {
        "state_resize_s": Measured(max(map(median, come.values())), list(runs), f"{'; '.join(words)}; {told}"),
        "state_resize_lost": Measured(lost + wrong, list(runs), told),
    }


def size_figure(sizes: Mapping[str, Mapping[str, int]]) -> Mapping[str, Measured]:
    """`sizes`: of one checkpoint of each engine, `bytes` and `bytes_stored`."""
    words = [
        f"{engine} engine {size['bytes'] / 1e6:.3g} MB, of which {size['bytes_stored'] / 1e6:.3g} MB were stored"
        for engine, size in sizes.items()
    ]
    ratio = sizes["state"]["bytes"] / sizes["process"]["bytes"]
    stored = sizes["state"]["bytes_stored"] / max(sizes["process"]["bytes_stored"], 1)
    text = f"{'; '.join(words)}; stored bytes {stored:.2g} x; {WORKERS[0]} workers"
    return {"state_checkpoint_x": Measured(ratio, [sizes], text)}


def _steps() -> list[tuple[int, int]]:
    return list(itertools.pairwise(WORKERS))


def spec(name: str, engine: str) -> TrainSpec:
    command = ["python3", "train_resized.py", f"{SHARED_MOUNT}/{name}", str(WIDTH), str(PACE_S)]
    return TrainSpec(
        name=name, queue=QUEUE, command=command, files={"train_resized.py": train_resized_source()},
        workers=WORKERS[0], priority_class="low", resources={"cpu": CPU}, engine=engine, checkpoint_budget_s=600,
    )  # fmt: skip


def submit(on: Stage, name: str, engine: str) -> None:
    folder = on.cluster.shared / name
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    lifecycle.submit(on.kube, spec(name, engine), on.platform)


def checkpoint(on: Stage, name: str) -> dict[str, int]:
    """Sizes of one that the job makes beside its training. Raises ValueError: it could not."""
    asked = verbs.wait(on.kube, verbs.checkpoint(on.kube, NAMESPACE, name), LIMIT_S)
    made = [each for each in describe(on.kube, NAMESPACE, name).checkpoints if "bytes" in each]
    if asked.state != "done" or not made:
        raise ValueError(f"{name} made no checkpoint: {asked.state}: {asked.message}")
    return {key: int(made[-1][key]) for key in ("bytes", "bytes_stored")}


def resized(on: Stage, name: str, say: Say) -> dict[str, Any]:
    """One job with all its resizes. Raises ValueError where one was not done."""
    submit(on, name, "state")
    try:
        until_trains(on, name, 1, STEPS)
        size = checkpoint(on, name)
        for attempt, workers in enumerate(WORKERS[1:], 2):
            asked = verbs.wait(on.kube, verbs.resize(on.kube, NAMESPACE, name, workers), LIMIT_S)
            if asked.state != "done":
                raise ValueError(f"{name} was not resized to {workers}: {asked.state}: {asked.message}")
            until_trains(on, name, attempt, STEPS)
        found = {"checkpoint": size, **figures(describe(on.kube, NAMESPACE, name))}
        found["wrong"] = lost_samples(samples.read(on.cluster.shared / name))
    finally:
        remove(on.kube, NAMESPACE, name)
    say(f"{name}: {found}")
    return found


def figures(status: JobStatus) -> dict[str, Any]:
    """Of all its moves. Raises ValueError: they are not those that were asked for."""
    pods = tuple(record.pods for record in status.attempts)
    if pods != WORKERS or any(record.first_step_at is None for record in status.attempts):
        raise ValueError(f"{status.name} ran with {pods} pods, not with {WORKERS}")
    return {
        "come_s": [round((new.first_step_at or 0) - new.admitted_at, 3) for new in status.attempts[1:]],
        "leave_s": [round((old.released_at or 0) - (old.evicted_at or 0), 3) for old in status.attempts[:-1]],
        "steps_lost": status.steps_lost,
    }


def lost_samples(given: Sequence[Given]) -> list[str]:
    """What differs from one batch per step. The newest step is left out: other ranks may be about to write it."""
    newest = max(each.step for each in given)
    return samples.wrong([each for each in given if each.step < newest], newest, BATCH)


def saved_by_processes(on: Stage, name: str, say: Say) -> dict[str, int]:
    submit(on, name, "process")
    try:
        until_trains(on, name, 1, STEPS)
        size = checkpoint(on, name)
    finally:
        remove(on.kube, NAMESPACE, name)
    say(f"{name}: {size}")
    return size


GROUP = Group(
    "state resize",
    "root, local cluster",
    [
        Spec("state_resize_s", "s", "", "state engine, 4 -> 2 -> 8 workers: the longer of admitted to first step"),
        Spec("state_resize_lost", "", "<= 0", "steps lost, and samples lost or given twice, in these resizes"),
        Spec("state_checkpoint_x", "x", "", "bytes of a checkpoint of the state engine against the process engine's"),
    ],
    measure,
)
