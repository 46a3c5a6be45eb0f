"""What a job wrote to `$OUTPUTS`, before and after a preemption, is at its URL once, with a manifest, at its end.

What it reads from `$INPUTS` is in each of its pods, which can only read it.

Alone shows a real sidecar without capabilities that reads what another user wrote, in a pod that moves.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.errors import SpecError
from localcluster.demo.wait import wait_for
from localcluster.shared_folder import STORE
from singularity_proxy.store.outputs import Outputs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
NAMESPACE = "results"
SCRIPT = Path(__file__).parent / "scripts" / "leave_outputs.py"


def starts(job: Training) -> int:
    path = job.output / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_outputs_are_stored_once_over_a_preemption_and_the_job_says_where(rows: Rows) -> None:
    rows.queue("results", {"ondemand": "50m"})
    files = {SCRIPT.name: SCRIPT.read_text()}
    url = f"file:///shared/{STORE}/outputs/{NAMESPACE}/run-1"
    place = rows.stage.cluster.shared / STORE / "outputs" / NAMESPACE / "run-1"
    words = place.with_name("words") / "two/lines"
    words.parent.mkdir(parents=True)
    words.write_text("before\nafter\n")
    inputs = {"words": f"file:///shared/{STORE}/outputs/{NAMESPACE}/words"}
    user = {"spec": {"securityContext": {"runAsUser": 1000}}}
    with pytest.raises(SpecError, match="is not below a place for outputs of namespace results"):
        rows.train("strays", "results", script=SCRIPT.name, files=files, outputs=f"file:///shared/{STORE}/jobs/x/y")
    places = {"inputs": inputs, "outputs": url}
    job = rows.train("leaves", "results", script=SCRIPT.name, files=files, pod_override=user, **places)
    wait_for(lambda: starts(job) == 1, "the program runs", TIMEOUT_S)
    rows.other("urgent", "results", cpu="50m")
    assert job.until_ended(1).checkpoint is not None
    assert Outputs(f"file://{place}").manifest() is None
    rows.remove("urgent")
    job.until(lambda s: s.attempt == 2 and s.phase == "Running", "it goes on")
    (job.output / "stop").touch()
    last = job.until(lambda s: s.final, "the end")
    assert last.phase == "Succeeded", last.message
    assert starts(job) == 1 and len(last.attempts) == 2
    manifest, stored = Outputs(f"file://{place}").manifest(), last.outputs
    assert manifest is not None and stored is not None and stored.url == url and stored.attempt == 2
    model = bytes(range(256)) * (80 << 10)
    found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    text = found.pop("singularity-outputs.json")
    assert hashlib.sha256(text).hexdigest() == stored.sha256
    assert found == {"read": b"before\nafter\n", "model.bin": model, "curves/loss.csv": b"0,1.0\n1,0.5\n"}
    assert {file.path: file.sha256 for file in manifest.files} == {
        name: hashlib.sha256(content).hexdigest() for name, content in found.items()
    }
    assert [left.path for left in manifest.left_out] == ["latest"]
