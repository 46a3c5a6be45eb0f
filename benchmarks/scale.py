"""Thousands of Workloads: what the fence costs Kueue's admission, and a thousand evictions at once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import JOB, annotation
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec.train_spec import TrainSpec
from localcluster.demo.stage import NAMESPACE

from .finisher import RUNTIME, Finisher
from .fleet import API, Fleet, Usage, fleet, queue, until
from .holds import HoldWatch
from .model import Group, Measured, Options, Say, Spec
from .stats import median, median_ratio, spread

WORKLOADS = 15_000
NODES = 1_000
COHORTS, QUEUES = 5, 6
# Of ten Workloads: (runtime in ms, priority, CPUs), as in Kueue's own `baseline`.
TEN = [(200, 50, 1)] * 7 + [(500, 100, 5)] * 2 + [(1000, 200, 20)]
EVICTIONS = 1_000
BUDGET_S = 60
LIMIT_S = 3600.0
SETTLE_S = 3600.0


# --- admission -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Piece:
    """:param admitted: seconds from opening the queues to each admission, ascending
    :param created_s: from the first creation to the opening
    :param cpu_s: CPU time of API server, etcd and Kueue from the opening to the last admission
    """

    admitted: list[float]
    created_s: float
    cpu_s: float = 0.0

    @property
    def cpu_ms(self) -> float:
        """Of each Workload."""
        return 1000 * self.cpu_s / max(1, len(self.admitted))


def measure_admission(options: Options, say: Say) -> Mapping[str, Measured]:
    """`total` Workloads with the fence and as many without, in pieces that take turns."""
    nodes = options.nodes or (NODES // 10 if options.quick else NODES)
    total = options.workloads or (WORKLOADS // 10 if options.quick else WORKLOADS)
    limit = (options.limit_s or 2 * LIMIT_S) / 2
    pieces: dict[bool, list[Piece]] = {True: [], False: []}
    with fleet(nodes, say) as on, Usage(on.controller_pid()) as usage:
        before = on.requests()
        for number, fenced in enumerate((False, True, True, False)):
            pieces[fenced].append(admit(on, f"piece-{number}", total // 2, fenced, limit, say))
        asked = (on.requests() - before).total() / (total // 2 * 2)
    pairs = [compared(*pair) for pair in zip(pieces[True], pieces[False], strict=True)]
    ratio = median_ratio([(with_it, without) for with_it, without, _ in pairs])
    size = sum(count for _, _, count in pairs)
    rate = size / sum(without for _, without, _ in pairs)
    created = {fenced: sum(piece.created_s for piece in some) for fenced, some in pieces.items()}
    cpu = [(a.cpu_ms, b.cpu_ms) for a, b in zip(pieces[True], pieces[False], strict=True)]
    times = ", ".join(f"{with_it:.1f}/{without:.1f} s" for with_it, without, _ in pairs)
    text = (
        f"the same queues without the check ({rate:.0f}/s); {size} Workloads on each side, {COHORTS} x {QUEUES} "
        f"queues, {nodes} nodes, created and queued before, in {created[True]:.0f} s with and "
        f"{created[False]:.0f} s without; pairs {times}; CPU time of API server, etcd and Kueue from opening to the "
        f"last admission: ratio {median_ratio(cpu):.3f}, {median(one for _, one in cpu):.1f} ms each without"
    )
    return {
        "fence_admission_ratio": Measured(ratio, pairs, text),
        "fence_workloads": Measured(float(size), [size], f"Kueue's own benchmark has {WORKLOADS}"),
        "controller_rss_mb": Measured(usage.peak_mb, [usage.peak_mb], f"peak, with {4 * (total // 2)} Workloads"),
        "controller_cpu_cores": Measured(
            max(usage.cores), usage.cores, f"busiest 5 s; median {median(usage.cores):.2g}; {asked:.2g} requests each"
        ),
    }


def compared(with_it: Piece, without: Piece) -> tuple[float, float, int]:
    """Seconds with and without until as many were admitted as either side has reached within its time, and how many.

    :raises RuntimeError: one side has admitted nothing
    """
    count = min(len(with_it.admitted), len(without.admitted))
    if not count:
        raise RuntimeError("no Workload was admitted on one side: is the controller down, or the time per side short?")
    return with_it.admitted[count - 1], without.admitted[count - 1], count


def admit(on: Fleet, piece: str, count: int, fenced: bool, limit_s: float, say: Say) -> Piece:
    """Create `count` Workloads in closed queues, open these, and watch the admissions for at most `limit_s` seconds."""
    on.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": piece}}])
    queues = [f"{piece}-{n}" for n in range(COHORTS * QUEUES)]
    made: list[dict[str, Any]] = []
    for n, name in enumerate(queues):
        made += queue(name, f"{piece}-{n // QUEUES}", cpu=20, borrow=100, fenced=fenced, namespace=piece)
    for item in made[::2]:
        item["spec"]["stopPolicy"] = "Hold"
    on.apply(made)
    what = f"{piece} ({'fence' if fenced else 'no check'})"
    began = time.monotonic()
    on.create(workload(piece, n, queues[n % len(queues)]) for n in range(count))
    with Finisher(on.kube, piece) as finisher:
        # Not before all is still: what Kueue and the fence write for queued Workloads is no part of the admission.
        if not until(lambda: len(finisher.settled(fenced)), count, f"{what}: queued", SETTLE_S, say):
            raise RuntimeError(f"{what}: only {len(finisher.settled(fenced))} of {count} are queued, and answered")
        opened, used = time.monotonic(), on.cpu()
        say(f"{what}: {count} Workloads created and queued in {opened - began:.0f} s")
        on.stop(queues, "None")
        in_time = until(lambda: len(finisher.admitted), count, f"{what}: admitted", limit_s, say)
        cpu_s = on.cpu() - used
        admitted = sorted(moment - opened for moment in list(finisher.admitted.values()))
        if not in_time:
            on.stop(queues, "Hold")
        until(lambda: len(finisher.finished), len(finisher.admitted), f"{what}: ended", LIMIT_S, say)
    say(f"{what}: {len(admitted)} admitted in {admitted[-1] if admitted else 0:.1f} s; control plane {cpu_s:.1f} s CPU")
    return Piece(admitted, opened - began, cpu_s)


def workload(namespace: str, number: int, local_queue: str) -> dict[str, Any]:
    runtime, priority, cpus = TEN[number // (COHORTS * QUEUES) % 10]
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": str(cpus)}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    meta = {"name": f"w-{number}", "namespace": namespace, "annotations": {RUNTIME: str(runtime)}}
    podset = {"name": "main", "count": 1, "template": template}
    spec = {"active": True, "queueName": local_queue, "priority": priority, "podSets": [podset]}
    return {"apiVersion": API, "kind": "Workload", "metadata": meta, "spec": spec}


# --- evictions -------------------------------------------------------------------------------------------
def measure_evictions(options: Options, say: Say) -> Mapping[str, Measured]:
    """Managed Jobs on fake nodes. No sidecar answers there, so every hold lasts until its deadline: the worst case."""
    many = options.evictions or (EVICTIONS // 10 if options.quick else EVICTIONS)
    with fleet(options.nodes or (NODES // 10 if options.quick else NODES), say) as on:
        limit = options.limit_s or LIMIT_S
        few_run = evict(on, "few", max(10, many // 10), limit, say)
        run = evict(on, "many", many, limit, say)
    late, few_late = run["all_released_s"], few_run["all_released_s"]
    baseline = (
        f"{many} evicted at once, none lost, beyond their {BUDGET_S} s budget; last {run['latest_s']:.2g} s after its "
        f"own deadline; {few_run['jobs']:.0f} evictions: {few_late:.3g} s"
    )
    suspended = few_run["suspended"]
    text = f"{len(suspended)} at once, worst {max(suspended):.2g} s; {many}: median {median(run['suspended']):.2g} s"
    return {
        "api_requests_per_admission": Measured(
            run["requests"], [few_run["requests"], run["requests"]], f"{many} managed Jobs, first admission"
        ),
        "mass_eviction_all_released_s": Measured(late, [few_late, late], baseline),
        "hold_release_to_suspended_s": Measured(
            median(suspended), suspended, f"{text}; spread {spread(suspended):.2g}"
        ),
    }


def evict(on: Fleet, name: str, count: int, limit_s: float, say: Say) -> dict[str, Any]:
    """Start `count` Jobs in a queue of their own, drain the queue, watch every hold to its end."""
    # Kueue's preemption of one job by another is per job; a drained queue evicts all of them in the same moment.
    on.apply(queue(name, "", cpu=100_000, borrow=0, fenced=True, namespace=NAMESPACE))
    before = on.requests()
    jobs = [f"{name}-{n}" for n in range(count)]
    on.create(job(on, one, name) for one in jobs)
    say(f"{count} Jobs are created")
    with HoldWatch(on.kube, NAMESPACE, set(jobs)) as watch:
        if not until(lambda: len(watch.started), count, f"{name}: Jobs with a running pod", limit_s, say):
            raise RuntimeError(f"only {len(watch.started)} of {count} Jobs have started")
        asked = on.requests() - before
        requests = asked.total() / count
        say(f"{count} Jobs run; {requests:.2f} requests each: {dict(asked)}; the queue is drained")
        before, began = on.requests(), time.time()
        on.stop([name], "HoldAndDrain")
        if not until(lambda: len(watch.suspended), count, f"{name}: suspended Jobs", limit_s, say):
            lost = sorted(set(jobs) - set(watch.suspended))
            raise RuntimeError(f"{len(lost)} of {count} Jobs were never suspended, the first {lost[0]}")
        took = max(watch.suspended.values()) - began
    # The policy itself lets a suspend through once the deadline has passed: then no release need be written.
    by_deadline = [one for one in jobs if one not in watch.released]
    if any(one not in watch.deadline for one in by_deadline):
        raise RuntimeError(f"a Job of {name} was suspended without a hold: is the controller down?")
    released = {one: watch.released.get(one, watch.deadline[one]) for one in jobs}
    kept = [max(0.0, watch.suspended[one] - watch.released[one]) for one in jobs if one in watch.released] or [0.0]
    found = {
        "jobs": float(count),
        "requests": requests,
        "all_released_s": max(released.values()) - began - BUDGET_S,
        "latest_s": max(released[one] - watch.deadline[one] for one in jobs),
        "by_deadline": len(by_deadline),
        "all_suspended_s": took,
        "suspended": [round(value, 3) for value in kept],
    }
    asked = on.requests() - before
    say(f"{name}: {json.dumps({**found, 'suspended': median(kept)})}; requests of the eviction: {dict(asked)}")
    return found


def job(on: Fleet, name: str, local_queue: str) -> dict[str, Any]:
    spec = TrainSpec(
        name=name,
        queue=local_queue,
        command=["true"],
        resources={"cpu": "100m"},
        checkpoint_budget_s=BUDGET_S,
    )
    made = next(item for item in render(spec, on.stage.platform) if item["kind"] == "Job")
    assert annotation(made, job_names.ANN_HOLD) == job_names.HOLD_ARMED and made["kind"] == JOB.name
    return made


ADMISSION = Group(
    "admission",
    "root, local cluster with fake nodes",
    [
        Spec("fence_admission_ratio", "", "<= 1.05", "time to admit all with our check against without, same run"),
        Spec("fence_workloads", "", ">= 15000", "on each side"),
        Spec("controller_rss_mb", "MB", "<= 300", "the controller's peak memory during it"),
        Spec("controller_cpu_cores", "cores", "<= 1", "its CPU time in the busiest 5 seconds"),
    ],
    measure_admission,
)
EVICTION = Group(
    "evictions",
    "root, local cluster with fake nodes",
    [
        Spec("api_requests_per_admission", "", "<= 3", "requests of the controller for each admitted Job"),
        Spec("mass_eviction_all_released_s", "s", "", "1,000 evictions at once: from budget to last release"),
        Spec("hold_release_to_suspended_s", "s", "<= 1", "from the release of a hold to the suspended Job"),
    ],
    measure_evictions,
)
