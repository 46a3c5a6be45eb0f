"""Backup and restore by the page's own blocks, over pods that train: a platform is lost with its jobs; then a store is.

A job goes on from the checkpoint that the backup names. What it did after that one is done again, to the step.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rows import TIMEOUT_S, Rows, Training
from shell import Shell
from shell_blocks import scripts

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import CLUSTER_QUEUE, JOB, LOCAL_QUEUE, SECRET
from kueue_integration.requests import verbs
from localcluster.addons.chart import NAMESPACE as SYSTEM
from localcluster.addons.chart import RELEASE
from localcluster.demo.stage import CHECKOUT
from localcluster.demo.wait import wait_for
from localcluster.shared_folder import STORE

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NAMESPACE = "backup"
QUEUES = {"own": {"ondemand": "100m"}}
PAGE = CHECKOUT / "docs/operations/backup.md"
OLD, NEW = f"file:///shared/{STORE}", "file:///shared/replica"

Play = Callable[[str], str]


@pytest.fixture
def play(rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Types the blocks below a heading of the page, in a folder with the chart; the chart has its values afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "charts").symlink_to(CHECKOUT / "charts")
    shell, blocks = Shell(rows.stage.cluster), scripts(PAGE.read_text(), "sh")

    def typed(heading: str) -> str:
        said = shell.type(blocks[heading].replace("OLD=NEW", f"{OLD}={NEW}"))
        rows.say(f"{heading}: {said.strip()}")
        return said

    yield typed
    if (tmp_path / "backup/values.json").exists():
        shell.type(f"helm upgrade --install {RELEASE} charts/singularity -n {SYSTEM} --values backup/values.json")
        rows.stage.look_again()


@dataclass
class Jobs:
    """One that runs and has a checkpoint, and one that waits for its quota."""

    rows: Rows
    runs: Training
    waits: Training
    done: int = 0
    """Steps that the first had done when it was lost."""

    @property
    def kept(self) -> dict[str, Any]:
        """The newest checkpoint of the first."""
        return self.runs.look().checkpoints[-1]

    def lose(self) -> None:
        """The Jobs are gone, with their pods."""
        for job in (self.runs, self.waits):
            self.rows.remove(job.name)
        self.done = len(self.runs.lines())

    def end_well(self, kept: dict[str, Any]) -> None:
        """The first goes on from checkpoint `kept`, and does again what it had done since then, with the same bits."""
        status = self.runs.until_attempt(2)
        assert status.attempts[1].restored_from == kept["id"], status
        assert status.attempts[1].first_step == kept["step"] < self.done, (status, self.done)
        self.runs.until(lambda s: s.step > self.done, "a step that it had not done before")
        self.runs.finish()
        # The script writes the line of a step after its boundary: that of the last one before the save comes twice.
        assert self.runs.repeated() == self.done - kept["step"] + 1
        self.waits.until(lambda s: s.final, "its end")
        self.waits.assert_exact(self.waits.finish())


@pytest.fixture
def jobs(rows: Rows) -> Jobs:
    runs = rows.train("runs", "own", workers=2)
    waits = rows.train("waits", "own", workers=2, args=["--steps", "40"])
    runs.until_steps()
    saved = verbs.wait(rows.kube, verbs.checkpoint(rows.kube, rows.namespace, runs.name), TIMEOUT_S)
    assert saved.state == "done", saved
    return Jobs(rows, runs, waits)


def trained_since(job: Training) -> None:
    """Ten steps more than the backup knows of."""
    seen = len(job.lines())
    wait_for(lambda: len(job.lines()) >= seen + 10, f"{job.name} trains on", TIMEOUT_S)


def test_platform_and_jobs_are_lost_and_come_back(rows: Rows, play: Play, jobs: Jobs) -> None:
    kept = jobs.kept
    keys = rows.kube.get(SECRET, SYSTEM, job_names.KEYS_SECRET)["data"]
    play("Back up")
    trained_since(jobs.runs)
    rows.say("--> the platform is lost with all of its jobs")
    shell = Shell(rows.stage.cluster)
    shell.type(f"helm uninstall {RELEASE} -n {SYSTEM} --no-hooks")
    shell.type(f"kubectl -n {SYSTEM} delete secret {job_names.KEYS_SECRET}")
    jobs.lose()
    own = rows.cluster_queue("own")
    rows.kube.delete(LOCAL_QUEUE, rows.namespace, "own")
    rows.kube.delete(CLUSTER_QUEUE, None, own)
    shell.type("kubectl wait --for=delete resourceflavor/ondemand clusterqueue/training --timeout=120s")
    wait_for(lambda: rows.kube.find(CLUSTER_QUEUE, None, own) is None, "the queue is gone", TIMEOUT_S)

    play("Restore the platform")
    assert rows.kube.get(SECRET, SYSTEM, job_names.KEYS_SECRET)["data"] == keys
    said = play("Restore the jobs")
    assert f"{rows.namespace}/runs: restored" in said and f"{rows.namespace}/waits: restored" in said
    jobs.end_well(kept)


def test_a_region_is_lost_with_its_store(rows: Rows, play: Play, jobs: Jobs) -> None:
    kept = jobs.kept
    play("Back up")
    shared = rows.stage.cluster.shared
    replica = shared / "replica"
    subprocess.run(["cp", "-a", shared / STORE, replica], check=True)
    trained_since(jobs.runs)
    jobs.lose()
    folders = [folder for folder in (shared / STORE).glob(f"**/{rows.namespace}") if folder.is_dir()]
    assert folders, "the store has a folder for the namespace"
    try:
        for folder in folders:
            shutil.rmtree(folder)
        said = play("A region is lost")
        assert f"{rows.namespace}/runs: restored" in said
        assert NEW in str(rows.kube.get(JOB, rows.namespace, "runs")["metadata"]["annotations"])
        jobs.end_well(kept)
    finally:
        jobs.lose()
        shutil.rmtree(replica, ignore_errors=True)
