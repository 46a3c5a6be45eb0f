"""Each way a pod comes into a namespace that trains: who makes it, and from what, changes nothing of what it may be."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import pytest
from api_server import (
    JOB_CONTROLLER,
    JOBSET_CONTROLLER,
    REPLICASET_CONTROLLER,
    TENANT,
    TRAINER_CONTROLLER,
    TRAINS,
    Policies,
)
from kueue_samples import PLATFORM
from pod_variants import BAD, GOOD, Make, Pod, ours
from test_policy_mounts import containers, generated
from test_policy_pods import job, pod, said

from kueue_integration.kube.resources import JOBSET, POD, TRAINJOB, Object

Way = Callable[[Policies, Pod], str]
"""What the API server says to a pod spec on this way, "" if it lets it through to the node."""
REVIEW = (
    "a root of the user's", "the launcher's place, as //singularity/agent/launcher",
    "the launcher's place, as singularity/agent/launcher", "the launcher's place, as /x/../singularity/agent/launcher",
    "a folder that looks like a driver", "the installer's place, by way of a secret's",
    "a probe with all capabilities", "a sidecar with modules of the user's", "somebody else who serves the launcher",
)  # fmt: skip
"""What the third review found admitted, in its order (`test_rv_guard.py`)."""


def owned(manifest: Object, api_version: str, kind: str, name: str) -> Object:
    """As a controller makes it for its object."""
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": "u", "controller": True}
    meta = {**manifest["metadata"], "name": f"{name}-0", "ownerReferences": [owner]}
    return {**manifest, "metadata": meta}


def create(policies: Policies, user: str, manifest: Object) -> str:
    return said(lambda: policies.server.kube(user).create(manifest, dry_run=True))


def bare(policies: Policies, spec: Pod) -> str:
    return create(policies, TENANT, pod(spec))


def by_job(policies: Policies, spec: Pod) -> str:
    """The Job is refused already; one that was there before the guard gets no pod."""
    first = create(policies, TENANT, job(spec))
    then = create(policies, JOB_CONTROLLER, owned(pod({**spec, "restartPolicy": "Never"}), "batch/v1", "Job", "mine"))
    assert bool(first) == bool(then), (first, then)
    return first


def by_jobset(policies: Policies, spec: Pod) -> str:
    made = {"name": "workers", "replicas": 1, "template": {"spec": job(spec)["spec"]}}
    asked = {"apiVersion": JOBSET.api_version, "kind": JOBSET.name, "metadata": {"name": "mine", "namespace": TRAINS}}
    admitted = create(policies, TENANT, {**asked, "spec": {"replicatedJobs": [made]}})
    assert admitted == "", "nobody reads a JobSet's templates: its Jobs are judged"
    return create(policies, JOBSET_CONTROLLER, owned(job(spec), JOBSET.api_version, JOBSET.name, "mine"))


def by_trainjob(policies: Policies, spec: Pod) -> str:
    """Its patches are merged by Trainer's controller, so what counts is what this makes: a JobSet, and its Jobs."""
    meta = {"name": "mine", "namespace": TRAINS}
    trainjob = {"apiVersion": TRAINJOB.api_version, "kind": TRAINJOB.name, "metadata": meta, "spec": {}}
    jobset = {"apiVersion": JOBSET.api_version, "kind": JOBSET.name, "metadata": meta, "spec": {}}
    assert create(policies, TENANT, trainjob) == ""
    assert create(policies, TRAINER_CONTROLLER, owned(jobset, TRAINJOB.api_version, TRAINJOB.name, "mine")) == ""
    return create(policies, JOBSET_CONTROLLER, owned(job(spec), JOBSET.api_version, JOBSET.name, "mine-0"))


def by_deployment(policies: Policies, spec: Pod) -> str:
    made = owned(pod({**spec, "restartPolicy": "Always"}), "apps/v1", "ReplicaSet", "mine-7c9f")
    return create(policies, REPLICASET_CONTROLLER, made)


WAYS: dict[str, Way] = {
    "a bare pod": bare, "a Job": by_job, "a JobSet": by_jobset, "a TrainJob": by_trainjob,
    "a Deployment": by_deployment,
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_good_ones_come_each_way(policies: Policies, way: Way) -> None:
    for name, make in GOOD.items():
        assert way(policies, make(PLATFORM)) == "", name


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize(("make", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_ones_come_no_way(policies: Policies, way: Way, make: Make, sentence: str) -> None:
    refused = way(policies, make(PLATFORM))
    assert "'singularity-guard-" in refused and sentence in refused, refused


def test_a_generated_pod_is_judged_alike_on_each_way(policies: Policies) -> None:
    count = {True: 0, False: 0}
    for seed in range(1000, 1060):
        spec, paths = generated(seed)
        answers = {name: bool(way(policies, spec)) for name, way in WAYS.items()}
        assert len(set(answers.values())) == 1, (answers, paths)
        count[answers["a bare pod"]] += 1
    assert min(count.values()) > 5, count


@pytest.mark.parametrize("case", REVIEW)
def test_what_the_review_got_in_comes_in_no_debugger_either(policies: Policies, case: str) -> None:
    """The container that had it, as an ephemeral one of a training job's pod with the same volumes."""
    tenant, spec = policies.server.kube(TENANT), ours(PLATFORM)
    bad = BAD[case][0](PLATFORM)
    known = {each["name"] for each in spec["volumes"]}
    spec["volumes"] += [{"name": n, "emptyDir": {}} for n in ("mine",) if n not in known]
    name = f"debugged-{REVIEW.index(case)}"
    tenant.create(pod(spec, name))
    good = {json.dumps(each) for make in GOOD.values() for each in containers(make(PLATFORM))}
    (had,) = [each for each in containers(bad) if json.dumps(each) not in good]
    kept = ("command", "env", "envFrom", "image", "securityContext", "volumeMounts", "workingDir")
    debug = {"name": "debug", **{key: copy.deepcopy(had[key]) for key in kept if key in had}}
    patch = {"body": {"spec": {"ephemeralContainers": [debug]}}, "query": {"dryRun": "All"}}
    path = POD.path(TRAINS, name, "ephemeralcontainers")
    kind = "application/strategic-merge-patch+json"
    refused = said(lambda: tenant._json("PATCH", path, content_type=kind, **patch))
    assert "'singularity-guard-pods'" in refused and "container debug: " in refused, refused
