"""The verbs on the user's side: what is written, what is refused before anything is, what waiting says."""

from __future__ import annotations

import json
from dataclasses import replace

import kueue_samples as samples
import pytest

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import JobRequest, NodeRequirement, Placement, RequestStatus
from kueue_integration.errors import (
    Conflict,
    Forbidden,
    JobNotFoundError,
    PlatformError,
    RequestRefusedError,
    RequestTimeoutError,
    Unreachable,
)
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import (
    CLUSTER_QUEUE,
    JOB,
    KUEUE_GROUP,
    KUEUE_VERSION,
    NODE,
    RESOURCE_FLAVOR,
    annotation,
)
from kueue_integration.requests import placement, user_requests, verbs
from kueue_integration.requests.placement import HOSTNAME
from kueue_integration.spec import platform_config
from singularity_proxy.protocol.messages import from_json, to_json

KUEUE = f"{KUEUE_GROUP}/{KUEUE_VERSION}"
NOW = 1_800_000_000.0


def node(name, flavor, ready=True, cordoned=False):
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    spec = {"unschedulable": True} if cordoned else {}
    meta = {"name": name, "labels": {"flavor": flavor, HOSTNAME: f"{name}.local"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": {"conditions": [condition]}}


def flavor(name, **labels):
    return {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {"nodeLabels": labels}}


def queue(*flavors):
    quota = [{"name": "cpu", "nominalQuota": "100"}]
    group = {"coveredResources": ["cpu"], "flavors": [{"name": f, "resources": quota} for f in flavors]}
    return {
        "apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "training"},
        "spec": {"resourceGroups": [group]},
    }  # fmt: skip


def running(**changes):
    """A job of 4 ranks that trains on ondemand."""
    attempt = samples.attempt(first_step=0, first_step_at=120.0)
    made = samples.job(history=[attempt], **changes)
    made["metadata"]["annotations"][job_names.COMPLETIONS_EQUAL_PARALLELISM] = "true"
    made["spec"]["template"] = {"spec": {"containers": []}}
    return made


def cluster(job, *more) -> FakeKube:
    kube = samples.cluster(
        flavor("ondemand", flavor="ondemand"), flavor("spot", flavor="spot"), node("n1", "ondemand"),
        node("n2", "ondemand"), node("n3", "spot"), *more,
    )  # fmt: skip
    kube.put(queue("ondemand", "spot"))
    kube.put(job)
    return kube


def written(kube, slot=user_requests.CHANGE) -> JobRequest:
    return from_json(JobRequest, annotation(kube.get_job("default", "digits"), slot.request) or "")


def untouched(kube) -> bool:
    return not any(verb == "patch" for verb, _, _ in kube.requests)


def answer(kube, result, state="done", message="ok", **fields):
    """What the controller would write."""
    status = RequestStatus(result.id, result.op, state, message, NOW, **fields)
    kube.patch(JOB, "default", "digits", {"metadata": {"annotations": user_requests.stored(status)}})


VERBS = {
    "resize": lambda kube: verbs.resize(kube, "default", "digits", 2),
    "migrate": lambda kube: verbs.migrate(kube, "default", "digits", flavor="spot"),
    "checkpoint": lambda kube: verbs.checkpoint(kube, "default", "digits"),
    "pause": lambda kube: verbs.pause(kube, "default", "digits"),
    "resume": lambda kube: verbs.resume(kube, "default", "digits"),
}


@pytest.mark.parametrize("op", VERBS)
def test_a_verb_writes_its_request_and_nothing_else(op):
    kube = cluster(running())
    before = kube.get_job("default", "digits")
    result = VERBS[op](kube)
    assert (result.op, result.state, result.final) == (op, "asked", False)
    after = kube.get_job("default", "digits")
    slot = user_requests.slot_of(op)
    assert written(kube, slot).id == result.id
    del after["metadata"]["annotations"][slot.request]
    assert (after["spec"], after["metadata"]["annotations"]) == (before["spec"], before["metadata"]["annotations"])


@pytest.mark.parametrize("op", VERBS)
@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_a_job_that_has_ended_is_refused(op, end):
    kube = cluster(running(conditions=samples.conditions((end, "True"))))
    with pytest.raises(RequestRefusedError, match=r"the job has (finished|failed); submit it again"):
        VERBS[op](kube)
    assert untouched(kube)


@pytest.mark.parametrize("op", VERBS)
def test_a_job_that_is_not_there_or_not_ours_is_not_found(op):
    with pytest.raises(JobNotFoundError, match="no training job 'digits'"):
        VERBS[op](samples.cluster())
    stranger = running()
    stranger["metadata"]["labels"] = {}
    kube = cluster(stranger)
    with pytest.raises(JobNotFoundError):
        VERBS[op](kube)
    assert untouched(kube)


@pytest.mark.parametrize("op", VERBS)
def test_a_job_that_is_being_deleted_is_refused(op):
    leaving = running()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with pytest.raises(RequestRefusedError, match="being deleted"):
        VERBS[op](cluster(leaving))


@pytest.mark.parametrize(
    ("workers", "fewest", "message"),
    [
        (0, None, "workers = 0: must be a whole number"),
        (8, None, "workers = 8: is more than its world size, 4 ranks"),
        (3, None, "workers = 3: does not divide its 4 ranks evenly; use one of 1, 2, 4"),
        (2, 3, r"min_workers = 3: must be from 1 to workers \(2\)"),
        (2, 0, "min_workers = 0: must be from 1"),
    ],
)
def test_sizes_that_cannot_be(workers, fewest, message):
    kube = cluster(running())
    with pytest.raises(RequestRefusedError, match=message):
        verbs.resize(kube, "default", "digits", workers, fewest)
    assert untouched(kube)


def test_a_job_of_a_fixed_number_of_pods_is_not_resized():
    fixed = running()
    del fixed["metadata"]["annotations"][job_names.COMPLETIONS_EQUAL_PARALLELISM]
    with pytest.raises(RequestRefusedError, match="its number of pods is fixed"):
        verbs.resize(cluster(fixed), "default", "digits", 2)


# --- migrate ------------------------------------------------------------------------------------------------------
def moved(kube, **where) -> Placement:
    verbs.migrate(kube, "default", "digits", **where)
    found = written(kube).placement
    assert found is not None
    # As the controller takes it up, so that the next migration builds on it.
    kube.patch(JOB, "default", "digits", {"metadata": {"annotations": {job_names.ANN_PLACEMENT: to_json(found)}}})
    return found


AWAY = NodeRequirement(HOSTNAME, "NotIn", ["n1.local"])


def test_a_flavor_is_pinned_by_its_node_labels():
    found = moved(cluster(running()), flavor="spot")
    assert found == Placement(["spot"], [], [[NodeRequirement("flavor", "In", ["spot"])]])
    assert placement.affinity(found) == {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "flavor", "operator": "In", "values": ["spot"]}]}]
            }
        }
    }


def test_a_node_is_avoided_on_every_flavor():
    assert moved(cluster(running()), away_from_node="n1") == Placement([], ["n1"], [[AWAY]])


def test_a_flavor_whose_only_node_is_avoided_is_left_out_for_kueue_too():
    kube = cluster(running())
    kube.delete(NODE, None, "n2")
    found = moved(kube, away_from_node="n1")
    assert found == Placement(["spot"], ["n1"], [[NodeRequirement("flavor", "In", ["spot"]), AWAY]])


@pytest.mark.parametrize("other", [{"ready": False}, {"cordoned": True}])
def test_a_node_that_takes_no_pods_is_no_place_to_go(other):
    kube = cluster(running())
    kube.put(node("n2", "ondemand", **other))
    assert moved(kube, away_from_node="n1").flavors == ["spot"]


def test_what_was_said_before_still_holds_until_anywhere():
    kube = cluster(running())
    moved(kube, flavor="ondemand")
    both = moved(kube, away_from_node="n1")
    assert both == Placement(["ondemand"], ["n1"], [[NodeRequirement("flavor", "In", ["ondemand"]), AWAY]])
    assert moved(kube, anywhere=True) == Placement()
    assert moved(kube, flavor="spot", anywhere=True).avoid_nodes == []


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({}, "say where to"),
        ({"flavor": "gold"}, "flavor = 'gold': is not a flavor of the job's queue; it has: ondemand, spot"),
        ({"away_from_node": "n9"}, "away_from_node = 'n9': is not a node of this cluster; it has: n1, n2, n3"),
        ({"flavor": "spot", "away_from_node": "n3"}, "no usable node of flavor spot is left without n3"),
    ],
)
def test_places_that_cannot_be(where, message):
    kube = cluster(running())
    with pytest.raises(RequestRefusedError, match=message):
        verbs.migrate(kube, "default", "digits", **where)
    assert untouched(kube)


def test_a_flavor_without_labels_of_its_own_cannot_be_named():
    kube = cluster(running())
    kube.put(flavor("spot"))
    with pytest.raises(RequestRefusedError, match="its nodeLabels do not tell it from ondemand"):
        verbs.migrate(kube, "default", "digits", flavor="spot")


def test_a_job_with_an_affinity_of_its_own_is_not_moved():
    own = running()
    own["spec"]["template"]["spec"]["affinity"] = {"podAffinity": {}}
    kube = cluster(own)
    with pytest.raises(RequestRefusedError, match="brings a node affinity of its own"):
        verbs.migrate(kube, "default", "digits", flavor="spot")
    assert untouched(kube)


def test_a_job_that_still_has_the_affinity_of_an_earlier_placement_is_moved_again():
    """After a drain it may go anywhere again, but its pods keep away from the node until their next start."""
    kube = cluster(running())
    before = moved(kube, away_from_node="n1")
    started = {"spec": {"template": {"spec": {"affinity": placement.affinity(before)}}}}
    kube.patch(JOB, "default", "digits", started)
    moved(kube, anywhere=True)
    assert moved(kube, away_from_node="n3").avoid_nodes == ["n3"]


def test_a_flavor_without_the_topology_that_the_job_asks_for_is_no_place_to_go():
    own = running()
    own["spec"]["template"]["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}
    kube = cluster(own)
    racks = flavor("ondemand", flavor="ondemand")
    racks["spec"]["topologyName"] = "racks"
    kube.put(racks)
    with pytest.raises(RequestRefusedError, match=r"has no topology.*that have one: ondemand"):
        verbs.migrate(kube, "default", "digits", flavor="spot")
    assert untouched(kube)
    kube.patch(RESOURCE_FLAVOR, None, "spot", {"spec": {"topologyName": "racks"}})
    assert moved(kube, flavor="spot").flavors == ["spot"]


def test_a_flavor_without_the_labels_of_the_node_selector_is_no_place_to_go():
    own = running()
    own["spec"]["template"]["spec"]["nodeSelector"] = {"flavor": "ondemand", "disk": "fast"}
    kube = cluster(own)
    with pytest.raises(RequestRefusedError, match=r"node selector.*that have them: ondemand"):
        verbs.migrate(kube, "default", "digits", flavor="spot")
    assert untouched(kube)
    # Kueue adds the flavor's labels to a Job that runs: they are none of the user's wishes.
    wish = {"template": {"spec": {"nodeSelector": {"disk": "fast"}, "containers": []}}}
    workload = samples.workload()
    workload["spec"]["podSets"] = [{"name": "main", "count": 4, **wish}]
    kube.put(workload)
    assert moved(kube, flavor="spot").flavors == ["spot"]


def test_a_flavor_whose_nodes_give_no_user_namespace_is_no_place_for_a_job_that_has_one():
    """Refused before it is stopped: its pods would not start there."""
    container = {"name": job_names.CONTAINER_TRAIN, "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}
    for host_users, can, refused in ((False, "none", True), (False, "all", False), (None, "none", False)):
        own = running()
        own["spec"]["template"] = {"spec": {"containers": [container], "hostUsers": host_users}}
        kube = cluster(own)
        told = {"spot": {"can": can, "why": "n3: Linux 5.15 is older than 6.3"}}
        published = platform_config.to_json(replace(samples.PLATFORM, user_namespaces=told))
        meta = {"name": job_names.PLATFORM_CONFIGMAP, "namespace": job_names.SYSTEM_NAMESPACE}
        data = {platform_config.CONFIG_KEY: published}
        kube.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
        if refused:
            with pytest.raises(RequestRefusedError, match=r"no node of that flavor can give \(n3: Linux 5.15"):
                verbs.migrate(kube, "default", "digits", flavor="spot")
            assert untouched(kube)
        else:
            assert moved(kube, flavor="spot").flavors == ["spot"]


def test_a_missing_permission_is_named():
    kube = cluster(running())
    kube.fail_next("list", CLUSTER_QUEUE, Forbidden("no", 403))
    with pytest.raises(PlatformError, match="permission to list them"):
        verbs.migrate(kube, "default", "digits", flavor="spot")
    assert untouched(kube)


# --- checkpoint -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("job", "message"),
    [
        (samples.job(), "does not run now"),
        (samples.job(suspend=True, history=[samples.attempt(first_step_at=1.0)]), "does not run now"),
        (samples.job(history=[samples.attempt()]), "attempt 1 has not made a step yet"),
        (
            samples.job(history=[samples.attempt(first_step_at=1.0, evicted_at=2.0, ended_by="Preempted")]),
            r"attempt 1 is being stopped already \(Preempted\)",
        ),
    ],
)
def test_nothing_to_save(job, message):
    kube = cluster(job)
    with pytest.raises(RequestRefusedError, match=message):
        verbs.checkpoint(kube, "default", "digits")
    assert untouched(kube)


def test_a_checkpoint_needs_a_sensible_deadline():
    with pytest.raises(RequestRefusedError, match=r"timeout = 0\.1: must be from 1 to 3600"):
        verbs.checkpoint(cluster(running()), "default", "digits", timeout_s=0.1)


def test_a_checkpoint_does_not_replace_a_resize():
    kube = cluster(running())
    asked = verbs.resize(kube, "default", "digits", 2)
    verbs.checkpoint(kube, "default", "digits")
    assert verbs.look(kube, asked).state == "asked"


# --- the same again, another one, and waiting ------------------------------------------------------------------------
def test_the_same_request_joins_the_one_under_way():
    kube = cluster(running())
    first = verbs.resize(kube, "default", "digits", 2, by="ann")
    assert verbs.resize(kube, "default", "digits", 2, by="bob").id == first.id
    answer(kube, first, "running", "goes from 4 to 2 workers")
    again = verbs.resize(kube, "default", "digits", 2)
    assert (again.id, again.state) == (first.id, "running")
    answer(kube, first, "done")
    assert verbs.resize(kube, "default", "digits", 2).id != first.id


def test_the_last_word_counts():
    kube = cluster(running())
    first = verbs.resize(kube, "default", "digits", 2)
    verbs.pause(kube, "default", "digits")
    end = verbs.wait(kube, first, 5)
    assert (end.state, end.ok, end.message) == ("superseded", False, "replaced by a later request (pause)")


def test_a_job_that_changes_meanwhile_is_looked_at_again():
    kube = cluster(running())
    kube.fail_next("patch", JOB, Conflict("changed", 409))
    assert verbs.pause(kube, "default", "digits").id == written(kube).id
    for _ in range(9):
        kube.fail_next("patch", JOB, Conflict("changed", 409))
    with pytest.raises(Conflict):
        verbs.resume(kube, "default", "digits")


def test_waiting_tells_each_change_and_returns_the_end():
    kube = cluster(running())
    asked = verbs.checkpoint(kube, "default", "digits")
    told = []

    def tell(result):
        told.append(result.state)
        if result.state == "running":
            answer(kube, asked, "done", "checkpoint c at step 7", checkpoint="c", step=7)

    answer(kube, asked, "running", "the ranks are asked")
    kube.fail_next("get", JOB, Unreachable("busy"))
    end = verbs.wait(kube, asked, 30, tell)
    assert (told, end.ok, end.checkpoint, end.step) == (["running", "done"], True, "c", 7)


def test_waiting_ends_with_the_job():
    kube = cluster(running())
    asked = verbs.pause(kube, "default", "digits")
    kube.delete(JOB, "default", "digits")
    assert verbs.wait(kube, asked, 5).state == "gone"


def test_waiting_in_vain_says_whose_turn_it_is():
    kube = cluster(running())
    asked = verbs.pause(kube, "default", "digits")
    with pytest.raises(RequestTimeoutError, match="is the controller running"):
        verbs.wait(kube, asked, 0)
    answer(kube, asked, "running", "taken up")
    with pytest.raises(RequestTimeoutError, match="not done after 0 s: taken up"):
        verbs.wait(kube, asked, 0)


@pytest.mark.parametrize("text", ["{", '{"id": "x"}', json.dumps({"id": "x", "op": "explode", "at": 1})])
def test_an_unreadable_request_is_no_request(text):
    job = running(annotations={job_names.ANN_REQUEST: text})
    assert user_requests.asked(job, user_requests.CHANGE) is None
    assert VERBS["pause"](cluster(job)).state == "asked"
