"""Programs that hold locks go through every way to move and never begin again: two ranks, two pods, one, two, one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rows import CPU, TIMEOUT_S, Rows, Training
from shell import Shell

from kueue_integration.jobs import lifecycle
from kueue_integration.kube.resources import CLUSTER_QUEUE
from kueue_integration.spec.train_spec import TrainSpec
from localcluster.config import cache_dir
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from localcluster.images import rootfs
from localcluster.images.rootfs import TORCH_MOUNT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
SCRIPTS = Path(__file__).parent / "scripts"
NAMESPACE = "held"
PACKAGES = ("h5py==3.16.0", "distributed==2026.8.0")
RANKS = 2


@pytest.fixture(scope="module")
def libraries(stage: Stage, say: Callable[[str], None]) -> str:
    """PYTHONPATH of h5py and dask, as the pods see it."""
    made = rootfs.beside_torch(cache_dir(), PACKAGES, say)
    shutil.copytree(made, stage.cluster.shared / "e2e" / NAMESPACE, symlinks=True, dirs_exist_ok=True)
    return f"/shared/e2e/{NAMESPACE}:{TORCH_MOUNT}"


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, NAMESPACE, say)
    yield made
    made.close()


class Held:
    """A program with two ranks, each of which writes lines: number, value, when."""

    def __init__(self, rows: Rows, name: str, script: str, libraries: str = "") -> None:
        self.rows, self.name = rows, name
        rows.queue(self.name, {"ondemand": "100m", "spot": "100m"})
        folder = Path(NAMESPACE) / f"{self.name}-{time.time_ns()}"
        output = rows.stage.cluster.shared / folder
        output.mkdir(parents=True)
        output.chmod(0o777)
        spec = TrainSpec(
            name=self.name,
            namespace=NAMESPACE,
            queue=self.name,
            command=["python3", script],
            files={script: (SCRIPTS / script).read_text()},
            env={"OUTPUT": f"/shared/{folder}", **({"PYTHONPATH": libraries} if libraries else {})},
            workers=RANKS,
            min_workers=1,
            world_size=RANKS,
            resources={"cpu": CPU},
            checkpoint_budget_s=600,
        )
        lifecycle.submit(rows.kube, spec, rows.stage.platform)
        self.job = Training(rows, spec, output)

    def lines(self, rank: int) -> list[list[str]]:
        """Without one that is being written."""
        try:
            text = (self.job.output / f"lines-{rank}").read_text()
        except FileNotFoundError:
            return []
        return [line.split() for line in text.split("\n")[:-1]]

    def goes_on(self, attempt: int, pods: int) -> None:
        """It runs as that attempt, in so many pods, each rank has gone on, and no line is missing or came twice."""
        status = self.job.until(
            lambda s: s.attempt >= attempt and s.attempts[-1].running_at and not s.attempts[-1].ended_by,
            f"attempt {attempt}",
        )
        assert [a.pods for a in status.attempts][attempt - 1] == pods
        at = [len(self.lines(rank)) for rank in range(RANKS)]
        for rank in range(RANKS):
            wait_for(lambda r=rank: len(self.lines(r)) >= at[r] + 5, f"lines of rank {rank}", TIMEOUT_S)  # type: ignore[misc]
            numbers = [int(words[0]) for words in self.lines(rank)]
            assert numbers == list(range(len(numbers))), f"rank {rank}: a line is missing, or came twice"

    def verb(self, verb: str, *arguments: str) -> None:
        said = Shell(self.rows.stage.cluster).run(
            verb, self.name, *arguments, "--wait", "--timeout", "240", "-n", NAMESPACE
        )
        assert "done" in said, said

    def quota(self, cpus: str) -> None:
        """Of flavor spot."""
        name = self.rows.cluster_queue(self.name)
        groups = self.rows.kube.get(CLUSTER_QUEUE, None, name)["spec"]["resourceGroups"]
        for flavor in groups[0]["flavors"]:
            if flavor["name"] == "spot":
                flavor["resources"][0]["nominalQuota"] = cpus
        self.rows.patch(CLUSTER_QUEUE, name, {"resourceGroups": groups})

    def ends(self, *ended_by: str) -> list[set[str]]:
        """What each rank has seen, once the program has ended by itself."""
        last = self.job.finish()
        assert [a.ended_by for a in last.attempts] == [*ended_by, "Finished"]
        for before, after in zip(last.attempts, last.attempts[1:], strict=False):
            assert after.restored_from == before.checkpoint is not None
        return [{words[1] for words in self.lines(rank)} for rank in range(RANKS)]


ALL_THERE = '["FLOCK","POSIX",true,true,true,true]'


def test_a_program_with_locks_watch_timer_and_helper_moves_pauses_and_becomes_smaller(rows: Rows) -> None:
    held = Held(rows, "locks", "holds_locks.py")
    held.goes_on(1, pods=2)
    held.verb("pause")
    held.verb("resume")
    held.goes_on(2, pods=2)
    held.verb("resize", "--workers", "1")
    held.goes_on(3, pods=1)  # two pods' files of one name, in one
    assert held.ends("Paused", "Resized") == [{ALL_THERE}, {ALL_THERE}]


@pytest.mark.full
@pytest.mark.parametrize("script", ["holds_locks.py", "train_h5py.py", "dask_cluster.py"])
def test_programs_with_locks_go_through_every_verb_and_regrowth(
    rows: Rows, request: pytest.FixtureRequest, script: str
) -> None:
    libraries = "" if script == "holds_locks.py" else request.getfixturevalue("libraries")
    held = Held(rows, f"every-{script[:4]}", script, libraries)
    held.goes_on(1, pods=2)
    held.verb("migrate", "--flavor", "spot")
    held.goes_on(2, pods=2)
    held.verb("pause")
    held.quota("50m")
    held.verb("resume")
    held.goes_on(3, pods=1)
    held.quota("100m")  # nobody asks for anything
    held.goes_on(4, pods=2)
    held.verb("resize", "--workers", "1")
    held.goes_on(5, pods=1)
    seen = held.ends("Migrated", "Paused", "Regrown", "Resized")
    if script == "holds_locks.py":
        assert seen == [{ALL_THERE}, {ALL_THERE}]
