"""`doctor` says by flavor which nodes can give training pods a user namespace, and names those that cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from adoption_cases import jobset
from kueue_samples import PLATFORM, cluster, spec

from kueue_integration import doctor
from kueue_integration.adoption.jobset import adopted_jobset
from kueue_integration.doctor import jobs, user_namespaces
from kueue_integration.kube.fake import FakeKube
from kueue_integration.manifests import job_manifests
from kueue_integration.spec.platform_config import USER_NAMESPACE

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
    kube = cluster(earlier, now, adopted_jobset(jobset(), PLATFORM))
    found = {check.name: check for check in jobs.running(kube, "default", 0.0, OWN)}
    kept = found["privileges of jobs"]
    assert (kept.status, kept.message.startswith("1 of before")) == (doctor.OK, True) and "earlier" in kept.message
    (stuck,) = (check for check in found.values() if check.status == doctor.FAIL)
    assert stuck.name.endswith(".jobset") and "the guard of pods refuses" in stuck.message
    assert stuck.fix.endswith("--set pods.privileges=auto")
    before = [check.name for check in jobs.running(kube, "default", 0.0, PLATFORM)]
    assert not {"privileges of jobs", stuck.name} & set(before)
