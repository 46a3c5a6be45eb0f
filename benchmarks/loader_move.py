"""The move of an ordinary script with persistent loader workers: how long, how much memory before and after, a picture.

Two ranks on two pods. Each has two workers for training and two for validation, which live as long as the rank. The
move is that of `move_small_s`: a Job of high priority takes the quota, and gives it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kueue_integration.cli import trace_svg
from kueue_integration.contract import job_names
from kueue_integration.jobs import move_trace
from kueue_integration.jobs.status import JobStatus
from kueue_integration.kube.resources import POD, Object
from kueue_integration.spec.train_spec import TrainSpec
from localcluster.addons.chart import SHARED_MOUNT
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.story import QUEUE

from .model import Group, Measured, Options, Say, Spec
from .move_small import CPU, PODS, once, until_trains
from .preemption import stage
from .session import pss_kb
from .stats import median

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "e2e" / "scripts" / "train_loader.py"
PICTURE = ROOT / "build" / "bench" / "loader_move.svg"
LAUNCHER = "_singularity.launcher"
"""The module that pid 1 of a training container runs: its memory is not the job's."""
EPOCH = 20
"""Steps of a rank, after which the workers for validation are there."""


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    with stage(say) as on:
        return of_runs([one(on, f"loader-{number}", say) for number in range(1 if options.quick else 5)])


def one(on: Stage, name: str, say: Say) -> dict[str, Any]:
    """One move there and back. The picture is of the last one."""
    folder = on.cluster.shared / name
    folder.mkdir(parents=True)
    folder.chmod(0o777)

    def look(status: JobStatus) -> dict[str, Any]:
        settled = until_trains(on, name, status.attempt, EPOCH + 10)
        if settled.attempt > 1:
            draw(settled)
        pids = list(of_ranks(on.kube.list(POD, NAMESPACE, f"{job_names.LABEL_JOB}={name}")))
        return {"mb": round(pss_kb(pids) / 1000, 1), "processes": len(pids)}

    return once(on, spec(name), say, look)


def spec(name: str) -> TrainSpec:
    return TrainSpec(
        name=name, queue=QUEUE, command=["python3", SCRIPT.name, "--output", f"{SHARED_MOUNT}/{name}"],
        files={SCRIPT.name: SCRIPT.read_text()}, workers=PODS, priority_class="low", resources={"cpu": CPU},
    )  # fmt: skip


def of_ranks(pods: Iterable[Object], proc: Path = Path("/proc")) -> Iterator[int]:
    """Process ids in the training containers, without the launchers. All nodes are processes of this machine."""
    statuses = [status for pod in pods for status in pod.get("status", {}).get("containerStatuses", ())]
    ids = [s["containerID"].rpartition("/")[2] for s in statuses if s["name"] == job_names.CONTAINER_TRAIN]
    for entry in proc.glob("[0-9]*"):
        try:
            group, words = (entry / "cgroup").read_text(), (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if LAUNCHER not in words.split("\0") and any(each in group for each in ids):
            yield int(entry.name)


def draw(status: JobStatus) -> None:
    """The trace of its first move."""
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    first = move_trace.moves(status.attempts, status.phases)[:1]
    PICTURE.write_text(trace_svg.picture(f"{status.namespace}/{status.name}", first))


def of_runs(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Measured]:
    leave, come = median(run["leave_s"] for run in runs), median(run["come_s"] for run in runs)
    before, after = (median(run[when]["mb"] for run in runs) for when in ("before", "after"))
    count = [runs[-1][when]["processes"] for when in ("before", "after")]
    size = median(run["gb"] for run in runs)
    memory = f"{after:.0f} MB in {count[1]} processes after the move, {before:.0f} MB in {count[0]} before"
    text = f"evicted to quota free {leave:.3g} s, admitted to first step {come:.3g} s; {size:.2g} GB of images"
    ratio = median(run["after"]["mb"] / run["before"]["mb"] for run in runs)
    return {
        "loader_move_s": Measured(max(leave, come), list(runs), f"{text}; {memory}; {runs[-1]['longest']}"),
        "loader_move_rss_x": Measured(ratio, list(runs), memory),
    }


GROUP = Group(
    "loader move",
    "root, local cluster",
    [
        Spec("loader_move_s", "s", "<= 8", "persistent loader workers: the longer of leaving and coming back"),
        Spec("loader_move_rss_x", "x", "<= 1.1", "memory of its ranks' processes after that move, against before"),
    ],
    measure,
)
