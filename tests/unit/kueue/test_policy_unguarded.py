"""Nothing of ours begins in a namespace where the guard of pods is not in force, in whatever way it comes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from api_server import (
    ADMIN,
    CONTROLLER,
    JOB_CONTROLLER,
    JOBSET_CONTROLLER,
    KUEUE,
    OTHER,
    REPLICASET_CONTROLLER,
    TENANT,
    TRAINER_CONTROLLER,
    TRAINS,
    Policies,
)
from kueue_samples import PLATFORM
from pod_variants import other
from test_policy_pods import job, pod, said

from kueue_integration.contract import job_names, kinds
from kueue_integration.jobs import preflight
from kueue_integration.kube.resources import JOB, JOBSET, POD, TRAINJOB, Kind, Object

MANAGED = {job_names.LABEL_MANAGED: "true"}
OWNERS = [
    ("batch/v1", "Job"), ("batch/v1", "CronJob"), ("jobset.x-k8s.io/v1alpha2", "JobSet"), ("apps/v1", "ReplicaSet"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"), ("kueue.x-k8s.io/v1beta2", "Workload"),
]  # fmt: skip
USERS = (
    TENANT, ADMIN, CONTROLLER, KUEUE, JOB_CONTROLLER, JOBSET_CONTROLLER, TRAINER_CONTROLLER, REPLICASET_CONTROLLER,
)  # fmt: skip
OF_BEFORE = {
    ("Pod", "Job", JOB_CONTROLLER), ("Job", "JobSet", JOBSET_CONTROLLER), ("Job", "JobSet", ADMIN),
}  # fmt: skip
"""Who makes what for which owner: these alone, for what began before the guard. The administrator may do anything."""


def plain(kind: Kind, name: str = "begins", namespace: str = OTHER) -> Object:
    """One that is not ours."""
    if kind in (JOB, POD):
        made = (job if kind is JOB else pod)(other(PLATFORM), namespace=namespace)
    else:
        made = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"namespace": namespace}, "spec": {}}
    return {**made, "metadata": {**made["metadata"], "name": name}}


def labelled(made: Object, *where: str) -> Object:
    """With our label at a path of fields."""
    at: Any = made
    for part in where:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    at.setdefault("metadata", {}).setdefault("labels", {}).update(MANAGED)
    return made


def owned(made: Object, api_version: str, kind: str, controller: bool = True) -> Object:
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": api_version, "kind": kind, "name": "of-before", "uid": "u", "controller": controller}
    ]
    return made


def refused(policies: Policies, made: Object, user: str = TENANT) -> str:
    return said(lambda: policies.server.kube(user).create(made, dry_run=True))


@pytest.mark.parametrize("kind", [*kinds.KINDS, POD], ids=lambda kind: kind.name)
def test_nothing_of_ours_begins_where_pods_are_not_guarded(policies: Policies, kind: Kind) -> None:
    for user in (TENANT, ADMIN, CONTROLLER):
        assert preflight.unguarded(OTHER) in refused(policies, labelled(plain(kind)), user)
    assert not refused(policies, labelled(plain(kind, namespace=TRAINS)))
    assert not refused(policies, plain(kind)), "what is not ours is not concerned"


@pytest.mark.parametrize("kind", [*kinds.KINDS, POD], ids=lambda kind: kind.name)
def test_no_owner_that_somebody_writes_opens_it(policies: Policies, kind: Kind) -> None:
    """Pods and Jobs of what began before are made by the controllers of its kind: nobody else is one."""
    for user, (version, owner) in itertools.product(USERS, OWNERS):
        said_of = refused(policies, owned(labelled(plain(kind)), version, owner), user)
        before = (kind.name, owner, user) in OF_BEFORE
        assert (preflight.unguarded(OTHER) in said_of) is not before, (user, owner, said_of)
        assert bool(said_of) is not before, said_of
        if before:
            assert refused(policies, owned(labelled(plain(kind)), version, owner, controller=False), user)


@pytest.mark.parametrize("kind", [*kinds.KINDS, POD], ids=lambda kind: kind.name)
def test_it_does_not_become_ours_later(policies: Policies, kind: Kind) -> None:
    tenant, name = policies.server.kube(TENANT), f"later-{kind.plural}"
    made = plain(kind, name)
    made["spec"] |= {"suspend": True} if kind is JOB else {}
    tenant.create(made)
    body = {"metadata": {"labels": MANAGED}}
    ways = [lambda: tenant.patch(kind, OTHER, name, body)]
    if kind is JOB:
        template = {"spec": {"template": body}}
        ways += [lambda: tenant.patch(kind, OTHER, name, body, subresource="status")]
        applied = {"content_type": "application/apply-patch+yaml", "query": {"fieldManager": "k", "force": "true"}}
        ways += [lambda: tenant.patch(kind, OTHER, name, template)]
        ways += [lambda: tenant._json("PATCH", JOB.path(OTHER, name), body=labelled(made), **applied)]
    for way in ways:
        assert preflight.unguarded(OTHER) in said(way)
    tenant.patch(kind, OTHER, name, {"metadata": {"labels": {"mine": "x"}}})


def test_no_controller_is_led_to_make_something_of_ours(policies: Policies) -> None:
    """What a Job, or a JobSet's controller, makes has the labels of a template."""
    inner = {"name": "workers", "template": {"spec": job(other(PLATFORM))["spec"]}}
    assert preflight.unguarded(OTHER) in refused(policies, labelled(plain(JOB), "spec", "template"))
    for where in (("template",), ("template", "spec", "template")):
        made = {**plain(JOBSET), "spec": {"replicatedJobs": [{"name": "first"}, inner]}}
        assert not refused(policies, made)
        assert preflight.unguarded(OTHER) in refused(policies, labelled(made, "spec", "replicatedJobs", "1", *where))
        for part in (inner, inner["template"]["spec"]["template"]):
            part.pop("metadata", None)
        inner["template"].pop("metadata", None)
    # Trainer's controller makes a JobSet of a runtime that a tenant may have written.
    trainers = owned(labelled(plain(JOBSET)), "trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert preflight.unguarded(OTHER) in refused(policies, trainers, TRAINER_CONTROLLER)


def test_what_began_before_the_guard_goes_on(policies: Policies) -> None:
    """Its objects are written as ever; no copy of it begins."""
    name, namespace = "began", "began-before"
    policies.make_namespace(namespace, {})
    policies.label(namespace)
    policies.eventually(
        lambda: not refused(policies, labelled(plain(JOB, name, namespace))), "the namespace is known to be guarded"
    )
    for kind in (JOB, JOBSET, TRAINJOB, POD):
        policies.admin.create(labelled(plain(kind, name, namespace)))
    policies.unlabel(namespace)
    policies.eventually(
        lambda: refused(policies, labelled(plain(JOB, "copy", namespace))), "the namespace is known not to be"
    )
    for kind in (JOB, JOBSET, TRAINJOB, POD):
        policies.server.kube(TENANT).patch(kind, namespace, name, {"metadata": {"labels": {"mine": "x"}}})
    policies.server.kube(KUEUE).patch(JOB, namespace, name, {"spec": {"suspend": True}})
    policies.server.kube(KUEUE).patch(JOB, namespace, name, {"spec": {"suspend": False}})


def test_generated_objects_of_ours_begin_nowhere_else(policies: Policies) -> None:
    """Owners, makers and places of the label at random: what bears our label begins as told above, and never else."""
    dice, count = random.Random(37), {True: 0, False: 0}
    for _ in range(150):
        kind = dice.choice([*kinds.KINDS, POD])
        made, user = plain(kind), dice.choice(USERS)
        places = {JOB: [(), ("spec", "template")], POD: [()], TRAINJOB: [()]}.get(kind, [()])
        ours = dice.random() < 0.7
        if ours:
            labelled(made, *dice.choice(places))
        if dice.random() < 0.3:
            made["metadata"].pop("name")
            made["metadata"]["generateName"] = "begins-"
        owner = dice.choice([None, *OWNERS])
        if owner:
            owned(made, *owner)
        before = owner is not None and (kind.name, owner[1], user) in OF_BEFORE
        answer = refused(policies, made, user)
        assert bool(answer) is (ours and not before), (made, user, answer)
        count[bool(answer)] += 1
    assert min(count.values()) > 20, count
