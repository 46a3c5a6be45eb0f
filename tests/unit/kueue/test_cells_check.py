"""The promise of affinity cells, checked from history: private cells played out again, and the commands."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from cells_scene import HOST, LEVELS, RACK, TEXT, hall
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from overview_scene import NOW, cluster_queue, local_queue, record, training, workload

from kueue_integration import cli
from kueue_integration.cells.binding import LABEL
from kueue_integration.cells.replay import Machine, Request, verdicts
from kueue_integration.cli import cells as command
from kueue_integration.errors import Forbidden, SpecError
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import NODE, POD, Object
from kueue_integration.manifests.pod_placement import REQUIRED_TOPOLOGY

GPU = "nvidia.com/gpu"
MACHINES = [
    Machine(name, {RACK: name[0], HOST: name}, {GPU: Fraction(8)}) for name in ("a0", "a1", "b0", "b1")
]  # fmt: skip


def request(job: str, queued: float, admitted: float | None, ended: float | None = None, **more: Any) -> Request:
    values: dict[str, Any] = {"pods": 2, "asks": {GPU: Fraction(8)}, "level": RACK, **more}
    return Request(job, queued, admitted, ended, **values)


def later(*requests: Request, now: float = 1000.0) -> dict[str, tuple[float | None, float]]:
    return {v.request.job: (v.private, v.later_s) for v in verdicts(requests, MACHINES, (RACK, HOST), now)}


def test_a_job_that_waited_for_others_than_its_own_tenant_is_late():
    assert later(request("a", 0, 0, 500), request("b", 10, 300, 500)) == {"a": (0, 0.0), "b": (10, 290.0)}
    assert later(request("a", 100, None)) == {"a": (100, 900.0)}, "it waits still"


def test_a_job_that_would_have_waited_in_private_too_is_not():
    first, second, third = request("a", 0, 0, 500), request("b", 0, 0, 400), request("c", 10, 400)
    assert later(first, second, third)["c"] == (400, 0.0)
    small = request("d", 10, 410, 500, pods=1, asks={GPU: Fraction(1)})
    assert later(first, second, small)["d"] == (400, 10.0)


def test_requests_without_a_topology_take_nodes_too():
    spread = [request(f"s{n}", 0, 0, 200, pods=1, level="") for n in range(3)]
    assert later(*spread, request("a", 10, 200)) == {"a": (200, 0.0)}


def test_no_job_runs_twice_at_once_in_private_cells():
    again = [request("a", 0, 50, 150), request("a", 150, 160, 200), request("b", 0, 0, 10), request("c", 0, 0, 10)]
    told = [v.private for v in verdicts(again, MACHINES[:2], (RACK, HOST), 1000.0) if v.request.job == "a"]
    assert told[0] == 0 and told[1] == 150


def test_what_no_empty_cells_could_hold_has_no_promise():
    (told,) = verdicts([request("a", 0, 10, pods=3)], MACHINES, (RACK, HOST), 1000.0)
    assert (told.fits, told.private, told.later_s) == (False, None, 0.0)
    with pytest.raises(SpecError, match="is no level of the cells"):
        later(request("a", 0, 10, level="example.com/hall"))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=8))
def test_a_private_cluster_replayed_on_itself_is_never_late(asked: list[tuple[int, int, int]]):
    """What the replay itself admits is on time: replaying it changes nothing."""
    wanted = [request(f"j{n}", float(at), 0.0, float(runs), pods=pods) for n, (at, runs, pods) in enumerate(asked)]
    once = {v.request.job: v for v in verdicts(wanted, MACHINES, (RACK, HOST), 1e6)}
    real = [
        request(f"j{n}", float(at), once[f"j{n}"].private, (once[f"j{n}"].private or 0.0) + runs, pods=pods)
        for n, (at, runs, pods) in enumerate(asked)
        if once[f"j{n}"].private is not None
    ]  # fmt: skip
    assert all(v.later_s == 0 for v in verdicts(real, MACHINES, (RACK, HOST), 1e6))
    assert all(v.fits == (v.request.pods <= 2) for v in once.values())


# --- at a shell -----------------------------------------------------------------------------------------------------
def bound_job(name: str, queued: float, admitted: float, **more: Any) -> Object:
    made = training(name, [record(1, queued_at=queued, admitted_at=admitted, pods=2)], queue="vision", **more)
    pod = {"containers": [{"name": "train", "resources": {"requests": {GPU: "8"}}}]}
    made["spec"]["template"] = {"metadata": {"annotations": {REQUIRED_TOPOLOGY: RACK}}, "spec": pod}
    return made


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    nodes = hall()
    for one in nodes:
        if one["metadata"]["name"].startswith("r0-k0"):
            one["metadata"]["labels"][LABEL] = "lab-vision"
    fake = FakeKube(
        *nodes, cluster_queue("lab-vision", {("lab-vision", GPU): "16"}), local_queue("vision", "lab-vision"),
        bound_job("late", NOW - 900, NOW - 100),
        workload("late", queue="vision", holds=("lab-vision", {("lab-vision", GPU): "16"})),
    )  # fmt: skip
    monkeypatch.setattr(command, "open_cluster", lambda kubeconfig, context: fake)
    monkeypatch.setattr(time, "time", lambda: NOW)
    return fake


def run(tmp_path: Path, *arguments: str, text: str = TEXT) -> Result:
    file = tmp_path / "cells.yaml"
    file.write_text(text)
    words = ["cells", *arguments[:1], str(file), *arguments[1:]]
    return CliRunner().invoke(cli.main, words, prog_name="singularityctl")


def test_generate_prints_the_objects_and_changes_nothing(kube: FakeKube, tmp_path: Path):
    kube.patch(NODE, None, "r0-k2-n1", {"spec": {"unschedulable": True}})
    before = len(kube.requests)
    made = run(tmp_path, "generate")
    assert made.exit_code == 0, made.output
    kinds = [manifest["kind"] for manifest in yaml.safe_load_all(made.stdout)]
    assert {*kinds} == {"Node", "Topology", "ResourceFlavor", "Cohort", "ClusterQueue", "LocalQueue"}
    assert "node r0-k2-n1 is in no cell: it is cordoned" in made.stderr and "tenant vision: rack r0/k0" in made.stderr
    assert {verb for verb, _, _ in kube.requests[before:]} == {"list"}


def test_check_names_the_job_that_waited_longer_than_in_its_private_cells(kube: FakeKube, tmp_path: Path):
    shown = run(tmp_path, "check")
    assert shown.exit_code == 1 and "vision: 2 nodes, 0 kept, 1 broken" in shown.stdout, shown.output
    line = next(line for line in shown.stdout.splitlines() if "default/late" in line)
    assert line.split()[-1] == "broken" and "13 min" in line
    told = json.loads(run(tmp_path, "check", "--json", "--allow", "1000").stdout)
    (asked,) = told["tenants"][0]["requests"]
    assert (asked["later_s"], asked["private"], asked["promise"]) == (800.0, NOW - 900, "kept")
    assert run(tmp_path, "check", "--allow", "1000").exit_code == 0


def on_each_node(kind: str, name: str, cpu: str, **status: Any) -> list[Object]:
    """A pod of this owner on every node of the hall."""
    return [
        {
            "apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running", **status},
            "metadata": {"name": f"{name}-{node['metadata']['name']}", "namespace": "kube-system",
                         "ownerReferences": [{"kind": kind, "name": name}]},
            "spec": {"nodeName": node["metadata"]["name"],
                     "containers": [{"name": name, "resources": {"requests": {"cpu": cpu, GPU: "0"}}}]},
        }
        for node in hall()
    ]  # fmt: skip


def test_what_daemon_sets_leave_no_room_for_has_no_promise(kube: FakeKube, tmp_path: Path):
    """A node has 64 cores. Of these, 60 are asked for."""
    large = bound_job("late", NOW - 900, NOW - 100)
    large["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "60"
    kube.put(large)
    for pod in [*on_each_node("ReplicaSet", "web", "30"), *on_each_node("DaemonSet", "done", "9", phase="Succeeded"),
                *on_each_node("DaemonSet", "network", "2"), *on_each_node("Node", "proxy", "2")]:  # fmt: skip
        kube.put(pod)
    assert "1 broken, 0 too large" in run(tmp_path, "check").stdout
    quotas = [m for m in yaml.safe_load_all(run(tmp_path, "generate").stdout) if m["kind"] == "ClusterQueue"]
    assert quotas[0]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0] == {
        "name": "cpu",
        "nominalQuota": "120",
    }
    for pod in on_each_node("DaemonSet", "network", "3"):
        kube.put(pod)
    shown = run(tmp_path, "check")
    assert shown.exit_code == 0 and "0 broken, 1 too large for the cells" in shown.stdout


def test_without_the_right_to_list_pods_nothing_is_judged(kube: FakeKube, tmp_path: Path):
    kube.fail_next("list", POD, Forbidden("pods", 403, "Forbidden"))
    refused = run(tmp_path, "generate")
    assert (
        refused.exit_code == 3 and "the right to list nodes, and pods of all namespaces, is missing" in refused.stderr
    )


def test_bad_files_and_periods_exit_with_two(kube: FakeKube, tmp_path: Path):
    wrong = run(tmp_path, "generate", text=TEXT.replace("level: rack", "level: hall"))
    assert wrong.exit_code == 2 and "tenants.vision.cells.level = 'hall'" in wrong.stderr
    assert run(tmp_path, "check", "--period", "never").exit_code == 2
    assert LEVELS[1] == RACK
