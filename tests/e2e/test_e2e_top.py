"""`singularityctl top` on a real Kueue: two queues of a cohort, a training job that borrows, a Job that waits.

The flavor has a price, the job's class a promise, and the policy cordon a dry run.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Faults
from planning import LIMITS, SOON
from rows import Rows, places
from shell import Shell

from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1200)]
NAMESPACE = "top"
TIMEOUT_S = 600.0
PRICE, PROMISE = 3.6, 0.25
USUAL = {
    **LIMITS, "planner__prices__ondemand": 0, "planner__slaTiers__tiers__low": 0, "planner__cordon__mode": "none",
}  # fmt: skip


@pytest.fixture
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, NAMESPACE, say)
    made.queue("mine", {"ondemand": "50m"}, cohort="lab")
    made.queue("theirs", {"ondemand": "50m"}, cohort="lab")
    yield made
    made.close()


def test_the_cluster_at_a_glance(stage: Stage, rows: Rows, faults: Faults, tmp_path: Path) -> None:
    shell = Shell(stage.cluster)
    faults.upgrade(
        **SOON, planner__prices__ondemand=PRICE, planner__slaTiers__tiers__low=PROMISE, planner__cordon__mode="propose",
    )  # fmt: skip
    job = rows.train("holds", "mine", cpu="100m")
    job.until_steps(5)
    rows.other("waits", "theirs", cpu="50m")
    report = wait_for(lambda: _complete(shell), "Kueue says why the Job waits, and its place", TIMEOUT_S)
    (holder,), (waiter,) = report["holders"], report["waiting"]
    assert (holder["owner"], holder["training"], holder["phase"], holder["pods"]) == ("holds", True, "Running", 1)
    assert holder["holds"] == [{"flavor": "ondemand", "resource": "cpu", "amount": "100m"}]
    assert (waiter["owner"], waiter["training"], waiter["asks"]) == ("waits", False, {"cpu": "50m"})
    assert waiter["cluster_queue"] == rows.cluster_queue("theirs") and waiter["place"]["cluster_queue_place"] == 1
    assert waiter["needs"].startswith("needs 50m cpu more in flavor ondemand")
    assert _quota(report, rows.cluster_queue("mine")) == ("50m", "50m", "100m", "0", "0")
    assert _quota(report, rows.cluster_queue("theirs")) == ("50m", "0", "0", "50m", "0"), "its quota is lent"
    assert _quota(report, f"{NAMESPACE}-lab") == ("100m", "0", "100m", "0", "0")
    assert report["goodput"]["goodput"] > 0 and report["goodput"]["steps"] >= 5
    assert report["goodput"]["cost"] == pytest.approx(PRICE * report["goodput"]["held_s"] / 3600, rel=0.05)
    assert report["notes"] == [] and report["unreadable"] == []
    (node,) = places(job)
    faults.kubectl("cordon", node)
    shown = wait_for(lambda: _policies(shell), "a dry run, and a share of device time that can be measured", TIMEOUT_S)
    (proposal,) = [line for line in _lines(shown, "PLANNER") if line.startswith("holds")]
    assert "dry run" in proposal and f"cordon: checkpoint of {NAMESPACE}/holds: node {node}" in proposal, shown
    (tenant,) = [line.split() for line in _lines(shown, "DEVICE TIME OF") if line.startswith(NAMESPACE)]
    assert tenant[:3] == [NAMESPACE, "mine", "1"] and tenant[5] == f"{PROMISE:.1%}", shown
    costs = [line.split("  ")[0] for line in _lines(shown, "COST")]
    assert costs == ["all", f"queue {rows.cluster_queue('mine')}", f"namespace {NAMESPACE}"], shown
    faults.uncordon_all()
    _whole_cluster(shell, rows)
    _watched(shell, tmp_path / "watch.log")


def _complete(shell: Shell) -> dict[str, Any] | None:
    """The report of the namespace, once Kueue has reported all of it."""
    report: dict[str, Any] = json.loads(shell.run("top", "-n", NAMESPACE, "-o", "json"))
    waiting = report["waiting"]
    return report if waiting and waiting[0]["needs"] and waiting[0]["place"] else None


def _policies(shell: Shell) -> str | None:
    """The text for the namespace, once it has all that the planner's settings bring."""
    shown = shell.run("top", "-n", NAMESPACE)
    return shown if "PLANNER" in shown and "DEVICE TIME OF" in shown else None


def _lines(shown: str, head: str) -> list[str]:
    """Of the table with this head."""
    return shown[shown.index(head) :].partition("\n\n")[0].splitlines()[1:]


def _quota(report: dict[str, Any], name: str) -> tuple[str, ...]:
    (line,) = [line for line in report["quota"] if line["name"] == name]
    return tuple(line[key] for key in ("nominal", "borrowed", "used", "free", "available"))


def _whole_cluster(shell: Shell, rows: Rows) -> None:
    """The same without a namespace, where Workloads of all namespaces are added up; and as text."""
    own = rows.cluster_queue("mine")
    report = json.loads(shell.run("top", "-q", own, "-o", "json"))
    assert _quota(report, own) == ("50m", "50m", "100m", "0", "0")
    assert [h["owner"] for h in report["holders"]] == ["holds"] and report["waiting"] == []
    shown = shell.run("top")
    assert max(map(len, shown.splitlines())) <= 120
    for words in ("QUOTA", "HOLDS QUOTA", "WAITS", "GOODPUT", f"cohort {NAMESPACE}-lab", f"namespace {NAMESPACE}"):
        assert words in shown
    refused = shell.run("top", "-q", "nobody", code=2)
    assert refused == ""


def _watched(shell: Shell, log: Path) -> None:
    """Plain reports after each other in a file, until Ctrl-C."""
    watcher = shell.start(log, "top", "-n", NAMESPACE, "--watch", "1")
    try:
        wait_for(lambda: log.read_text().count("HOLDS QUOTA") >= 2, "two reports", TIMEOUT_S)
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(60) == 0, log.with_suffix(".err").read_text()
    finally:
        watcher.kill()
        watcher.wait(30)
    assert "\x1b" not in log.read_text()
