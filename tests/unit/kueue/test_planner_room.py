"""The room on nodes, and rounds of the planner with the policies that lend and defragment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import controller_scene as scene
import pytest
from controller_scene import NS
from test_planner_rounds import KEY, Stage
from test_verbs_ask import node, queue
from waits import until

from kueue_integration.contract import job_names
from kueue_integration.controller.planning.look import read_queue, read_workload
from kueue_integration.controller.planning.room import measured
from kueue_integration.errors import Forbidden, NotFound
from kueue_integration.kube.resources import COHORT, JOB, POD, RESOURCE_FLAVOR
from kueue_integration.planner import model
from kueue_integration.planner.model import ClusterSnapshot
from kueue_integration.planner.settings import Defragmentation, Lending, MoveLimits, PlannerSettings
from kueue_integration.requests import placement, user_requests
from singularity_proxy.protocol.messages import to_json

RACK = "example.com/rack"
CORDONED = {"spec": {"unschedulable": True}}


def taking(name: str, on: str, cpu: str = "1", phase: str = "Running") -> dict[str, Any]:
    """A pod of anybody."""
    container = {"name": "x", "resources": {"requests": {"cpu": cpu}}}
    spec = {"containers": [container], **({"nodeName": on} if on else {})}
    meta = {"name": name, "namespace": "others"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}}


def sized(name: str, cpus: str = "4", rack: str = "a", **more: Any) -> dict[str, Any]:
    made = {**node(name, "ondemand", **more)}
    made["metadata"]["labels"][RACK] = rack
    made["status"]["allocatable"] = {"cpu": cpus}
    return made


def test_the_room_of_a_node_is_what_pods_of_anybody_leave():
    nodes = [sized("n1"), sized("n2", cordoned=True), sized("n3", ready=False)]
    pods = [
        taking("a", "n1", "1500m"), taking("b", "n1"), taking("done", "n1", phase="Succeeded"), taking("new", ""),
        taking("elsewhere", "n9"),
    ]  # fmt: skip
    snapshot = ClusterSnapshot(0.0, nodes={name: model.Node(name) for name in ("n1", "n2", "n3")})
    found = measured(snapshot, nodes, pods)
    assert found["n1"].free == {"cpu": Fraction(3, 2)} and found["n1"].labels[RACK] == "a"
    assert found["n2"].free == found["n3"].free == {}  # they take no pods


def test_a_workload_says_how_many_pods_it_has_and_which_level_they_need():
    raw = scene.workload(reserved_at=None, wanted=4, request="2")
    raw["spec"]["podSets"][0].update(minCount=2, topologyRequest={"required": RACK})
    found = read_workload(raw, "training")
    assert (found.pods, found.level, found.per_pod) == (2, RACK, {"cpu": 2})
    raw["spec"]["podSets"].append({"name": "more", "count": 1})
    assert (read_workload(raw, "training").pods, read_workload(raw, "training").level) == (0, "")


@pytest.mark.parametrize(
    ("policy", "stopped"), [("", False), ("None", False), ("Hold", True), ("HoldAndDrain", True)]
)
def test_a_queue_says_whether_it_admits_anybody(policy, stopped):
    raw = quotas("training", "1")
    raw["spec"].update({"stopPolicy": policy} if policy else {})
    assert read_queue(raw).stopped is stopped


# --- rounds ---------------------------------------------------------------------------------------------------------
def quotas(name: str, cpus: str, cohort: str = "c") -> dict[str, Any]:
    made = queue("ondemand")
    made["metadata"] = {"name": name}
    made["spec"]["cohortName"] = cohort
    made["spec"]["resourceGroups"][0]["flavors"][0]["resources"] = [{"name": "cpu", "nominalQuota": cpus}]
    return made


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def start(planner: PlannerSettings, *objects: dict[str, Any]) -> Stage:
        made.append(Stage(planner))
        for each in objects:
            made[-1].kube.put(each)
        names = [each["metadata"]["name"] for each in objects if each["kind"] in ("ClusterQueue", "Workload")]
        world = made[-1].world
        until(lambda: all(world.cluster_queues.get("", n) or world.workloads.get(NS, n) for n in names))
        until(lambda: (world.cluster_queues.get("", "training") or {"spec": {}})["spec"].get("cohortName") == "c")
        return made[-1]

    yield start
    for one in made:
        one.world.stop()


def waits(name: str, request: str, count: int, priority: int = 10, **podset: Any) -> dict[str, Any]:
    raw = scene.workload(name, reserved_at=None, state=None, owner=None, uid=f"uid-{name}", job_uid="other",
                         wanted=count, request=request, priority=priority, created=-5000)  # fmt: skip
    raw["spec"]["podSets"][0].update(podset)
    return raw


LENDS = PlannerSettings(lending=Lending("act"), limits=MoveLimits(0.0))


def test_a_job_grows_by_a_request_that_does_not_wait(stage: Callable[..., Stage]) -> None:
    play = stage(LENDS, quotas("training", "500m"), quotas("owner", "1"))
    play.round()
    request = play.asked()
    assert (request.op, request.workers, request.at_once) == ("resize", 4, True)
    assert request.by == "policy/lending: 2 -> 4 workers on borrowed cpu, for 1800 s as expected"
    play.round()
    assert play.asked() == request and play.count("lending resize done") == 1


@pytest.mark.parametrize(
    ("parents", "error", "grows"),
    [
        ({"c": None, "d": "root"}, None, True), ({"c": "root"}, None, False), ({"d": "c"}, None, False),
        ({}, Forbidden("cohorts", 403, "Forbidden"), False), ({}, NotFound("cohorts", 404, "NotFound"), True),
    ],
    ids=["another tree", "has a parent", "has a child", "not shown", "not served"],
)  # fmt: skip
def test_nobody_grows_in_a_cohort_of_a_tree(stage: Callable[..., Stage], parents: Any, error: Any, grows: bool) -> None:
    play = stage(LENDS, quotas("training", "500m"), quotas("owner", "1"))
    for name, parent in parents.items():
        spec = {"parentName": parent} if parent else {}
        play.kube.put({"apiVersion": COHORT.api_version, "kind": "Cohort", "metadata": {"name": name}, "spec": spec})
    if error is not None:
        play.kube.fail_next("list", COHORT, error)
    play.round()
    assert (play.asked() is not None) is grows
    told = play.metrics.value("singularity_planner_policy_errors_total", "planner")
    assert told == isinstance(error, Forbidden)


def test_an_owner_who_waits_gets_its_quota_back_whatever_that_costs(stage: Callable[..., Stage]) -> None:
    owner = waits("job-owner", "250m", 1)
    owner["spec"]["queueName"] = "o"
    local = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "o", "namespace": NS},
             "spec": {"clusterQueue": "owner"}}  # fmt: skip
    play = stage(LENDS, quotas("training", "250m"), quotas("owner", "250m"), local)
    play.kube.patch(JOB, *KEY, {"metadata": {"annotations": {job_names.ANN_MIN_WORKERS: "1"}}})
    until(lambda: bool(play.world.local_queues.get(NS, "o")))
    play.kube.put(owner)
    until(lambda: bool(play.world.workloads.get(NS, "job-owner")))
    play.round()
    request = play.asked()
    assert (request.op, request.workers) == ("resize", 1)
    expected = "policy/lendingReturn: 2 -> 1 workers: job-owner waits for quota of its own queue owner"
    assert request.by == expected and play.count("lendingReturn resize done") == 1


PACKS = PlannerSettings(defragmentation=Defragmentation("act"), limits=MoveLimits(0.0))


def racks(play: Stage) -> None:
    """Rack a is node n1 with the job, rack b is n2 with a pod of somebody else: 1.5 and 1 CPUs are free."""
    for raw in (sized("n1", "2", "a"), sized("n2", "2", "b")):
        play.kube.put(raw)
    play.kube.put(taking("big", "n2", "1"))
    for pod in play.kube.objects():
        if pod["kind"] == "Pod" and pod["spec"].get("nodeName") == "n1":
            asks = [{"name": "train", "resources": {"requests": {"cpu": "250m"}}}]
            play.kube.put({**pod, "spec": {**pod["spec"], "containers": asks}})


def test_room_is_measured_when_somebody_waits_for_it_without_a_list_of_pods(stage: Callable[..., Stage]) -> None:
    play = stage(PACKS, quotas("training", "8"))
    racks(play)
    play.kube.requests.clear()
    play.round()
    assert RESOURCE_FLAVOR.name not in {kind for _, kind, _ in play.kube.requests}
    (big,) = [pod for pod in play.world.pods.all() if pod["metadata"]["name"] == "big"]
    assert big["spec"]["nodeName"] == "n2" and sorted(big["metadata"]) == ["name", "namespace", "resourceVersion"]
    play.kube.put(waits("job-wide", "600m", 3, topologyRequest={"required": RACK}))
    until(lambda: bool(play.world.workloads.get(NS, "job-wide")))
    play.kube.fail_next("list", RESOURCE_FLAVOR, Forbidden("resourceflavors", 403, "Forbidden"))
    play.round()
    assert ("list", POD.name) not in {(verb, kind) for verb, kind, _ in play.kube.requests}
    assert play.metrics.value("singularity_planner_policy_errors_total", "defragmentation") == 1
    assert play.asked() is None

    play.round()
    request = play.asked()
    assert (request.op, request.placement.avoid_nodes) == ("migrate", ["n1"])
    assert request.by.startswith("policy/defragmentation: makes room in rack a for job-wide, which has waited ")
    # It has left, and may go everywhere again at its next start, though no node is cordoned.
    play.answer(user_requests.CHANGE, **{job_names.ANN_PLACEMENT: to_json(request.placement)})
    play.round()
    assert play.asked().placement == placement.ANYWHERE
