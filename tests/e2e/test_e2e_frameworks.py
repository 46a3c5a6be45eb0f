"""Frameworks on a cluster, in pods without a privilege: two moves with a changed number of workers, and an export.

The packages lie on the shared volume, as a cluster's file system would have them.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from other_kinds import ctl
from rows import Rows, Training
from state_rows import restricted, train

from localcluster.config import cache_dir
from localcluster.demo.stage import Stage
from localcluster.images import rootfs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

SCRIPTS = Path(__file__).parent / "scripts"
PACKAGES = ("transformers==5.23.0", "accelerate==1.15.0", "lightning==2.6.6")
"""As in the unit tests of the adapters."""
SAMPLES, STEPS = 64, 120
"""8 steps of 8 samples in each of 15 epochs."""
APART = 1e-5
"""Of losses: another number of workers adds the same gradients in another order."""


@pytest.fixture(scope="module")
def libraries(stage: Stage, say: Callable[[str], None]) -> dict[str, str]:
    """Environment of the pods that have the frameworks. What one attempt compiles, the next one finds."""
    made = rootfs.beside_torch(cache_dir(), PACKAGES, say)
    shutil.copytree(made, stage.cluster.shared / "e2e" / "frameworks", symlinks=True, dirs_exist_ok=True)
    compiled = stage.cluster.shared / "e2e" / "compiled"
    compiled.mkdir(exist_ok=True)
    compiled.chmod(0o777)
    return {"PYTHONPATH": "/shared/e2e/frameworks", "PYTHONPYCACHEPREFIX": "/shared/e2e/compiled"}


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = restricted(stage, "frameworks", say, {"ondemand": "100m", "spot": "50m"})
    yield made
    made.close()


@pytest.fixture
def others(stage: Stage, rows: Rows, say: Callable[[str], None]) -> Iterator[Rows]:
    """Jobs of anybody, in the same queue."""
    made = Rows(stage, "frameworks-others", say)
    made.local_queue("q", rows.cluster_queue("q"))
    yield made
    made.close()


def steps(job: Training) -> list[tuple[int, list[int], float]]:
    """Of each step that was written, in order: its number, samples of all ranks, and loss."""
    noted: dict[int, list[tuple[list[int], float]]] = {}
    order: list[int] = []
    for log in sorted(job.output.glob("rank-*.log")):
        for line in log.read_text().splitlines():
            number, samples, loss = line.split()
            noted.setdefault(int(number), []).append(([int(each) for each in samples.split(",")], float(loss)))
            if log.name == "rank-0.log":
                order.append(int(number))
    return [
        (number, sorted(chain(*(samples for samples, _ in noted[number]))),
         sum(loss for _, loss in noted[number]) / len(noted[number]))
        for number in order
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("framework", ["lightning", "trainer"])
def test_two_moves_with_other_workers_lose_no_step_and_no_sample(
    rows: Rows, others: Rows, libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    script = SCRIPTS / f"train_{framework}.py"
    job = train(rows, monkeypatch, framework, script, workers=2, min_workers=1, pace=1, env=libraries)
    job.until_steps(3)
    others.other("urgent", "q", pods=2)
    job.until_attempt(2)
    others.remove("urgent")  # the quota is free again: it goes back
    job.until_attempt(3)
    export_of_the_running_job(rows, job)
    last = job.finish()
    seen = [(a.flavor, a.pods, a.ranks) for a in last.attempts]
    assert seen == [("ondemand", 2, 2), ("spot", 1, 1), ("ondemand", 2, 2)] and last.steps_lost == 0
    assert all(a.restored_from == b.checkpoint for b, a in zip(last.attempts, last.attempts[1:], strict=False))
    assert "workers are 1 and were 2" in (job.output / "inexact").read_text(), "the adapter says that sums differ"

    alone = train(rows, monkeypatch, f"{framework}-alone", script, workers=1, pace=0, env=libraries)
    alone.finish()
    moved, still = steps(job), steps(alone)
    assert [number for number, _, _ in moved] == [*range(1, STEPS + 1)] == [number for number, _, _ in still]
    assert [samples for _, samples, _ in moved] == [samples for _, samples, _ in still], "other samples in a step"
    for place in range(0, STEPS, 8):
        epoch = sorted(chain(*(samples for _, samples, _ in moved[place : place + 8])))
        assert epoch == [*range(SAMPLES)], "an epoch reads each sample once"
    far = max(abs(one[2] - other[2]) for one, other in zip(moved, still, strict=True))
    rows.say(f"{framework}: losses of {STEPS} steps are at most {far:.2e} apart")
    assert far <= APART


def export_of_the_running_job(rows: Rows, job: Training) -> None:
    """From the store, by a pod: the job goes on meanwhile."""
    saved = job.look().attempts[-1].restored_from
    assert saved is not None
    name = f"{job.output.name}/exported.safetensors"
    told = ctl(
        rows, "checkpoints", "export", job.name, saved, f"/shared/{rows.namespace}/{name}",
        "--format", "safetensors", "--only", "models",
    )  # fmt: skip
    assert f"{saved} (step " in told
    data = (job.output / "exported.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    assert int(header.pop("__metadata__")["step"]) > 0 and header
    assert len(data) == 8 + size + max(each["data_offsets"][1] for each in header.values())
    job.until(lambda status: status.attempt == 3, "the job has not moved for it")
