"""The fence and machines: a checkpoint is continued only on nodes that can run it, else on another flavor."""

from __future__ import annotations

from dataclasses import replace

import controller_scene as scene
import pytest
from api_server import ApiServer
from controller_scene import T0
from waits import until

from kueue_integration.contract import attempt_records, job_names
from kueue_integration.contract.record_types import NodeRequirement, Placement
from kueue_integration.controller import reshape
from kueue_integration.controller.actions import AnswerReady, PatchWorkload, RequestReadmission, Reshape, Wait
from kueue_integration.controller.checkpoint_fit import ARCHITECTURE, CPUID
from kueue_integration.controller.errors import RefusedError
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.machines import FlavorMachines
from kueue_integration.controller.machines.nodes import IDLE_S, KEPT_S, Machines, Nodes
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.reconciler import Reconciler, Task
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.errors import Forbidden
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, NODE, RESOURCE_FLAVOR, WORKLOAD, annotation, merge_patch
from kueue_integration.requests import placement
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CommitRequest, FailedRestore, Needs, from_json, to_json

NOW = T0 + 41
AMD = Needs("amd64", ["AVX2", "AVX512F"])
SKYLAKE = {ARCHITECTURE: "amd64", CPUID + "AVX2": "true", CPUID + "AVX512F": "true"}
ZEN3 = {ARCHITECTURE: "amd64", CPUID + "AVX2": "true"}
GRAVITON = {ARCHITECTURE: "arm64"}
BARE = {ARCHITECTURE: "amd64"}


def machines(**flavors):
    """Flavors with their nodes; each flavor's nodeLabels are `flavor: NAME`."""
    made = {
        name: FlavorMachines({"flavor": name}, {f"{name}-{i}": labels for i, labels in enumerate(nodes)})
        for name, nodes in flavors.items()
        if nodes is not None
    }
    return made.get


def job(needs=AMD, **annotations):
    ended = scene.record(ended_by="Preempted", evicted_at=T0 + 20, committed_at=T0 + 22, pods_gone_at=T0 + 22.5)
    ended = replace(ended, released_at=T0 + 23)
    saved = {names.ANN_CHECKPOINT: to_json(replace(scene.checkpoint(), needs=needs))}
    made = scene.job(annotations={**scene.history(ended), **saved, **annotations})
    made["spec"]["template"] = {"spec": {"containers": [{"name": "train"}]}}
    return made


def admitted(flavor="spot", retries=0):
    made = scene.workload(reserved_at=40, flavor=flavor)
    made["status"]["admissionChecks"][-1]["retryCount"] = retries
    return made


def look(the_job, workload, machines_of, flavors=("spot", "ondemand")):
    return scene.decide(the_job, workload, [], NOW, Settings(), scene.nobody, lambda _: flavors, machines_of).action


@pytest.mark.parametrize(
    "nodes",
    [[SKYLAKE], [GRAVITON, SKYLAKE], [BARE], [{}], [], None, [ZEN3, {ARCHITECTURE: "amd64"}]],
    ids=["fits", "one fits", "CPU not labelled", "not labelled", "no nodes", "not known", "one not labelled"],
)
def test_a_flavor_that_fits_or_may_fit_is_used(nodes):
    action = look(job(), admitted(), machines(spot=nodes, ondemand=[SKYLAKE]))
    assert isinstance(action, AnswerReady)
    assert action.pod_annotations[names.ANN_CHECKPOINT] == "train-a1-g1"


@pytest.mark.parametrize("needs", [None, Needs("")], ids=["checkpoint of before", "nothing known"])
def test_a_checkpoint_that_does_not_say_what_it_needs_is_let_through(needs):
    assert isinstance(look(job(needs), admitted(), machines(spot=[GRAVITON])), AnswerReady)


def test_a_reference_without_the_field_can_be_read():
    text = to_json(scene.checkpoint()).replace(',"needs":null', "")
    assert "needs" not in text
    assert from_json(type(scene.checkpoint()), text) == scene.checkpoint()


def test_without_a_checkpoint_no_node_is_looked_at():
    def never(flavor):
        raise AssertionError(f"asked for {flavor}")

    assert isinstance(look(scene.job(), scene.workload(), never), AnswerReady)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([GRAVITON, GRAVITON], "flavor spot: its nodes are arm64, checkpoint train-a1-g1 needs amd64"),
        ([GRAVITON, ZEN3], "flavor spot: its nodes lack AVX512F, which checkpoint train-a1-g1 needs"),
    ],
)
def test_a_flavor_that_does_not_fit_is_left_for_one_that_does(nodes, words):
    current = job()
    action = look(current, admitted(), machines(spot=nodes, ondemand=[SKYLAKE]))
    assert isinstance(action, RequestReadmission)
    assert words in action.message and action.message.endswith("next: ondemand")
    where = from_json(Placement, action.job_annotations[job_names.ANN_PLACEMENT])
    assert where == Placement(["ondemand"], [], [[NodeRequirement("flavor", "In", ["ondemand"])]])
    (record,) = scene.stored(action.job_annotations)
    assert words in record.note
    # Without quota the Job gets the shape that keeps Kueue from choosing the same flavor again, and then starts.
    current = merge_patch(current, {"metadata": {"annotations": dict(action.job_annotations)}})
    shaped = look(current, scene.workload(reserved_at=None), machines(spot=nodes, ondemand=[SKYLAKE]))
    assert isinstance(shaped, Reshape)
    current = merge_patch(current, shaped.body)
    good = admitted("ondemand")
    good["spec"]["podSets"][0]["template"]["spec"]["affinity"] = placement.affinity(where)
    answer = look(current, good, machines(spot=nodes, ondemand=[SKYLAKE]))
    assert isinstance(answer, AnswerReady) and answer.attempt == 2
    # An admission on the old flavor that was under way does not start: it gets the new shape out of the queue.
    again = look(current, admitted("spot"), machines(spot=nodes, ondemand=[SKYLAKE]))
    assert isinstance(again, PatchWorkload)
    assert again.body["metadata"]["annotations"] == {job_names.ANN_RESHAPE: "not on spot, only on ondemand"}


def test_nodes_that_the_job_keeps_away_from_stay_avoided():
    away = Placement([], ["x"], [[NodeRequirement(placement.HOSTNAME, "NotIn", ["host-x"])]])
    current = job(**{job_names.ANN_PLACEMENT: to_json(away)})
    current["spec"]["template"]["spec"]["affinity"] = placement.affinity(away)
    shape = admitted()
    shape["spec"]["podSets"][0]["template"]["spec"]["affinity"] = placement.affinity(away)
    action = look(current, shape, machines(spot=[GRAVITON], ondemand=[SKYLAKE]))
    where = from_json(Placement, action.job_annotations[job_names.ANN_PLACEMENT])
    assert (where.flavors, where.avoid_nodes) == (["ondemand"], ["x"])
    assert NodeRequirement(placement.HOSTNAME, "NotIn", ["host-x"]) in where.terms[0]


def test_when_no_flavor_fits_kueue_tries_again_ever_later_and_nothing_starts():
    nodes = machines(spot=[GRAVITON], ondemand=[ZEN3])
    current, pauses = job(), []
    for retries in (0, 1, 3, 30):
        action = look(current, admitted(retries=retries), nodes)
        assert isinstance(action, RequestReadmission)
        assert action.message.endswith("needs amd64; no flavor it may use fits")
        assert job_names.ANN_PLACEMENT not in action.job_annotations
        pauses.append(action.requeue_after_s)
        current = merge_patch(current, {"metadata": {"annotations": dict(action.job_annotations)}})
    assert pauses == [5, 10, 40, reshape.LONGEST_BACK_S]
    (record,) = attempt_records.history(current)
    assert record.note.count("no flavor it may use fits") == 1


def test_a_flavor_that_the_user_did_not_name_is_not_taken():
    only = Placement(["spot"], [], [[NodeRequirement("flavor", "In", ["spot"])]])
    current = job(**{job_names.ANN_PLACEMENT: to_json(only)})
    current["spec"]["template"]["spec"]["affinity"] = placement.affinity(only)
    shape = admitted()
    shape["spec"]["podSets"][0]["template"]["spec"]["affinity"] = placement.affinity(only)
    action = look(current, shape, machines(spot=[GRAVITON], ondemand=[SKYLAKE]))
    assert isinstance(action, RequestReadmission)
    assert "no flavor it may use fits" in action.message and job_names.ANN_PLACEMENT not in action.job_annotations


def test_an_affinity_of_the_users_own_and_flavors_without_labels_are_left_alone():
    current = job()
    current["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": {"mine": True}}
    action = look(current, admitted(), machines(spot=[GRAVITON], ondemand=[SKYLAKE]))
    assert isinstance(action, RequestReadmission) and job_names.ANN_PLACEMENT not in action.job_annotations
    plain = {"spot": FlavorMachines({}, {"a": GRAVITON}), "ondemand": FlavorMachines({}, {"b": SKYLAKE})}
    action = look(job(), admitted(), plain.get)
    assert isinstance(action, RequestReadmission) and job_names.ANN_PLACEMENT not in action.job_annotations
    assert "do not tell them apart" in action.message


def test_a_placement_that_cannot_be_read_is_named_and_nothing_starts():
    action = look(job(**{job_names.ANN_PLACEMENT: "{"}), admitted(), machines(spot=[GRAVITON], ondemand=[SKYLAKE]))
    assert isinstance(action, Wait) and job_names.ANN_PLACEMENT in action.message


def test_nodes_are_listed_by_the_flavors_labels_once_for_many_restores():
    def node(name, **labels):
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}

    spot = {"kind": "ResourceFlavor", "apiVersion": RESOURCE_FLAVOR.api_version, "metadata": {"name": "spot"}}
    kube = FakeKube(
        {**spot, "spec": {"nodeLabels": {"flavor": "spot"}}},
        node("a", flavor="spot", **GRAVITON),
        node("b", flavor="ondemand", **BARE),
    )
    now = [100.0]
    nodes = Nodes(kube)
    known = Machines(kube, nodes, lambda: now[0])
    for _ in range(3):
        assert known.of("spot") == FlavorMachines({"flavor": "spot"}, {"a": {"flavor": "spot", **GRAVITON}})
    assert [verb for verb, kind, _ in kube.requests if kind == NODE.name].count("list") == 1
    kube.create(node("c", flavor="spot", **BARE))
    until(lambda: len(nodes.all()) == 3)
    now[0] += KEPT_S
    assert set(known.of("spot").nodes) == {"a", "c"}
    assert known.of("gone") is None
    nodes.stop()


def test_nodes_are_followed_while_somebody_asks_for_them():
    kube, now = FakeKube({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}), [100.0]
    nodes = Nodes(kube, clock=lambda: now[0])
    assert not nodes.followed and not kube.requests
    assert [n["metadata"]["name"] for n in nodes.all()] == ["a"]
    now[0] += IDLE_S - 1
    nodes.rest()
    assert nodes.followed
    now[0] += 1
    nodes.rest()
    assert not nodes.followed
    assert len(nodes.all()) == 1 and [verb for verb, *_ in kube.requests].count("list") == 2
    nodes.stop()


def test_nodes_that_may_not_be_read_are_an_error_and_not_an_empty_cluster():
    kube = FakeKube()
    kube.fail_next("list", NODE, Forbidden("nodes", 403, "Forbidden"))
    nodes = Nodes(kube)
    with pytest.raises(Forbidden):
        nodes.all()
    nodes.stop()


def kueue(kind, name, namespace=None, **spec):
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": RESOURCE_FLAVOR.api_version, "kind": kind, "metadata": meta, "spec": spec}


def test_the_worker_sends_the_admission_back_and_places_the_job():
    flavors = [{"name": "spot", "resources": []}, {"name": "ondemand", "resources": []}]
    current = job()
    current["metadata"]["labels"][job_names.KUEUE_QUEUE_LABEL] = "q"
    objects = [
        kueue("ClusterQueue", "training", resourceGroups=[{"coveredResources": ["cpu"], "flavors": flavors}]),
        kueue("LocalQueue", "q", scene.NS, clusterQueue="training"),
    ]
    for name, labels in (("spot", GRAVITON), ("ondemand", SKYLAKE)):
        objects.append(kueue("ResourceFlavor", name, nodeLabels={"flavor": name}))
        meta = {"name": f"node-{name}", "labels": {"flavor": name, **labels}}
        objects.append({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    kube = FakeKube(current, admitted(), *objects)
    reconciler = Reconciler(kube, Settings(regrow="none"), Metrics(), now=lambda: NOW)
    reconciler.world.start()
    try:
        assert reconciler.world.wait_synced(30)
        reconciler.handle(Task("job", scene.NS, "train"))
    finally:
        reconciler.world.stop()
    (state,) = kube.get(WORKLOAD, scene.NS, "job-train-1")["status"]["admissionChecks"]
    assert (state["state"], state["requeueAfterSeconds"]) == ("Retry", reshape.SENT_BACK_S)
    assert "flavor spot: its nodes are arm64, checkpoint train-a1-g1 needs amd64; next: ondemand" in state["message"]
    stored = annotation(kube.get(JOB, scene.NS, "train"), job_names.ANN_PLACEMENT)
    assert from_json(Placement, stored).flavors == ["ondemand"]


@pytest.mark.parametrize("needs", [Needs("a" * 99), Needs("amd64", ["X"] * 33), Needs("amd64", ["x" * 99])])
def test_what_a_pod_says_it_needs_is_bounded(needs):
    ref = replace(scene.checkpoint(), needs=needs)
    current = scene.job(suspend=False, annotations=scene.history(scene.record()))
    with pytest.raises(RefusedError, match=r"checkpoint\.needs"):
        reports.commit(current, CommitRequest("team", "train", 1, ref, 1.0, 99), T0 + 31)


# --- restores that fail on one node -----------------------------------------------------------------------------------
def failed(*nodes, passes=False):
    tries = [FailedRestore(2 + number, "why", passes, node) for number, node in enumerate(nodes)]
    ref = replace(scene.checkpoint(), failed=tries)
    return {names.ANN_CHECKPOINT: to_json(ref), job_names.ANN_CHECKPOINTS: to_json([ref])}


def test_the_last_try_is_made_on_another_node_if_one_is_free():
    """A wish for the scheduler, which Kueue does not look at: nothing waits for a node."""
    current = job(**failed("spot-1", "spot-1"))
    nodes = machines(spot=[SKYLAKE])
    action = look(current, admitted(), nodes)
    assert isinstance(action, RequestReadmission)
    assert action.message == "the last try of checkpoint train-a1-g1 is made away from node spot-1, if another is free"
    where = from_json(Placement, action.job_annotations[job_names.ANN_PLACEMENT])
    assert where == Placement(shuns=["spot-1"])
    current = merge_patch(current, {"metadata": {"annotations": dict(action.job_annotations)}})
    shaped = look(current, scene.workload(reserved_at=None), nodes)
    assert isinstance(shaped, Reshape)
    current = merge_patch(current, shaped.body)
    affinity = current["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [wish] = affinity.pop("preferredDuringSchedulingIgnoredDuringExecution")
    assert affinity == {}
    assert wish["preference"] == {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["spot-1"]}]}
    shape = admitted()
    shape["spec"]["podSets"][0]["template"]["spec"]["affinity"] = placement.affinity(where)
    current["spec"]["template"]["spec"]["affinity"] = placement.affinity(where)
    assert isinstance(look(current, shape, nodes), AnswerReady)


@pytest.mark.parametrize(
    "notes",
    [failed(), failed("n"), failed("", ""), failed("n", "n", passes=True), failed("n", "n", "n")],
    ids=["no failure", "one", "nodes not known", "what passes", "given up"],
)
def test_no_other_try_asks_for_another_node(notes):
    action = look(job(**notes), admitted(), machines(spot=[SKYLAKE]))
    assert isinstance(action, AnswerReady)


def test_the_last_try_of_a_job_with_an_affinity_of_its_own_is_made_anywhere():
    current = job(**failed("n", "n"))
    current["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": {"mine": True}}
    assert isinstance(look(current, admitted(), machines(spot=[SKYLAKE])), AnswerReady)


def test_the_api_server_takes_the_wish_into_a_suspended_job_and_out_of_it(server: ApiServer):
    """As the controller patches it, beside what a placement requires."""
    kube = server.kube()
    containers = [{"name": "train", "image": "x"}]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers, "restartPolicy": "Never"}}
    kube.create(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "wishes", "namespace": "default"},
         "spec": {"suspend": True, "template": template}}
    )  # fmt: skip
    required = [[NodeRequirement("flavor", "In", ["spot"])]]
    for where in (Placement(shuns=["n1", "n2"]), Placement(["spot"], [], required, ["n1"]), Placement()):
        wanted = placement.affinity(where)
        body = {"spec": {"template": {"spec": {"affinity": wanted}}}}
        kube.patch_job("default", "wishes", body)
        assert kube.get(JOB, "default", "wishes")["spec"]["template"]["spec"].get("affinity") == wanted
