"""A platform whose training pods have user namespaces of their own: a job is preempted and goes on with every bit, and
whoever breaks out of everything in its pod is nobody on the node."""

from __future__ import annotations

import json
from pathlib import Path

import broken_out
import pod_processes
import pytest
from faults import Faults
from rows import Rows, Training

from kueue_integration import doctor
from kueue_integration.doctor import user_namespaces
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.resources import POD
from kueue_integration.requests import verbs
from kueue_integration.spec import platform_config

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
NAMESPACE = "own-users"
USUAL = {"pods__privileges": platform_config.NODE, "adoption__enabled": True}
TIMEOUT_S = 300


def launchers(training: Training) -> list[Path]:
    return pod_processes.launchers(training.pods())


def test_a_job_moves_bit_identically_and_owns_nothing_of_the_node(rows: Rows, faults: Faults) -> None:
    faults.upgrade(pods__privileges=platform_config.USER_NAMESPACE, adoption__enabled=False)
    rows.submit = lambda spec: lifecycle.submit(rows.kube, spec, platform_config.load(rows.kube))
    rows.queue("q", {"ondemand": "200m", "spot": "200m"})
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
    pods = list(rows.kube.list(POD, NAMESPACE))
    assert pods and {json.dumps(pod["spec"].get("hostUsers")) for pod in pods} == {"false"}
    status = moves.finish()
    assert status.privileges == platform_config.USER_NAMESPACE
    assert [a.flavor for a in status.attempts] == ["ondemand", "spot", "ondemand"]
    assert status.steps_lost == 0
    moves.assert_exact(status)
