"""`doctor` says by flavor which nodes can give training pods a user namespace, and names those that cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from adoption_cases import jobset, trainjob
from kueue_samples import PLATFORM, cluster, spec, workload

from kueue_integration import doctor
from kueue_integration.adoption.jobset import adopted_jobset
from kueue_integration.adoption.trainjob import adopted_trainjob, runtime
from kueue_integration.doctor import jobs, user_namespaces
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import KUEUE_JOB_UID_LABEL, TRAINJOB
from kueue_integration.manifests import job_manifests
from kueue_integration.spec.platform_config import AUTO, USER_NAMESPACE

OWN = replace(PLATFORM, privileges=USER_NAMESPACE)
ABLE = [{"name": "", "features": {"userNamespaces": True}}, {"name": "runc", "features": {"userNamespaces": True}}]


def node(name: str, flavor: str, kernel: str = "6.18.44-cloud", handlers: Any = ABLE, ready: str = "True") -> Any:
    status = {"nodeInfo": {"kernelVersion": kernel}, "conditions": [{"type": "Ready", "status": ready}]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"flavor": flavor}},
        "status": status if handlers is None else {**status, "runtimeHandlers": handlers},
    }


def flavor(name: str) -> Any:
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}}
    return {**kind, "spec": {"nodeLabels": {"flavor": name}}}


def findings(platform: Any, *objects: Any) -> dict[str, doctor.Check]:
    return {check.name: check for check in user_namespaces.flavors(FakeKube(*objects), platform)}


def test_nodes_that_can() -> None:
    objects = [flavor("spot"), flavor("empty"), node("a", "spot"), node("b", "spot", handlers=ABLE[:1])]
    (own,) = findings(OWN, *objects).values()
    assert (own.name, own.status) == ("user namespaces on spot", doctor.OK)
    assert own.message == "its 2 ready nodes can give one; training pods have one"
    (plain,) = findings(PLATFORM, *objects).values()
    assert (plain.status, "pods.privileges=auto" in plain.message) == (doctor.OK, True)


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"kernel": "6.2.16"}, "c: Linux 6.2.16 is older than 6.3"),
        ({"kernel": "what"}, "c: Linux what is older than 6.3"),
        ({"handlers": None}, "c: its container runtime says nothing of user namespaces"),
        ({"handlers": [{"name": "", "features": {"userNamespaces": False}}, ABLE[1]]}, "c: its container runtime"),
        ({"handlers": [{"name": ""}]}, "c: its container runtime"),
    ],
)
def test_a_node_that_cannot_fails_the_check_where_the_platform_gives_such_pods_only(
    about: dict[str, Any], why: str
) -> None:
    objects = [flavor("spot"), flavor("gold"), node("a", "spot"), node("c", "spot", **about), node("g", "gold")]
    found = findings(OWN, *objects)
    bad = found["user namespaces on spot"]
    assert (bad.status, found["user namespaces on gold"].status) == (doctor.FAIL, doctor.OK)
    assert bad.message.startswith(f"1 of its 2 ready nodes cannot: {why}") and "pods.privileges=node" in bad.fix
    assert findings(PLATFORM, *objects)["user namespaces on spot"].status == doctor.OK
    resting = node("c", "spot", ready="False", **about)
    assert findings(OWN, flavor("spot"), node("a", "spot"), resting)["user namespaces on spot"].status == doctor.OK


def test_jobs_of_before_the_switch_are_named_and_those_that_would_get_no_pods_fail_the_check() -> None:
    earlier = job_manifests.job(spec(name="earlier"), PLATFORM)
    now = job_manifests.job(spec(name="now"), OWN)
    versions = replace(PLATFORM, training_runtime="singularity-0123456789")
    others = [
        adopted_jobset(jobset(), PLATFORM),
        adopted_trainjob(trainjob(), PLATFORM),
        adopted_trainjob(trainjob("versioned"), versions),
    ]
    kube = cluster(earlier, now, *others)
    (replicated,) = runtime(PLATFORM)["spec"]["template"]["spec"]["replicatedJobs"]
    for name in ("mine", "versioned"):
        mine = workload()
        mine["metadata"]["name"] = f"of-{name}"
        mine["metadata"]["labels"][KUEUE_JOB_UID_LABEL] = kube.get(TRAINJOB, "default", name)["metadata"]["uid"]
        mine["spec"]["podSets"] = [{"template": replicated["template"]["spec"]["template"]}]
        kube.put(mine)
    found = {check.name: check for check in jobs.running(kube, "default", 0.0, OWN)}
    kept = found["privileges of jobs"]
    assert (kept.status, kept.message.startswith("3 of before")) == (doctor.OK, True) and "earlier" in kept.message
    assert "mine.jobset" in kept.message and "versioned.trainjob" in kept.message
    assert "a Job that JobSet makes anew" in kept.message
    stuck = {check.name: check for check in found.values() if check.status == doctor.FAIL}
    assert set(stuck) == {"job mine.trainjob"}
    for check in stuck.values():
        assert "JobSet refuses the level" in check.message and check.fix.endswith("--set pods.privileges=auto")
    for platform in (PLATFORM, replace(PLATFORM, privileges=AUTO)):
        before = [check.name for check in jobs.running(kube, "default", 0.0, platform)]
        assert not {"privileges of jobs", *stuck} & set(before), "an upgrade to the default strands nobody"
