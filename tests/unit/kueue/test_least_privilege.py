"""The chart's accounts have the rights that they use, and no more: each right that is missing is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rendered import HELM, NO_HELM, controller_env, render, rendered
from two_controllers import two_controllers

from kueue_integration.contract import job_names
from kueue_integration.controller import config
from kueue_integration.controller.errors import ConfigError
from kueue_integration.doctor import FAIL, OK, access
from kueue_integration.guard import names as guards
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import (
    CLUSTER_QUEUE,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    POD,
    WORKLOAD,
    Kind,
    Object,
)
from kueue_integration.spec import platform_config

pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)
CONTROLLER, SYSTEM = job_names.CONTROLLER_NAME, job_names.SYSTEM_NAMESPACE
MULTIKUEUE = "singularity-multikueue"
ALL = (
    "planner.cordon.mode=act", "planner.lending.mode=propose", "planner.health.mode=act", "planner.health.taint=true",
    "trainjob.enabled=true", "adoption.enabled=true", "multikueue.manager.enabled=true",
)  # fmt: skip
NAMED = "controller.namespaces={one,two}"
Rule = dict[str, Any]
Rights = dict[str | None, list[Rule]]
"""Rules by the namespace in which they count; None: in all, and for the cluster's own objects."""


def rights(objects: Sequence[Object], account: str) -> Rights:
    """What the bindings of the chart give an account of its namespace."""
    found: Rights = {}
    for binding in objects:
        subjects = binding.get("subjects") or ()
        if any(each["kind"] == "ServiceAccount" and each["name"] == account for each in subjects):
            where = binding["metadata"].get("namespace")
            role = binding["roleRef"]
            (rules,) = [
                one["rules"]
                for one in objects
                if (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace"))
                == (role["kind"], role["name"], where if role["kind"] == "Role" else None)
            ]
            found.setdefault(where, []).extend(rules or ())
    return found


class Authorizer(FakeKube):
    """Answers access reviews as RBAC does."""

    def __init__(self, given: Rights, env: Mapping[str, str]) -> None:
        container = {"env": [{"name": name, "value": value.replace("$", "$$")} for name, value in env.items()]}
        super().__init__(
            {
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": SYSTEM, "name": CONTROLLER},
                "spec": {"template": {"spec": {"containers": [container]}}},
            }
        )  # fmt: skip
        self.given = given

    def allowed(
        self,
        verb: str,
        kind: Kind,
        namespace: str | None,
        subresource: str | None = None,
        user: str | None = None,
        name: str | None = None,
    ) -> bool:
        assert user == access.USER
        resource = kind.plural + (f"/{subresource}" if subresource else "")
        rules = [*self.given.get(None, ()), *(self.given.get(namespace, ()) if namespace else ())]
        return any(
            kind.group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            and (not rule.get("resourceNames") or name in rule["resourceNames"])
            for rule in rules
        )  # fmt: skip


def without_one(given: Rights) -> Iterator[tuple[str, str, Rights]]:
    """Each verb of each resource (and name) in turn, with the rights that are left."""
    for where, rules in given.items():
        for at, rule in enumerate(rules):
            for resource in rule["resources"]:
                for name in rule.get("resourceNames") or [None]:
                    for verb in rule["verbs"]:
                        kept = [
                            {**rule, "resources": [r], "verbs": [v], **({"resourceNames": [n]} if n else {})}
                            for r in rule["resources"] for v in rule["verbs"]
                            for n in rule.get("resourceNames") or [None]
                            if (r, v, n) != (resource, verb, name)
                        ]  # fmt: skip
                        left = {**given, where: [*rules[:at], *kept, *rules[at + 1 :]]}
                        yield verb, resource, left


@pytest.mark.parametrize("sets", [(), ALL, (NAMED,), (*ALL, NAMED)], ids=["default", "all", "named", "all, named"])
def test_each_right_of_the_controller_is_needed_and_doctor_names_the_one_that_is_missing(sets: tuple[str, ...]) -> None:
    given = rights(rendered(*sets), CONTROLLER)
    env = controller_env(render(*sets))
    namespaces = ["one", "two"] if NAMED in sets else []
    (fine,) = access.controller(Authorizer(given, env), namespaces)
    assert fine.status == OK, fine.message
    tried, twice = 0, set()
    for verb, resource, left in without_one(given):
        (check,) = access.controller(Authorizer(left, env), namespaces)
        if check.status == OK:
            twice.add((verb, resource))
            continue
        assert check.status == FAIL and f"{verb} {resource}" in check.message, (verb, resource, check.message)
        tried += 1
    assert tried > 60
    # A manager reads the ConfigMaps of all jobs, and its own among them.
    assert twice == ({("get", "configmaps")} if sets == ALL else set())


def test_a_controller_of_a_few_namespaces_has_no_right_in_others() -> None:
    everywhere = {
        (group, resource): set(rule["verbs"])
        for rule in rights(rendered(*ALL, NAMED), CONTROLLER)[None]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    kueue, policies = "kueue.x-k8s.io", "admissionregistration.k8s.io"
    assert everywhere.keys() == {
        (kueue, "clusterqueues"), (kueue, "resourceflavors"), (kueue, "cohorts"), (kueue, "admissionchecks"),
        (kueue, "admissionchecks/status"), (kueue, "multikueueclusters"), ("", "nodes"),
        (policies, "validatingadmissionpolicies"), (policies, "validatingadmissionpolicybindings"),
        (policies, "mutatingwebhookconfigurations"),
        ("trainer.kubeflow.org", "clustertrainingruntimes"), ("authentication.k8s.io", "tokenreviews"),
    }, "objects of the cluster alone"  # fmt: skip
    assert rights(rendered(NAMED), CONTROLLER).keys() == {None, "one", "two", SYSTEM}


def test_the_namespaces_reach_the_controller_and_who_submits() -> None:
    env = controller_env(render(NAMED))
    found = config.load(["--identity", "me"], env)
    assert found.namespaces == ("one", "two")
    assert found.published is not None and found.published.platform.namespaces == ("one", "two")
    assert config.load(["--identity", "me"], controller_env(render())).namespaces == ()


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"SINGULARITY_NAMESPACES": '"one"'}, "must be a list of namespaces"),
        ({"SINGULARITY_NAMESPACES": "[1]"}, "must be a list of namespaces"),
        (
            {"SINGULARITY_NAMESPACES": '["one"]', "SINGULARITY_PLANNER": '{"defragmentation": {"mode": "act"}}'},
            "the policy defragmentation counts the pods of all namespaces; set planner.defragmentation.mode to none",
        ),
    ],
)
def test_namespaces_that_cannot_be(env: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=r"chart value controller\.namespaces") as refused:
        config.load(["--identity", "me"], env)
    assert said in str(refused.value)


def test_a_workers_account_writes_in_its_namespaces_only() -> None:
    def verbs(*sets: str) -> dict[str | None, set[str]]:
        given = rights(rendered("multikueue.worker.enabled=true", *sets), MULTIKUEUE)
        return {where: {verb for rule in rules for verb in rule["verbs"]} for where, rules in given.items()}

    reads, writes = {"get", "list", "watch"}, {"create", "delete", "patch", "update"}
    assert verbs() == {None: reads | writes}
    assert verbs("multikueue.worker.namespaces={one}") == {None: reads, "one": writes | {"get"}}


def fenced_queue(namespace: str) -> list[Object]:
    """A way from the namespace to a queue that has our check."""
    checks = {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}
    return [
        {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": "q", **where}, "spec": spec}
        for kind, where, spec in (
            (CLUSTER_QUEUE, {}, {"admissionChecksStrategy": checks}),
            (LOCAL_QUEUE, {"namespace": namespace}, {"clusterQueue": "q"}),
        )
    ]


def test_a_real_controller_leads_with_the_rights_of_a_few_namespaces(tmp_path: Path) -> None:
    """It leads as soon as it has listed every kind; a right that is missing would keep it from that."""
    with two_controllers(tmp_path, NAMED, namespaces=("one", "two", "three")) as cluster:
        unit = Kind("ClusterRoleBinding", "rbac.authorization.k8s.io", "v1", "clusterrolebindings", namespaced=False)
        cluster.kube.delete(unit, None, "unit")  # what the tests' API server gives every account
        cluster.until(lambda: not cluster.kube.allowed("list", POD, "three", user=access.USER), "its own rights")
        cluster.start("a")
        cluster.until_led()
        for kind in (JOB, WORKLOAD, POD):
            assert cluster.kube.allowed("list", kind, "one", user=access.USER)
            for where in ("three", None):
                assert not cluster.kube.allowed("list", kind, where, user=access.USER)
        assert platform_config.load(cluster.kube).namespaces == ("one", "two")
        told = lambda: platform_config.load(cluster.kube).guard_problem  # noqa: E731
        cluster.until(lambda: guards.PODS in told(), "the chart's guard of pods is not installed here")
        for made in fenced_queue("one"):
            cluster.kube.create(made)
        guarded = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}
        labels = lambda: cluster.kube.get(NAMESPACE, None, "one")["metadata"]["labels"]  # noqa: E731
        cluster.until(lambda: guarded.items() <= labels().items(), "the guard is in force where the queue is")
        assert "forbidden" not in (cluster.folder / "a.log").read_text()
