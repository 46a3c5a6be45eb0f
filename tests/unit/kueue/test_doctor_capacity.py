"""Doctor compares the controller's limit of memory with what the cluster has."""

from __future__ import annotations

import controller_scene as scene
import pytest

from kueue_integration.contract import job_names
from kueue_integration.doctor import capacity
from kueue_integration.doctor.check import OK, WARN, Check
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import Object


def deployment(**limits: str) -> Object:
    meta = {"name": job_names.CONTROLLER_NAME, "namespace": job_names.SYSTEM_NAMESPACE}
    pod = {"containers": [{"name": "controller", "resources": {"limits": limits}}]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {"template": {"spec": pod}}}


def checks(*objects: Object) -> list[Check]:
    return list(capacity.controller_memory(FakeKube(*objects)))


def test_a_limit_below_what_the_jobs_take_is_named_with_the_command() -> None:
    jobs = [scene.job(f"j{n}", suspend=False, parallelism=4, uid=f"u{n}") for n in range(300)]
    ended = scene.job("old", conditions=[scene.condition("Complete", True, 9)], uid="old", parallelism=4)
    foreign = scene.job("foreign", managed=False, uid="foreign", parallelism=4)
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{n}"}} for n in range(20)]
    (found,) = checks(deployment(memory="128Mi"), *jobs, ended, foreign, *nodes)
    wanted = capacity.needed(300, 1200, 20)
    assert found.status == WARN and "300 jobs, 1200 pods, 20 nodes" in found.message
    assert f"{wanted} MiB" in found.message
    assert f"controller.resources.limits.memory={wanted}Mi" in found.fix
    (found,) = checks(deployment(memory=f"{wanted}Mi"), *jobs, *nodes)
    assert found.status == OK


def test_without_a_limit_or_a_deployment_there_is_nothing_to_compare() -> None:
    assert checks(deployment()) == checks() == []


@pytest.mark.parametrize(("size", "least"), [((0, 0, 0), 128), ((500, 2000, 1000), 256), ((2000, 8000, 5000), 384)])
def test_more_of_anything_needs_no_less(size: tuple[int, int, int], least: int) -> None:
    needed = capacity.needed(*size)
    assert needed >= least and needed % capacity.STEP == 0
    for more in range(3):
        larger = [n + 1000 * (place == more) for place, n in enumerate(size)]
        assert capacity.needed(*larger) >= needed
