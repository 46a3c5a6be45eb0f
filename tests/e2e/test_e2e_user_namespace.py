"""A platform whose training pods have user namespaces of their own: a job is preempted and goes on with every bit, and
whoever breaks out of everything in its pod is nobody on the node."""

from __future__ import annotations

import json
from pathlib import Path

import broken_out
import pod_processes
import pytest
from faults import PRIVILEGES, Faults
from rows import Rows, Training

from kueue_integration import doctor
from kueue_integration.doctor import user_namespaces
from kueue_integration.errors import KubeError
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.resources import JOB
from kueue_integration.requests import verbs
from kueue_integration.spec import platform_config
from localcluster.demo.wait import wait_for
from singularity_proxy.protocol import user_namespace

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
NAMESPACE = "own-users"
USUAL = {"pods__privileges": PRIVILEGES, "adoption__enabled": True}
TIMEOUT_S = 300


def launchers(training: Training) -> list[Path]:
    return pod_processes.launchers(training.pods())


def ends_as_it_began(rows: Rows, earlier: Training) -> None:
    """A job of before the switch gets the pods of its next attempt, with capabilities on the node as its template says;
    a new one like it does not begin."""
    asked = verbs.migrate(rows.kube, NAMESPACE, "earlier", flavor="spot")
    assert verbs.wait(rows.kube, asked, TIMEOUT_S).state == "done"
    (launcher,) = launchers(earlier)
    assert (launcher / "uid_map").read_text().split() == user_namespace.WHOLE
    job = rows.kube.get(JOB, NAMESPACE, "earlier")
    template = {"spec": job["spec"]["template"]["spec"]}
    copy = {"metadata": {"name": "like-it", "namespace": NAMESPACE}, "spec": {"template": template}}
    with pytest.raises(KubeError, match="only a pod with hostUsers: false"):
        rows.kube.create({"apiVersion": JOB.api_version, "kind": JOB.name, **copy}, dry_run=True)
    status = earlier.finish()
    assert (status.privileges, status.steps_lost) == (platform_config.NODE, 0)
    earlier.assert_exact(status)


def test_a_job_moves_bit_identically_and_owns_nothing_of_the_node(rows: Rows, faults: Faults) -> None:
    rows.submit = lambda spec: lifecycle.submit(rows.kube, spec, platform_config.load(rows.kube))
    rows.queue("q", {"ondemand": "200m", "spot": "200m"})
    faults.upgrade(pods__privileges=platform_config.NODE)
    earlier = rows.train("earlier", "q", workers=1)
    earlier.until_steps(5)
    faults.upgrade(pods__privileges=platform_config.USER_NAMESPACE, adoption__enabled=False)
    ends_as_it_began(rows, earlier)
    able = list(user_namespaces.flavors(rows.kube, platform_config.load(rows.kube)))
    assert able and {check.status for check in able} == {doctor.OK}, able
    tried = doctor.run_probe(rows.kube, NAMESPACE, TIMEOUT_S)
    assert tried and {check.status for check in tried} == {doctor.OK}, tried
    moves = rows.train("moves", "q", workers=2)
    for flavor in ("spot", "ondemand"):
        moves.until_steps(5)
        found = launchers(moves)
        assert len(found) == 2
        for launcher in found:
            first, outside, count = (launcher / "uid_map").read_text().split()
            assert first == "0" and int(outside) > 0 and int(count) == 65536, "root in there is nobody on the node"
        refused = broken_out.tried(int(found[0].name), own_users=True)
        assert set(refused.values()) <= broken_out.REFUSED, refused
        asked = verbs.migrate(rows.kube, NAMESPACE, "moves", flavor=flavor)
        assert verbs.wait(rows.kube, asked, TIMEOUT_S).state == "done"
    pods = moves.pods()
    assert pods and {json.dumps(pod["spec"].get("hostUsers")) for pod in pods} == {"false"}
    status = moves.finish()
    assert status.privileges == platform_config.USER_NAMESPACE
    assert [a.flavor for a in status.attempts] == ["ondemand", "spot", "ondemand"]
    assert status.steps_lost == 0
    known = platform_config.load(rows.kube).user_namespaces
    assert {name: told["can"] for name, told in known.items()} == {"ondemand": "all", "spot": "all"}, known
    moves.assert_exact(status)


@pytest.mark.full
def test_a_volume_whose_ids_cannot_be_mapped_is_named_and_its_job_runs_on_the_node(rows: Rows, faults: Faults) -> None:
    """One of the platform's: at `auto` a job's own keep it on the node. procfs cannot map ids, as NFS cannot."""
    rows.submit = lambda spec: lifecycle.submit(rows.kube, spec, platform_config.load(rows.kube))
    rows.queue("own", {"ondemand": "200m"})
    faults.upgrade(pods__privileges=platform_config.AUTO)
    known = platform_config.load(rows.kube)
    volume = {"name": "unmapped", "hostPath": {"path": "/proc", "type": "Directory"}}
    faults.upgrade(pods__volumes=[*known.volumes, volume])
    mounts = [*known.volume_mounts, {"name": "unmapped", "mountPath": "/unmapped", "readOnly": True}]
    faults.upgrade(pods__volumeMounts=mounts)
    try:
        tries = rows.train("tries", "own", workers=1)
        said = wait_for(lambda: told if "idmap" in (told := tries.look().message) else None, "the reason", TIMEOUT_S)
        rows.say(f"status: {said}")
        assert "failed to set MOUNT_ATTR_IDMAP on /proc" in said and "privileges 'node'" in said
        found = doctor.run_probe(rows.kube, NAMESPACE, 60)
        rows.say(f"probe: {found}")
        assert {check.status for check in found} == {doctor.FAIL}
        assert all("MOUNT_ATTR_IDMAP on /proc" in check.message for check in found), found
        rows.remove("tries")
        goes = rows.train("goes", "own", workers=1, privileges=platform_config.NODE)
        goes.until_steps(3)
        assert goes.finish().privileges == platform_config.NODE
    finally:
        faults.upgrade(pods__volumeMounts=[*known.volume_mounts])
        faults.upgrade(pods__volumes=[*known.volumes])
