"""The kind `JobProgress` of the chart, on a real API server."""

from __future__ import annotations

import json

from api_server import TEAM, Policies

from kueue_integration.contract import progress_objects
from kueue_integration.controller.notes import Notes
from kueue_integration.kube.resources import PROGRESS
from singularity_proxy.protocol.messages import to_json


def test_a_note_is_stored_read_and_replaced(policies: Policies) -> None:
    job = policies.job("progress-of-a-job")
    kube, notes = policies.server.kube(), Notes(policies.server.kube())
    for step in (3, 4):
        notes.take(job, to_json({"attempt": 1, "step": step, "at": 5.0, "phase": "running"}))
        assert notes.flush()
        found = kube.get(PROGRESS, TEAM, progress_objects.name_of(job))
        assert json.loads(progress_objects.note_of(found) or "")["step"] == step
    assert len(json.dumps(found)) < 900, "what etcd stores for each note"
    assert "managedFields" not in found["metadata"]
    (shown,) = progress_objects.all_shown(kube, TEAM, [job])
    assert progress_objects.note_of(found) in shown["metadata"]["annotations"].values()
