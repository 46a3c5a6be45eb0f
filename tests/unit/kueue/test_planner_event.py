"""A real API server takes the planner's Events, and `top` finds them by their label."""

from __future__ import annotations

import time

from api_server import ApiServer

from kueue_integration.contract import job_names
from kueue_integration.controller.planning.report import event
from kueue_integration.kube.resources import EVENT, JOB, NAMESPACE
from kueue_integration.overview import objects
from kueue_integration.planner.arbiter import Ruling
from kueue_integration.planner.proposals import Proposal

SPACE = "planned"


def test_the_events_of_the_planner_are_stored_and_found(server: ApiServer) -> None:
    kube, now = server.kube(), time.time()
    kube.create({"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.name, "metadata": {"name": SPACE}})
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "c"}]}
    name = "a" * 63
    job = kube.create(
        {"apiVersion": JOB.api_version, "kind": JOB.name, "metadata": {"name": name, "namespace": SPACE},
         "spec": {"suspend": True, "template": {"spec": pod}}}
    )  # fmt: skip
    ruling = Ruling(Proposal("pause", (SPACE, name), "because", 1.0, "timeSharing"), True, "")
    for reason in (job_names.EVENT_PLANNER_DONE, job_names.EVENT_PLANNER_PROPOSAL):
        kube.create(event(ruling, job, reason, f"{reason} " * 200, now))
    found = [objects.step(e) for e in kube.list(EVENT, SPACE, job_names.LABEL_PLANNER)]
    assert sorted(step.done for step in found) == [False, True]
    assert {(s.namespace, s.job, s.policy, s.action) for s in found} == {(SPACE, name, "timeSharing", "pause")}
    assert all(abs(step.at - now) <= 1 for step in found)
    assert kube.list(EVENT, SPACE, f"{job_names.LABEL_PLANNER}=cordon") == []
