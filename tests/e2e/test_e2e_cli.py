"""What a person at a shell sees of a preemption, of the store and of a platform that is not as it must be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rows import Rows

from kueue_integration.resources import LOCAL_QUEUE, POD
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from proxy.protocol import names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
NAMESPACE = "cli"
QUEUE = "shell"
PROGRAM = Path(sys.executable).parent / "singularityctl"
TIMEOUT_S = 300.0
PLATFORM = (
    "API server", "feature gates", "Kueue", "Kueue config", "visibility", "chart", "store", "controller",
    "controller RBAC", "lease", "hold policy", "fence", "priority classes", "permissions",
)  # fmt: skip
"""Checks of `doctor` that do not depend on the queues and jobs of other tests."""


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, NAMESPACE, say)
    made.queue(QUEUE, {"ondemand": "50m"})
    yield made
    made.close()


class Shell:
    """singularityctl as a process of its own, with the cluster's kubeconfig."""

    def __init__(self, stage: Stage) -> None:
        self._env = {**os.environ, "KUBECONFIG": str(stage.cluster.kubeconfig), "COLUMNS": "200"}

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output; fails unless the exit code is `code`."""
        done = subprocess.run(
            [PROGRAM, *arguments], env=self._env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, output: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
            return subprocess.Popen([PROGRAM, *arguments], env=self._env, stdout=out, stderr=err)

    def doctor(self, *arguments: str, code: int) -> dict[str, dict[str, str]]:
        """Findings by name of the check."""
        return {c["name"]: c for c in json.loads(self.run("doctor", "-o", "json", *arguments, code=code))}

    def doctor_whatever_it_exits_with(self) -> dict[str, dict[str, str]]:
        done = subprocess.run(
            [PROGRAM, "doctor", "-o", "json"], env=self._env, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode in (0, 3), done.stderr
        return {c["name"]: c for c in json.loads(done.stdout)}


@pytest.fixture
def shell(stage: Stage) -> Shell:
    return Shell(stage)


def test_doctor_is_content_with_the_chart_and_says_how_to_mend_what_is_not(rows: Rows, shell: Shell) -> None:
    seen: dict[str, str] = {}

    def well() -> bool:
        seen.update({name: check["status"] for name, check in shell.doctor_whatever_it_exits_with().items()})
        return {seen.get(name) for name in PLATFORM} == {"ok"}

    # Waited for: a test before this one may have given the controller or its Lease something to recover from.
    wait_for(well, "every check of the platform is ok", TIMEOUT_S, detail=lambda: str(seen))
    bare = shell.doctor("-n", "kube-public", code=3)
    assert bare["queue"]["status"] == "fail" and "sampleQueues.namespace=kube-public" in bare["queue"]["fix"]
    rows.patch(LOCAL_QUEUE, QUEUE, {"stopPolicy": "Hold"})
    try:
        stopped = shell.doctor("-n", NAMESPACE, code=3)[f"queue {QUEUE}"]
    finally:
        rows.patch(LOCAL_QUEUE, QUEUE, {"stopPolicy": "None"})
    assert stopped["status"] == "fail" and "is stopped (stopPolicy Hold)" in stopped["message"]
    assert f"kubectl -n {NAMESPACE} patch localqueue {QUEUE}" in stopped["fix"]


@pytest.mark.full
def test_a_preemption_from_the_shell(
    stage: Stage, rows: Rows, shell: Shell, tmp_path: Path, say: Callable[[str], None]
) -> None:
    job = rows.train("watched", QUEUE)
    log = tmp_path / "follow.log"
    follower = shell.start(log, "logs", "watched", "-n", NAMESPACE, "--follow", "--all-ranks")
    try:
        job.until_steps(5)
        rows.other("urgent", QUEUE)
        job.until_ended(1)
        rows.until_admitted("urgent")
        _waits(shell)
        _checkpoints(stage, shell)
        _scraped(stage)
        rows.remove("urgent")
        job.until_attempt(2)
        last = job.finish()
        job.assert_exact(last)
        assert follower.wait(TIMEOUT_S) == 0, log.with_suffix(".err").read_text()
    finally:
        follower.kill()
        follower.wait(30)
    steps = [int(step) for step in re.findall(r"^\[rank 0\] step (\d+)$", log.read_text(), re.MULTILINE)]
    told = log.with_suffix(".err").read_text()
    say(f"followed {len(steps)} lines over {len(last.attempts)} attempts; {told or 'no gap'}")
    assert steps == sorted(set(steps)), "a line came twice or out of order"
    assert steps[0] == 0 and steps[-1] == last.step - 1
    assert len(steps) == last.step or "missing" in told, "lines are missing and nobody said so"
    shown = shell.run("status", "watched", "-n", NAMESPACE)
    assert "Succeeded" in shown and "Preempted" in shown and "Job urgent" in shown
    assert max(map(len, shown.splitlines())) <= 100


def _waits(shell: Shell) -> None:
    """Why am I waiting, who preempted me, what is missing, where do I stand."""

    def told() -> dict[str, Any] | None:
        shown: dict[str, Any] = yaml.safe_load(shell.run("status", "watched", "-n", NAMESPACE, "-o", "yaml"))
        return shown if shown["phase"] == "Preempted" and shown["queue_position"] and shown["shortages"] else None

    shown = wait_for(told, "watched waits, with its place in the queue", TIMEOUT_S)
    place = {"queue": QUEUE, "place": 1, "pending": 1, "cluster_queue_place": 1}
    assert shown["queue_position"] == place
    assert shown["shortages"] == [{"flavor": "ondemand", "resource": "cpu", "amount": "50m", "cause": "unused"}]
    preemptor = shown["attempts"][0]["preemptor"]
    assert (preemptor["job"], preemptor["queue"], preemptor["priority"]) == ("urgent", QUEUE, 1000)
    assert shown["evictions"] == {"Preempted": 1}
    for words in ("needs 50m cpu more in flavor ondemand", "place 1 of 1", "Job urgent, queue shell, priority 1000"):
        assert words in shown["message"]
    wide = shell.run("status", "-n", NAMESPACE, "-o", "wide")
    assert shown["checkpoints"][-1]["id"] in wide and shown["workload"] in wide


def _checkpoints(stage: Stage, shell: Shell) -> None:
    """The store is a path of the nodes: asked in a pod; and, as this machine is the nodes, from here."""
    (found,) = json.loads(shell.run("checkpoints", "ls", "watched", "-n", NAMESPACE, "-o", "json"))
    assert found["in_use"] and not found["problem"] and found["bytes"] > 0
    verified = shell.run("checkpoints", "verify", "watched", found["id"], "-n", NAMESPACE)
    assert "all there" in verified
    here = ("--where", "here", "--store", f"file://{stage.cluster.shared}/checkpoints", "-n", NAMESPACE)
    assert "architecture: x86_64" in shell.run("checkpoints", "show", "watched", found["id"], *here)
    kept = shell.run("checkpoints", "gc", "watched", "--yes", *here)
    assert "deleted 0 checkpoints" in kept and f"{found['id']} (in use)" in kept
    assert not stage.kube.list(POD, NAMESPACE, "app.kubernetes.io/name=singularity-store")


def _scraped(stage: Stage) -> None:
    """The controller's numbers tell of this preemption."""
    wanted = (
        r'singularity_eviction_to_barrier_seconds_count{reason="Preempted"} [1-9]',
        r'singularity_eviction_to_committed_seconds_count{reason="Preempted"} [1-9]',
        r'singularity_eviction_to_released_seconds_count{reason="Preempted"} [1-9]',
        r'singularity_admission_to_first_step_seconds_count{start="fresh"} [1-9]',
        r'singularity_queue_wait_seconds_count{queued="first"} [1-9]',
        r'singularity_attempts_total{reason="Preempted"} [1-9]',
        r'singularity_checkpoint_age_seconds{job="watched",namespace="cli"} \d',
        r'singularity_jobs{phase="Preempted"} [1-9]',
    )
    missing: list[str] = [*wanted]

    def told() -> bool:
        pods = stage.kube.list(POD, names.SYSTEM_NAMESPACE, "app.kubernetes.io/component=controller")
        addresses = [pod["status"]["podIP"] for pod in pods if (pod.get("status") or {}).get("podIP")]
        text = ""
        for address in addresses:
            with urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=30) as answer:
                text += answer.read().decode()
        missing[:] = [pattern for pattern in wanted if not re.search(rf"^{pattern}", text, re.MULTILINE)]
        return not missing

    wait_for(told, "the controller's metrics of the preemption", TIMEOUT_S, detail=lambda: f"missing: {missing}")
