"""`helm uninstall` over jobs that train and jobs of others in the same queue, and the chart again: no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import controllers
import pytest
from faults import Faults
from rows import TIMEOUT_S, Rows, Training
from shell import Shell

from kueue_integration.contract import job_names, priority
from kueue_integration.kube.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    CONFIG_MAP,
    JOB,
    NODE,
    POD,
    PRIORITY_CLASS,
    RESOURCE_FLAVOR,
    SECRET,
    WORKLOAD,
    Kind,
    Object,
    admission_checks,
    annotation,
    is_true,
)
from localcluster import registry
from localcluster.addons.chart import CHART, RELEASE, Chart
from localcluster.addons.chart import NAMESPACE as SYSTEM
from localcluster.config import cache_dir
from localcluster.control_plane.kubectl import for_cluster
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from localcluster.errors import CommandError
from localcluster.images import gobuild

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(2400)]
NAMESPACE = "uninstall"
FLAVOR, LOW, HIGH, THEIRS = "uninstall-nodes", "uninstall-low", "uninstall-high", "somebodys-check"
"""Of this test alone: flavors and classes of the sample queues belong to the chart, and go with it."""
FENCE = {"name": job_names.ADMISSION_CHECK_NAME}
SICK = "spot-0"
LOWERED = 3
OTHERS = ("neighbour", "elsewhere")
"""Jobs of somebody else, in the queue of ours and in another one."""
OWN: tuple[object, ...] = ((10, False), (True, None), [], [])
CHANGED: tuple[object, ...] = (
    (LOWERED, True), (False, "by-hand timeSharing"), [job_names.FINALIZER_RECORDS], ["NoSchedule"],
)  # fmt: skip
"""What `stands` says without policies, and with what they have changed."""


def a_kind(kind: Kind, name: str, **body: Any) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name}, **body}


def release(stage: Stage) -> Chart:
    config = registry.find(stage.name)
    assert config is not None
    binaries = gobuild.build_all(cache_dir(), lambda text: None)
    return Chart(config, binaries, for_cluster(config, binaries), config.root)


@pytest.fixture
def queues(rows: Rows) -> Rows:
    """A queue of ours and others, one that has a check of somebody else's, too, and one that is not fenced."""
    rows.make(a_kind(RESOURCE_FLAVOR, FLAVOR, spec={"nodeLabels": {"flavor": "ondemand"}}))
    for name, value in ((LOW, 10), (HIGH, 1000)):
        rows.make(a_kind(PRIORITY_CLASS, name, value=value))
    rows.make(a_kind(ADMISSION_CHECK, THEIRS, spec={"controllerName": "tests.singularity.dev/uninstall"}))
    rows.queue("own", {FLAVOR: "200m"})
    rows.queue("checked", {FLAVOR: "50m"}, checks=[THEIRS])
    rows.queue("foreign", {FLAVOR: "50m"}, admissionChecksStrategy=None)
    return rows


def lowered_and_parked(rows: Rows, faults: Faults, lowered: str, parked: str) -> None:
    """What policies write on jobs that wait, what a copy of MultiKueue has and a sick node gets: all by hand, while no
    controller runs that would take it back because the policies are off."""
    faults.kubectl("-n", SYSTEM, "scale", f"deployment/{job_names.CONTROLLER_NAME}", "--replicas=0")
    wait_for(lambda: not controllers.pods(rows.kube), "no controller runs", TIMEOUT_S)
    workload = rows.workload(lowered)
    change = priority.change("slaTiers", LOWERED, workload["spec"]["priority"], None)
    with faults.unguarded():
        rows.kube.patch(WORKLOAD, rows.namespace, workload["metadata"]["name"], change)
        notes = {"metadata": {"annotations": {job_names.ANN_PAUSED: "by-hand timeSharing"}}, "spec": {"active": False}}
        rows.kube.patch(WORKLOAD, rows.namespace, rows.workload(parked)["metadata"]["name"], notes)
        rows.kube.patch(JOB, rows.namespace, parked, {"metadata": {"finalizers": [job_names.FINALIZER_RECORDS]}})
    faults.kubectl("taint", "node", SICK, f"{job_names.TAINT_UNHEALTHY}=x:NoSchedule")


def stands(rows: Rows, lowered: str, parked: str) -> tuple[object, ...]:
    """Priority and mark of the lowered one; place and mark of the parked one; finalizers of its Job; taints of ours."""
    low, park = rows.workload(lowered), rows.workload(parked)
    taints = rows.kube.get(NODE, None, SICK)["spec"].get("taints") or ()
    return (
        (low["spec"]["priority"], annotation(low, job_names.ANN_PRIORITY) is not None),
        (park["spec"].get("active", True), annotation(park, job_names.ANN_PAUSED)),
        rows.kube.get(JOB, rows.namespace, parked)["metadata"].get("finalizers") or [],
        [taint["effect"] for taint in taints if taint["key"] == job_names.TAINT_UNHEALTHY],
    )


def of_others(rows: Rows) -> list[object]:
    """Whatever is not ours: the foreign queue, the jobs of others with their pods, the checks of others."""
    queue = rows.kube.get(CLUSTER_QUEUE, None, rows.cluster_queue("foreign"))
    found: list[object] = [queue["spec"], queue["metadata"]["generation"], queue["metadata"].get("annotations")]
    for name in OTHERS:
        job, workload = rows.kube.get(JOB, rows.namespace, name), rows.workload(name)
        pods = rows.kube.list(POD, rows.namespace, f"job-name={name}")
        found += [job["metadata"]["generation"], job["metadata"].get("annotations"), job["spec"]["suspend"]]
        found += [workload["metadata"]["generation"], workload["spec"], is_true(workload, "Admitted")]
        found += [(pod["metadata"]["uid"], pod["status"]["phase"]) for pod in pods]
    checked = admission_checks(rows.kube.get(CLUSTER_QUEUE, None, rows.cluster_queue("checked")))
    return [*found, [check for check in checked if check != FENCE]]


def phases(rows: Rows, name: str) -> list[str]:
    """Of the pods of a Job."""
    return [str(pod["status"].get("phase")) for pod in rows.kube.list(POD, rows.namespace, f"job-name={name}")]


def fenced(rows: Rows) -> list[str]:
    return [q["metadata"]["name"] for q in rows.kube.list(CLUSTER_QUEUE) if FENCE in admission_checks(q)]


def left_of_the_chart(rows: Rows, chart: Chart) -> list[str]:
    """Objects that have the release's label."""
    kinds = (
        "all,configmaps,secrets,leases,serviceaccounts,poddisruptionbudgets,roles,rolebindings,clusterroles,"
        "clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,crds,admissionchecks,"
        "clusterqueues,resourceflavors,workloadpriorityclasses"
    )
    instance = f"app.kubernetes.io/instance={RELEASE}"
    return sorted(set(chart.kubectl("get", kinds, "-n", SYSTEM, "-l", instance, "-o", "name").split()))


def trains_on(job: Training) -> None:
    """By what its script writes: nobody else tells while there is no controller."""
    seen = len(job.lines())
    wait_for(lambda: len(job.lines()) >= seen + 20, f"{job.name} trains on", TIMEOUT_S)


def test_the_chart_goes_and_comes_again_over_jobs_of_everybody(queues: Rows, faults: Faults, tmp_path: Path) -> None:
    rows, shell, chart = queues, Shell(queues.stage.cluster), release(queues.stage)
    values = tmp_path / "values.json"
    job = rows.train("trains", "own", workers=2, priority_class=LOW)
    rows.other("neighbour", "own", priority=HIGH)
    rows.other("elsewhere", "foreign", priority=HIGH)
    short = ["--steps", "40"]
    waiting = [rows.train(name, "own", workers=2, priority_class=LOW, args=short) for name in ("lowered", "parked")]
    job.until_steps()
    wait_for(lambda: all(phases(rows, name) == ["Running"] for name in OTHERS), "pods of others run", TIMEOUT_S)
    values.write_text(chart.helm("get", "values", RELEASE, "-o", "json"))
    before, keys = of_others(rows), rows.kube.get(SECRET, SYSTEM, job_names.KEYS_SECRET)["data"]
    queues_before = fenced(rows)
    assert {rows.cluster_queue(name) for name in ("own", "checked")} < set(queues_before)

    rows.say("--> helm uninstall is refused, and says with which command it would not be")
    with pytest.raises(CommandError) as refused:
        chart.helm("uninstall", RELEASE)
    rows.say(str(refused.value))
    assert "singularity-queues-are-still-fenced" in str(refused.value)
    assert "First: singularityctl unfence --all" in str(refused.value), "Helm prints the hook's log"
    assert (fenced(rows), len(controllers.ready(rows.kube))) == (queues_before, 2), "nothing was changed"
    told = shell.type("singularityctl unfence --all 2>&1", codes=(2,))
    assert f"{NAMESPACE}/trains" in told and fenced(rows) == queues_before, told

    rows.say("--> the queues are unfenced all the same, and helm uninstall goes through")
    shell.type("singularityctl unfence --all --force")
    assert fenced(rows) == []
    lowered_and_parked(rows, faults, "lowered", "parked")
    assert stands(rows, "lowered", "parked") == CHANGED
    rows.say(chart.helm("uninstall", RELEASE))
    assert stands(rows, "lowered", "parked") == OWN, "the hook has ended before Helm does"
    wait_for(
        lambda: left_of_the_chart(rows, chart) == [
            "secret/singularity-keys",
            "validatingadmissionpolicy.admissionregistration.k8s.io/singularity-hold-parameter",
            "validatingadmissionpolicybinding.admissionregistration.k8s.io/singularity-hold-parameter",
        ], "nothing is left but the keys and one policy", TIMEOUT_S, detail=lambda: str(left_of_the_chart(rows, chart)),
    )  # fmt: skip
    trains_on(job)
    assert of_others(rows) == before
    rows.other("newcomer", "own", priority=HIGH)
    rows.until_admitted("newcomer")
    rows.remove("newcomer")

    rows.say("--> the chart is installed again, and the queues are fenced")
    chart.helm("install", RELEASE, str(CHART), "--values", str(values))
    chart.await_controller()
    rows.stage.look_again()
    assert rows.kube.get(SECRET, SYSTEM, job_names.KEYS_SECRET)["data"] == keys
    assert rows.kube.find(CONFIG_MAP, SYSTEM, job_names.PLATFORM_CONFIGMAP) is not None
    shell.run("fence", *sorted(set(queues_before) - set(fenced(rows))))
    assert fenced(rows) == queues_before
    trains_on(job)
    assert of_others(rows) == before
    rows.other("another", "own", priority=HIGH)
    rows.until_admitted("another")
    rows.remove("another")
    rows.activate(job.name, False)
    ended = job.until_ended(1)
    assert ended.checkpoint is not None, ended.note
    rows.activate(job.name, True)
    rows.say("--> all of ours end well")
    job.until_attempt(2)
    job.assert_exact(job.finish())  # before the others: it has the quota that they wait for
    for each in waiting:
        each.until(lambda s: s.final, "its end")
        last = each.finish()
        assert len(last.attempts) == 1, last
        each.assert_exact(last)
    assert of_others(rows) == before
