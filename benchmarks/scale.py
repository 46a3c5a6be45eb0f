"""Thousands of Workloads: what the fence costs Kueue's admission, and a thousand evictions at once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from kueue_integration.manifests import render
from kueue_integration.resources import JOB, annotation
from kueue_integration.spec import TrainSpec
from localcluster.demo.stage import NAMESPACE
from proxy.protocol import names

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


# --- admission -------------------------------------------------------------------------------------------
def measure_admission(options: Options, say: Say) -> Mapping[str, Measured]:
    """`total` Workloads with the fence and as many without, in pieces that take turns."""
    total = options.workloads or (WORKLOADS // 10 if options.quick else WORKLOADS)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with fleet(NODES // 10 if options.quick else NODES, say) as on, Usage(on.controller_pid()) as usage:
        before = on.requests()
        for number, fenced in enumerate((False, True, True, False)):
            seconds[fenced].append(admit(on, f"piece-{number}", total // 2, fenced, say))
        asked = (on.requests() - before) / (total // 2 * 2)
    pairs = [list(pair) for pair in zip(seconds[True], seconds[False], strict=True)]
    ratio = median_ratio([(with_it, without) for with_it, without in pairs])
    rate = total / sum(seconds[False])
    size = f"{total} Workloads on each side, {COHORTS} x {QUEUES} queues"
    return {
        "fence_admission_ratio": Measured(ratio, pairs, f"the same queues without the check ({rate:.0f}/s); {size}"),
        "fence_workloads": Measured(float(total), [total], f"Kueue's own benchmark has {WORKLOADS}"),
        "controller_rss_mb": Measured(usage.peak_mb, [usage.peak_mb], f"peak, with {4 * (total // 2)} Workloads"),
        "controller_cpu_cores": Measured(
            max(usage.cores), usage.cores, f"busiest 5 s; median {median(usage.cores):.2g}; {asked:.2g} requests each"
        ),
    }


def admit(on: Fleet, piece: str, count: int, fenced: bool, say: Say) -> float:
    """Seconds from opening the queues until the last of `count` Workloads was admitted."""
    on.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": piece}}])
    queues = [f"{piece}-{n}" for n in range(COHORTS * QUEUES)]
    made: list[dict[str, Any]] = []
    for n, name in enumerate(queues):
        made += queue(name, f"{piece}-{n // QUEUES}", cpu=20, borrow=100, fenced=fenced, namespace=piece)
    for item in made[::2]:
        item["spec"]["stopPolicy"] = "Hold"
    on.apply(made)
    began = time.monotonic()
    on.create(workload(piece, n, queues[n % len(queues)]) for n in range(count))
    say(f"{piece} ({'fence' if fenced else 'no check'}): {count} Workloads created in {time.monotonic() - began:.0f} s")
    with Finisher(on.kube, piece) as finisher:
        began = time.monotonic()
        on.stop(queues, "None")
        until(lambda: len(finisher.admitted) >= count, f"{count} admissions", LIMIT_S)
        taken = max(finisher.admitted.values()) - began
        until(lambda: len(finisher.finished) >= count, f"{count} ends", LIMIT_S)
    say(f"{piece}: admitted in {taken:.1f} s")
    return taken


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
    many = EVICTIONS // 10 if options.quick else EVICTIONS
    with fleet(NODES // 10 if options.quick else NODES, say) as on:
        few_run = evict(on, "few", max(10, many // 10), say)
        run = evict(on, "many", many, say)
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


def evict(on: Fleet, name: str, count: int, say: Say) -> dict[str, Any]:
    """Start `count` Jobs in a queue of their own, drain the queue, watch every hold to its end."""
    # Kueue's preemption of one job by another is per job; a drained queue evicts all of them in the same moment.
    on.apply(queue(name, "", cpu=100_000, borrow=0, fenced=True, namespace=NAMESPACE))
    before = on.requests()
    jobs = [f"{name}-{n}" for n in range(count)]
    on.create(job(on, one, name) for one in jobs)
    say(f"{count} Jobs are created")
    with HoldWatch(on.kube, NAMESPACE, set(jobs)) as watch:
        until(lambda: len(watch.started) >= count, f"{count} Jobs with a running pod", LIMIT_S)
        requests = (on.requests() - before) / count
        say(f"{count} Jobs run; {requests:.2f} requests each; the queue is drained")
        began = time.time()
        on.stop([name], "HoldAndDrain")
        until(lambda: len(watch.suspended) >= count, f"{count} suspended Jobs", LIMIT_S)
        took = max(watch.suspended.values()) - began
    # The policy itself lets a suspend through once the deadline has passed: then no release need be written.
    by_deadline = [one for one in jobs if one not in watch.released]
    if any(one not in watch.deadline for one in by_deadline):
        raise RuntimeError(f"a Job of {name} was suspended without a hold: is the controller down?")
    released = {one: watch.released.get(one, watch.deadline[one]) for one in jobs}
    kept = [max(0.0, watch.suspended[one] - watch.released[one]) for one in jobs if one in watch.released]
    found = {
        "jobs": float(count),
        "requests": requests,
        "all_released_s": max(released.values()) - began - BUDGET_S,
        "latest_s": max(released[one] - watch.deadline[one] for one in jobs),
        "by_deadline": len(by_deadline),
        "all_suspended_s": took,
        "suspended": [round(value, 3) for value in kept],
    }
    say(f"{name}: {json.dumps({**found, 'suspended': median(kept)})}")
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
    assert annotation(made, names.ANN_HOLD) == names.HOLD_ARMED and made["kind"] == JOB.name
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
