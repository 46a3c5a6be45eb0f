"""One replay with the real controller: the cluster, the chart's values, the play, and its file."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kueue_integration.contract import job_names
from kueue_integration.errors import JobNotFoundError, KubeError
from kueue_integration.jobs import lifecycle
from kueue_integration.jobs.status import describe
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import EVENT, POD
from localcluster.addons.chart import Chart
from localcluster.config import cache_dir
from localcluster.demo.wait import wait_for
from localcluster.images import gobuild

from ...fleet import Fleet, fleet, give_cpu
from .. import twin
from ..active import Active
from ..model import Job
from ..outcome import EndlessError, Outcome
from ..replay import Plan, until_over
from . import fit, objects, scale
from .favour import favour
from .line import Lines
from .player import Player
from .scale import Planned
from .stays import reasons

Say = Callable[[str], None]
READY_S = 180.0


@dataclass(frozen=True)
class Played:
    """:param trouble: why not all jobs are done, "" if they are
    :param took_s: real seconds
    :param load: the machine's, now and then
    :param acted: what the planner has done, by policy, as its Events say
    :param ended: how attempts have ended, as the jobs' records say
    """

    player: Player
    trouble: str
    took_s: float
    load: Sequence[float]
    acted: Mapping[str, int]
    ended: Mapping[str, int]


def replay(made: Plan, planned: Planned, limit_s: float, output: Path, say: Say) -> Played:
    """Play the plan on a cluster of its own, for at most `limit_s` real seconds.

    :raises LocalClusterError, RuntimeError: no cluster
    """
    jobs, costs = scale.jobs(made.jobs, made.compress), scale.costs(made.costs, made.compress)
    with fleet(0, say) as on, tempfile.TemporaryDirectory() as folder:
        on.apply(objects.cluster_objects(made.cluster))
        on.create(objects.nodes(made.cluster))
        address = _settle(on, planned, say)
        platform = on.stage.platform
        lines = Lines(str(on.config.kubeconfig), platform, address, Path(folder))

        def submit(job: Job) -> None:
            lifecycle.submit(on.kube, objects.spec(job, "none"), platform)

        with Player(on.kube, jobs, costs, submit, lines.open, made.compress, platform.store) as player:
            trouble, took_s, load = _until_over(player, limit_s, say)
        _save_log(on, output / f"replay-{planned.name}.log", say)
        return Played(player, trouble, took_s, load, acted(on.kube), _ended(on.kube, jobs))


def _settle(on: Fleet, planned: Planned, say: Say) -> str:
    """Give the controller its settings; the address of its only pod, to which all lines go."""
    values = {**scale.chart_values(planned), "replicas": 1}
    say(f"values of the chart: {values}")
    binaries = gobuild.build_all(cache_dir(), say)
    Chart(on.config, binaries, on.kubectl, on.config.root).upgrade(**values)

    def alone() -> str | None:
        pods = [pod for pod in on.kube.list(POD, job_names.SYSTEM_NAMESPACE) if pod["status"].get("podIP")]
        return str(pods[0]["status"]["podIP"]) if len(pods) == 1 else None

    address = wait_for(alone, "the controller with the old settings is gone", READY_S)
    give_cpu(on.controller_pid())
    say(f"first on this machine: {', '.join(favour(on.config.root)) or 'nobody'}")
    return address


def _until_over(player: Player, limit_s: float, say: Say) -> tuple[str, float, list[float]]:
    began, load = time.monotonic(), list[float]()

    def tell() -> int:
        done, every = len(player.stays.finished_at), len(player.jobs)
        load.append(round(os.getloadavg()[0], 1))
        say(
            f"{time.monotonic() - began:.0f} s: {done} of {every} jobs done, {player.running()} train; "
            f"evictions {reasons(player.stays.of) or 'none'}; load {load[-1]}"
        )
        return every - done

    trouble = until_over(player.over, limit_s, tell)
    if player.trouble or trouble:
        say(f"the replay ends early: {player.trouble or trouble}")
    return player.trouble or trouble, time.monotonic() - began, load


def _save_log(on: Fleet, path: Path, say: Say) -> None:
    """The controller's words, kept beside the figures: they say what was refused, and why."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        names = [str(pod["metadata"]["name"]) for pod in on.kube.list(POD, job_names.SYSTEM_NAMESPACE)]
        lines = on.kube.pod_logs(job_names.SYSTEM_NAMESPACE, names[0], "controller", timeout_s=60) if names else ()
        path.write_text("".join(f"{line}\n" for line in lines))
    except KubeError as error:
        say(f"no log of the controller: {error}")


def acted(kube: Kube) -> dict[str, int]:
    """How often each policy has acted, regrowth included."""
    events = kube.list(EVENT, None, job_names.LABEL_PLANNER)
    names = [str(one["metadata"]["labels"][job_names.LABEL_PLANNER]) for one in events if _done(str(one["reason"]))]
    return dict(sorted(Counter(names).items()))


def _done(reason: str) -> bool:
    return reason == job_names.EVENT_PLANNER_DONE


def _ended(kube: Kube, jobs: Sequence[Job]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for job in jobs:
        try:
            status = describe(kube, objects.namespace(job.tenant), f"job-{job.id}")
        except (JobNotFoundError, KubeError):
            continue  # it has not come
        found.update(str(record.ended_by) for record in status.attempts)
    return dict(sorted(found.items()))


def expected(made: Plan, planned: Planned, found: fit.Measured, jobs: Sequence[Job] = ()) -> Outcome:
    """:param jobs: as they have arrived, if they have

    :raises EndlessError: they preempt each other for ever
    """
    jobs, costs = jobs or scale.jobs(made.jobs, made.compress), scale.costs(made.costs, made.compress)
    return fit.simulated(made.cluster, jobs, costs, found, planned)


def write(output: Path, played: Played, made: Plan, planned: Planned) -> Mapping[str, object]:
    """Simulate, compare, and write replay-POLICIES.json. Without all jobs of both there is no comparison.

    :raises OSError: it cannot be written
    """
    player, jobs = played.player, scale.jobs(made.jobs, made.compress)
    found, jobs = fit.measured(jobs, player.told, player.stays), fit.arrivals(jobs, player.stays)
    real, trouble = fit.books(jobs, player.told, player.stays), played.trouble
    theirs, allowed = list[Active](), dict[str, int]()
    try:
        outcome = expected(made, planned, found, jobs)
        theirs, allowed = [*outcome.jobs], dict(outcome.allowed)
    except EndlessError as error:
        trouble = trouble or f"the simulator has no end: {error}"
    result: dict[str, object] = {
        "asked": {**made.asked, "policies": planned.name},
        "values": scale.chart_values(planned),
        "not_compressed": {"settings": [*planned.kept], "constants_s": {**scale.CONSTANTS}},
        "took_s": round(played.took_s, 1),
        "load": played.load,
        "trouble": trouble,
        "kubernetes_s": asdict(found),
        "simulated_costs_s": asdict(fit.with_kubernetes(scale.costs(made.costs, made.compress), found)),
        "repeated_work_s": round(fit.repeated_s(player.told), 3),
        "evictions_by_reason": reasons(player.stays.of),
        "attempts_ended": played.ended,
        "acted": {"real": played.acted, "simulated": allowed},
        "real": None if played.trouble else fit.figures(real, made.compress),
        "simulated": fit.figures(theirs, made.compress) if theirs else None,
        "agreement": None if trouble else asdict(twin.agreement(real, theirs)),
    }
    output.mkdir(parents=True, exist_ok=True)
    rows = {side: [_row(one) for one in some] for side, some in (("real", real), ("simulated", theirs))}
    more = {"jobs": rows, "attempts": [asdict(one) for one in player.told]}
    (output / f"replay-{planned.name}.json").write_text(json.dumps({**result, **more}, indent=1) + "\n")
    return result


def _row(active: Active) -> Mapping[str, object]:
    """Seconds as they were played."""
    job = active.job
    return {
        "job": job.id, "tenant": job.tenant, "workers": job.workers, "arrival_s": round(job.arrival_s, 2),
        "work_s": round(job.work_s, 2), "first_s": active.first_admitted, "finished_s": active.finished_at,
        "preemptions": active.preempted, "moves": len(active.moves),
    }  # fmt: skip
