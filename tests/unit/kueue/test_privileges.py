"""The level of a job: what the platform allows, what the nodes can, what the job wishes; and who is told why."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from adoption_cases import jobset, plain
from adoption_cases import trainjob as a_trainjob
from kueue_samples import PLATFORM, cluster, spec
from test_doctor_user_namespaces import flavor, node

from kueue_integration.adoption import recreate, trainjob
from kueue_integration.contract import job_names
from kueue_integration.controller.flavor_levels import LOOK_S, FlavorLevels
from kueue_integration.controller.machines.nodes import Nodes
from kueue_integration.doctor import probe
from kueue_integration.errors import SpecError
from kueue_integration.job import states
from kueue_integration.jobs import lifecycle, time_travel
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CLUSTER_QUEUE, JOB, annotation, merge_patch
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec import platform_config, privileges
from kueue_integration.spec.platform_config import AUTO, NODE, USER_NAMESPACE
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, to_json

KNOWN = {
    "new": {"can": "all"},
    "mixed": {"can": "some", "why": "m: Linux 5.15 is older than 6.3"},
    "old": {"can": "none", "why": "o: Linux 5.15 is older than 6.3"},
}
WISHES = (None, *privileges.WISHES)
SETTINGS = (NODE, AUTO, USER_NAMESPACE)
FLAVORS = [
    (), *((name,) for name in KNOWN), ("new", "mixed"), ("new", "old"), ("mixed", "old"), ("new", "unseen"),
]  # fmt: skip


def platform(setting: str, *flavors: str) -> platform_config.PlatformConfig:
    found = replace(PLATFORM, privileges=setting, user_namespaces=KNOWN)
    return privileges.narrowed(found, set(flavors)) if flavors else replace(found, user_namespaces={})


@pytest.mark.parametrize(("setting", "wish", "flavors"), list(itertools.product(SETTINGS, WISHES, FLAVORS)))
def test_no_job_gets_more_than_the_platform_allows_and_it_asks_for(
    setting: str, wish: str | None, flavors: tuple[str, ...]
) -> None:
    given = platform(setting, *flavors)
    refused = privileges.problem(wish, given)
    try:
        (job,) = (made for made in render(spec(privileges=wish), given) if made["kind"] == "Job")
    except SpecError as error:
        assert [(name, text) for name, _, text in error.problems] == [("privileges", refused)]
        assert (wish, setting) == (NODE, USER_NAMESPACE) or "old" in flavors
        return
    assert not refused
    level = states.privileges(job)
    all_can = bool(flavors) and set(flavors) == {"new"}
    if level == NODE:
        assert setting != USER_NAMESPACE and wish != USER_NAMESPACE
        assert wish == NODE or setting == NODE or not all_can
    else:
        assert level == USER_NAMESPACE and wish != NODE
        assert "old" not in flavors
    if setting == AUTO and wish in (None, AUTO):
        assert (level == USER_NAMESPACE) == all_can
    (train,) = job["spec"]["template"]["spec"]["containers"]
    assert (train["securityContext"].get("procMount") == "Unmasked") == (level == USER_NAMESPACE)
    status = summarise({**job, "metadata": {**job["metadata"], "uid": "u"}}, None, [])
    assert (status.privileges, status.privileges_why) == (level, privileges.chosen(wish, given).why)


def test_what_is_not_a_level_is_refused_before_a_cluster_is_asked() -> None:
    for wish in ("root", "", 1, True, ["node"]):
        assert "must be 'auto', 'userns' or 'node'" in privileges.problem(wish, None)


def test_jobs_of_the_state_engine_have_no_level() -> None:
    job = render(spec(engine="state", privileges=NODE), platform(USER_NAMESPACE, "old"))[-1]
    assert states.privileges(job) == "" and annotation(job, job_names.ANN_PRIVILEGES_WHY) is None


def queue(*flavors: str) -> dict[str, Any]:
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": name} for name in flavors]}]
    return {"spec": {"resourceGroups": groups}}


def with_queue(*flavors: str) -> FakeKube:
    """A cluster whose queue has these flavors."""
    kube = cluster()
    kube.put(merge_patch(kube.get(CLUSTER_QUEUE, None, "training"), queue(*flavors)))
    return kube


@pytest.mark.parametrize(
    ("flavors", "level", "why"),
    [
        (("new",), USER_NAMESPACE, "all nodes of its flavors can (new)"),
        (("new", "mixed"), NODE, "flavor mixed cannot give a user namespace to each pod: m: Linux 5.15"),
        (("unseen",), NODE, "flavor unseen cannot give a user namespace to each pod: no ready node has been seen"),
    ],
)
def test_submit_and_adopt_look_at_the_flavors_of_the_queue(flavors: tuple[str, ...], level: str, why: str) -> None:
    given = replace(PLATFORM, privileges=AUTO, user_namespaces=KNOWN)
    kube = with_queue(*flavors)
    lifecycle.submit(kube, spec(), given)
    recreate.create(kube, plain(), given)
    for name in ("digits", "mine"):
        job = kube.get(JOB, "default", name)
        assert states.privileges(job) == level
        assert (annotation(job, job_names.ANN_PRIVILEGES_WHY) or "").startswith(why)


def test_a_queue_whose_nodes_cannot_takes_no_job_that_must_have_a_user_namespace() -> None:
    kube = with_queue("new", "old")
    for setting, wish in ((USER_NAMESPACE, None), (AUTO, USER_NAMESPACE)):
        given = replace(PLATFORM, privileges=setting, user_namespaces=KNOWN)
        wished = plain()
        wished["metadata"]["annotations"] |= {job_names.ANN_PRIVILEGES: wish} if wish else {}
        for make in (
            lambda given=given, wish=wish: lifecycle.submit(kube, spec(privileges=wish), given),
            lambda given=given, wished=wished: recreate.create(kube, wished, given),
        ):
            with pytest.raises(SpecError, match="no node of flavor old can give a pod a user namespace"):
                make()
    assert not kube.list(JOB, "default")


@pytest.mark.parametrize("make", [plain, jobset], ids=["Job", "JobSet"])
@pytest.mark.parametrize(("setting", "wish"), list(itertools.product(SETTINGS, (*WISHES, "root"))))
def test_adopted_jobs_have_the_level_that_submit_would_give(make: Any, setting: str, wish: str | None) -> None:
    given = platform(setting, "new")
    job = make()
    if wish is not None:
        job["metadata"].setdefault("annotations", {})[job_names.ANN_PRIVILEGES] = wish
    if text := privileges.problem(wish, given):
        with pytest.raises(SpecError, match=r"must be|for no job") as refused:
            recreate.manifest(job, given)
        assert [name for name, *_ in refused.value.problems] == [f"metadata.annotations[{job_names.ANN_PRIVILEGES}]"]
        assert text
        return
    made = recreate.manifest(job, given)
    level = privileges.chosen(wish, given)
    template = made["spec"] if made["kind"] == "Job" else made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert states.privileges({"spec": template}) == level.name
    assert annotation(made, job_names.ANN_PRIVILEGES_WHY) == level.why


def test_the_runtime_of_trainjobs_has_the_platforms_level_and_other_wishes_are_refused() -> None:
    for setting, level in ((NODE, NODE), (AUTO, NODE), (USER_NAMESPACE, USER_NAMESPACE)):
        given = platform(setting, "new")
        (replicated,) = trainjob.runtime(given)["spec"]["template"]["spec"]["replicatedJobs"]
        pod = replicated["template"]["spec"]["template"]["spec"]
        assert (pod.get("hostUsers") is False) == (level == USER_NAMESPACE)
        other = {NODE: USER_NAMESPACE, USER_NAMESPACE: NODE}[level]
        for wish in (None, AUTO, level, other):
            made = a_trainjob()
            made["metadata"]["annotations"] = {job_names.ANN_PRIVILEGES: wish} if wish else {}
            if wish == other:
                with pytest.raises(SpecError, match=f"gives all TrainJobs the level '{level}'"):
                    recreate.manifest(made, given)
            else:
                assert annotation(recreate.manifest(made, given), job_names.ANN_PRIVILEGES_WHY)


# --- what nodes can, as the controller publishes it -------------------------------------------------------------------
def test_the_controller_says_by_flavor_what_nodes_can_and_keeps_it_while_none_is_there() -> None:
    old = {"kernel": "5.15.0"}
    kube = FakeKube(
        *(flavor(name) for name in ("new", "mixed", "old", "unseen")),
        node("n", "new"), node("m1", "mixed"), node("m2", "mixed", **old), node("o", "old", **old),
    )  # fmt: skip
    nodes, at = Nodes(kube), [0.0]
    levels = FlavorLevels(kube, nodes, lambda: [queue("new", "mixed"), queue("old", "unseen", "gone")], lambda: at[0])
    told = {"why": "m2: Linux 5.15.0 is older than 6.3"}
    try:
        first = dict(levels.known())
        assert first == {
            "mixed": {"can": "some", **told},
            "new": {"can": "all"},
            "old": {"can": "none", "why": "o: Linux 5.15.0 is older than 6.3"},
        }
        assert (
            platform_config.from_json(
                platform_config.to_json(replace(PLATFORM, privileges=AUTO, user_namespaces=first))
            ).user_namespaces
            == first
        )
        for name, kept in (("n", "new"), ("o", "old")):
            kube.put({**node(name, kept, ready="False"), "metadata": {"name": name, "labels": {"flavor": kept}}})
        at[0] += LOOK_S
        assert levels.known() == first
    finally:
        nodes.stop()


def test_the_probe_of_a_flavor_has_the_level_of_its_jobs() -> None:
    given = replace(PLATFORM, privileges=AUTO, user_namespaces=KNOWN)
    for name, level in (("new", USER_NAMESPACE), ("old", NODE), ("unseen", NODE)):
        pod = probe.pod("default", given, flavor(name), 60)["spec"]
        assert (pod.get("hostUsers") is False) == (level == USER_NAMESPACE)


# --- what may not go with a user namespace ----------------------------------------------------------------------------
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
NFS = {"name": "data", "nfs": {"server": "s", "path": "/"}}
HUGE = {"name": "data", "emptyDir": {"medium": "HugePages-2Mi"}}
UNKNOWN = "volume data may be one whose ids cannot be mapped"


@pytest.mark.parametrize("volume", [CLAIM, NFS, HUGE], ids=["claim", "nfs", "huge pages"])
@pytest.mark.parametrize("whose", ["job", "platform"])
def test_at_auto_a_volume_that_may_not_be_mapped_keeps_a_job_on_the_node_unless_it_asks(
    volume: dict[str, Any], whose: str
) -> None:
    for setting, wish, level in (
        (AUTO, None, NODE), (AUTO, AUTO, NODE), (AUTO, USER_NAMESPACE, USER_NAMESPACE),
        (USER_NAMESPACE, None, USER_NAMESPACE), (NODE, None, NODE),
    ):  # fmt: skip
        given, own = platform(setting, "new"), [volume]
        if whose == "platform":
            given, own = replace(given, volumes=own), []
        job = render(spec(privileges=wish, volumes=own), given)[-1]
        told = annotation(job, job_names.ANN_PRIVILEGES_WHY) or ""
        assert states.privileges(job) == level
        assert told.startswith(UNKNOWN) == (setting == AUTO and level == NODE), told
        mine = plain()
        mine["metadata"]["annotations"] |= {job_names.ANN_PRIVILEGES: wish} if wish else {}
        mine["spec"]["template"]["spec"].setdefault("volumes", []).extend(own)
        adopted = recreate.manifest(mine, given)
        assert (states.privileges(adopted), annotation(adopted, job_names.ANN_PRIVILEGES_WHY)) == (level, told)


def test_at_auto_devices_keep_a_job_on_the_node() -> None:
    job = render(spec(resources={"cpu": "1", "nvidia.com/gpu": "1"}), platform(AUTO, "new"))[-1]
    assert states.privileges(job) == NODE
    assert (annotation(job, job_names.ANN_PRIVILEGES_WHY) or "").startswith(privileges.NO_DEVICES)


def publish(kube: FakeKube, given: platform_config.PlatformConfig) -> None:
    meta = {"name": job_names.PLATFORM_CONFIGMAP, "namespace": job_names.SYSTEM_NAMESPACE}
    data = {platform_config.CONFIG_KEY: platform_config.to_json(given)}
    kube.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


def saved(kube: FakeKube, level: str) -> dict[str, Any]:
    """Job digits of this level, with a checkpoint."""
    lifecycle.submit(kube, spec(), replace(PLATFORM, privileges=level))
    ref = CheckpointRef("digits-a1-g1", 1, 1, 100, 4, PLATFORM.store, 4000, 4000, 1e9, sha256="0" * 64)
    told = {job_names.ANN_CHECKPOINTS: to_json([ref]), names.ANN_CHECKPOINT: to_json(ref)}
    return kube.patch(JOB, "default", "digits", {"metadata": {"annotations": told}})


# --- forks ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("had", "setting", "wish", "level"),
    [
        (NODE, NODE, None, NODE), (NODE, AUTO, None, NODE), (NODE, USER_NAMESPACE, None, USER_NAMESPACE),
        (USER_NAMESPACE, NODE, None, USER_NAMESPACE), (USER_NAMESPACE, AUTO, None, USER_NAMESPACE),
        (NODE, AUTO, USER_NAMESPACE, USER_NAMESPACE), (NODE, AUTO, AUTO, USER_NAMESPACE),
        (USER_NAMESPACE, AUTO, NODE, NODE), (NODE, USER_NAMESPACE, AUTO, USER_NAMESPACE),
        (NODE, USER_NAMESPACE, NODE, "lets capabilities count on the node for no job"),
    ],
)  # fmt: skip
def test_a_fork_has_its_sources_level_or_the_one_it_asks_for(
    had: str, setting: str, wish: str | None, level: str
) -> None:
    kube, made = with_queue("new"), None
    given = replace(PLATFORM, privileges=setting, user_namespaces=KNOWN)
    publish(kube, given)
    source = saved(kube, had)
    if level not in platform_config.PRIVILEGES:
        with pytest.raises(SpecError, match=level):
            time_travel.fork(kube, "default", "digits", "other", ask=lambda *_: {}, level=wish)
        return
    time_travel.fork(kube, "default", "digits", "other", ask=lambda *_: {}, level=wish)
    made = kube.get(JOB, "default", "other")
    (train,) = made["spec"]["template"]["spec"]["containers"]
    assert states.privileges(made) == level
    assert (train["securityContext"].get("procMount") == "Unmasked") == (level == USER_NAMESPACE)
    assert states.privileges(source) == had


def test_a_fork_never_has_more_than_its_source_unasked() -> None:
    kube = with_queue("old")
    publish(kube, replace(PLATFORM, privileges=AUTO, user_namespaces=KNOWN))
    saved(kube, USER_NAMESPACE)
    with pytest.raises(SpecError, match="no node of flavor old can give a pod a user namespace"):
        time_travel.fork(kube, "default", "digits", "other", ask=lambda *_: {})
