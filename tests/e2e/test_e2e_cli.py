"""What a person at a shell sees of a preemption, of the store and of a platform that is not as it must be."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rows import Rows
from scrape import scrape, until_told
from shell import Shell

from kueue_integration.kube.resources import LOCAL_QUEUE, POD, Kind
from localcluster.addons import controllers
from localcluster.addons.chart import RELEASE, Chart
from localcluster.clock import Clock
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
NAMESPACE = "cli"
QUEUE = "shell"
TIMEOUT_S = 600.0
PLATFORM = (
    "API server", "feature gates", "Kueue", "Kueue config", "visibility", "chart", "store", "controller",
    "controller RBAC", "lease", "hold policy", "guard policies", "fence", "priority classes", "pod guard",
    "permissions",
)  # fmt: skip
"""Checks of `doctor` that do not depend on the queues and jobs of other tests."""


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, NAMESPACE, say)
    made.queue(QUEUE, {"ondemand": "50m"})
    yield made
    made.close()


@pytest.fixture
def shell(stage: Stage) -> Shell:
    return Shell(stage.cluster)


def test_doctor_is_content_with_the_chart_and_says_how_to_mend_what_is_not(rows: Rows, shell: Shell) -> None:
    seen: dict[str, str] = {}

    def well() -> bool:
        seen.update({name: check["status"] for name, check in shell.doctor_whatever_it_exits_with().items()})
        return {seen.get(name) for name in PLATFORM} == {"ok"}

    # Waited for: a test before this one may have given the controller or its Lease something to recover from.
    wait_for(well, "every check of the platform is ok", TIMEOUT_S, detail=lambda: str(seen))
    bare = shell.doctor("-n", "kube-public", code=3)
    assert bare["queue"]["status"] == "fail" and "no LocalQueue" in bare["queue"]["message"]
    assert '"metadata": {"name": ' in bare["queue"]["fix"] and "kubectl create -f -" in bare["queue"]["fix"]
    rows.patch(LOCAL_QUEUE, QUEUE, {"stopPolicy": "Hold"})
    try:
        stopped = shell.doctor("-n", NAMESPACE, code=3)[f"queue {QUEUE}"]
    finally:
        rows.patch(LOCAL_QUEUE, QUEUE, {"stopPolicy": "None"})
    assert stopped["status"] == "fail" and "is stopped (stopPolicy Hold)" in stopped["message"]
    assert f"kubectl -n {NAMESPACE} patch localqueue {QUEUE}" in stopped["fix"]


def test_helm_test_runs_doctor_inside_the_cluster(stage: Stage, rows: Rows, say: Callable[[str], None]) -> None:
    found = controllers.find(stage.cluster.name, Clock(say))
    told = Chart(found.config, found.binaries, found.kubectl, found.config.root).helm("test", RELEASE, "--logs")
    assert re.search(r"\d+ checks: 0 failed, 0 warnings", told), told
    role = Kind("ClusterRole", "rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False)
    assert rows.kube.find(role, None, "singularity-doctor") is None, "what may read stays for the test only"


@pytest.mark.full
def test_a_preemption_from_the_shell(
    stage: Stage, rows: Rows, shell: Shell, tmp_path: Path, say: Callable[[str], None]
) -> None:
    before = scrape(rows.kube)
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
        (saved,) = job.look().checkpoints
        numbers = scrape(rows.kube)
        assert numbers["singularity_jobs", "Preempted"] >= 1
        age = numbers["singularity_checkpoint_age_seconds", f"watched/{NAMESPACE}"]
        assert age == pytest.approx(time.time() - saved["committed_at"], abs=5)
        rows.remove("urgent")
        job.until_attempt(2)
        last = job.finish()
        job.assert_exact(last)
        assert follower.wait(TIMEOUT_S) == 0, log.with_suffix(".err").read_text()
    finally:
        follower.kill()
        follower.wait(30)
    until_told(rows.kube, before, last)
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


@pytest.mark.full
def test_the_commands_of_the_runbooks_run(stage: Stage, rows: Rows, shell: Shell) -> None:
    """Each line of each shell block, with a job and a namespace of this cluster in the place of the reader's."""
    job = rows.train("digits", QUEUE)
    job.until_steps(3)
    shell.run("checkpoint", "digits", "-n", NAMESPACE, "--wait")
    page = (Path(__file__).parents[2] / "docs/operations/runbooks.md").read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(lines) > 20
    for line in dict.fromkeys(lines):
        shell.type(line if " -n " in line else f"{line} -n {NAMESPACE}", codes=(0, 3) if "doctor" in line else (0,))
