"""One look: parsed once, what cannot be read is a value, and nobody else takes annotations apart."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

import controller_scene as scene
import pytest
from job_builder import NOW, AJob, a_job

from kueue_integration.contract import job_names
from kueue_integration.controller.actions import (
    Decision,
    GiveUp,
    RequestReadmission,
    StartCheckpoint,
)
from kueue_integration.controller.decide import decide
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.snapshot import Job, Snapshot, UnreadableAnnotation, readable_or, required
from kueue_integration.errors import BadAnnotationError
from kueue_integration.job import records, states
from singularity_proxy.protocol import names

CONTROLLER = Path(__file__).parents[3] / "kueue_integration" / "controller"
READERS = ("contract/annotation_values.py", "contract/attempt_records.py", "requests/periodic_checkpoints.py")
SAVED = scene.checkpoint()
JOBS = {
    "waits": a_job(), "at the fence": a_job().with_quota(), "runs": a_job().running(),
    "runs and was saved": a_job().running().with_checkpoint(SAVED), "preempted": a_job().running().preempted(),
    "loses a pod": a_job().running().losing_a_pod(), "of others": a_job().of_others().with_quota(),
}  # fmt: skip


def reads(work: Any) -> Counter[str]:
    """Calls of what reads annotations while `work` is done, by name."""
    found: Counter[str] = Counter()

    def seen(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(READERS):
            found[frame.f_code.co_name] += 1

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("which", JOBS)
def test_a_second_decision_reads_no_annotation_again(which: str) -> None:
    one = JOBS[which]
    seen = Snapshot.parse(one.job, one.workload, one.pods)
    first: list[Decision] = []
    assert bool(reads(lambda: first.append(decide(seen, Settings(), NOW)))) == one.managed
    assert reads(lambda: first.append(decide(seen, Settings(), NOW))) == Counter()
    assert first[0] == first[1]


@pytest.mark.parametrize("which", JOBS)
def test_each_annotation_is_decoded_once_per_look(which: str) -> None:
    """Counted by name, at the one place that reads their text."""
    one, found = JOBS[which], Counter[str]()

    class Counted(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            found[name] += 1
            return super().get(name, default)

    job = one.job
    job["metadata"]["annotations"] = Counted(job["metadata"]["annotations"])
    decide(Snapshot.parse(job, one.workload, one.pods), Settings(), NOW)
    # Presence, the text as it stands, and what is read twice because its parts are fields of their own.
    twice = {names.ANN_CHECKPOINT, job_names.ANN_PLACEMENT, job_names.ANN_ATTEMPT}
    assert {name for name, times in found.items() if times > 1} <= twice
    assert found.keys() >= ({job_names.ANN_HOLD, job_names.ANN_REQUEST} if one.managed else set())
    assert job_names.ANN_BUDGET not in found or which == "preempted", "nothing is parsed that no decision needs"


NEEDED = {
    job_names.ANN_HISTORY: "history", job_names.ANN_ATTEMPT: "attempt_shown", names.ANN_CHECKPOINT: "checkpoint",
    job_names.ANN_CHECKPOINT_COPY: "checkpoint_copy", job_names.ANN_HOLD_DEADLINE: "hold_deadline",
    job_names.ANN_WORKERS: "workers", job_names.ANN_MIN_WORKERS: "min_workers",
    job_names.ANN_WORLD_SIZE: "world_size", job_names.ANN_RANKS_PER_WORKER: "ranks_per_worker",
    job_names.ANN_BUDGET: "budget_s", job_names.ANN_PLACEMENT: "placement",
}  # fmt: skip
INSTEAD = {
    job_names.ANN_BROKEN: ("lost", None), job_names.ANN_CHECKPOINTS: ("checkpoints", ()),
    job_names.ANN_CHECKPOINT_EVERY: ("save_interval", None), job_names.ANN_PODS: ("roster", None),
    job_names.ANN_INFRASTRUCTURE_RETRIES: ("infrastructure_retries", None),
}  # fmt: skip
"""What a field holds in place of an annotation that nobody depends on."""


@pytest.mark.parametrize("name", NEEDED)
def test_what_cannot_be_read_is_a_value_that_says_where_it_stands(name: str) -> None:
    job = Job.parse(a_job().running().with_note(name, "{x").job)
    found = getattr(job, NEEDED[name])
    assert isinstance(found, UnreadableAnnotation) and (found.name, found.text) == (name, "{x")
    assert readable_or(found, "in its place") == "in its place"
    with pytest.raises(BadAnnotationError, match=name):
        required(found)


@pytest.mark.parametrize("name", INSTEAD)
def test_what_nobody_depends_on_counts_as_not_said(name: str) -> None:
    assert records.unreadable(a_job().with_note(name, "{x").job).keys() == {name}
    assert getattr(Job.parse(a_job().with_note(name, "{x").job), INSTEAD[name][0]) == INSTEAD[name][1]


def test_whoever_needs_it_decides_what_that_means() -> None:
    torn = a_job().running().with_note(names.ANN_CHECKPOINT, "{x")
    assert torn.look().action is None  # an attempt that runs needs no checkpoint to go on
    assert "cannot" not in str(torn.preempted().look(now=scene.T0 + 31).action)
    waits = a_job().with_note(names.ANN_CHECKPOINT, "{x").with_quota().look().action
    assert names.ANN_CHECKPOINT in getattr(waits, "message", "")  # the next one does, and says so at the fence


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (a_job().running(), None), (a_job().running().preempted(), StartCheckpoint),
        (a_job().running().losing_a_pod(), RequestReadmission),
        (a_job().running().losing_a_pod().with_note(job_names.ANN_INFRASTRUCTURE_RETRIES, "0"), GiveUp),
    ],
)  # fmt: skip
def test_what_a_look_leads_to(one: AJob, kind: type[object] | None) -> None:
    action = one.look(now=scene.T0 + 31).action
    assert action is None if kind is None else isinstance(action, kind)


def test_a_part_that_was_read_again_is_parsed_again_and_the_rest_stays() -> None:
    one = a_job().running()
    before = Snapshot.parse(one.job, one.workload, one.pods)
    after = before.with_workload(one.preempted().workload)
    assert after.workload is not None and after.workload.leaves and not before.workload.leaves  # type: ignore[union-attr]
    assert after.job is before.job and after.pods is before.pods
    assert after.with_pods([]).pods == () and before.with_workload(None).workload is None
    assert before.with_job(a_job().job).job.suspended


# --- the walls ------------------------------------------------------------------------------------------------------
def test_no_module_of_the_controller_knows_the_text_of_an_annotation() -> None:
    found = set()
    for path in sorted(CONTROLLER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                found |= {(path.name, n.name) for n in node.names if n.name in ("annotation", "annotation_values")}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                found |= {(path.name, "annotations") for a in node.args[:1] if _says(a, "annotations")}
            elif (
                isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _says(node.slice, "annotations")
            ):
                found.add((path.name, "annotations"))
    assert found == set(), "a question about a Job, Workload or pod belongs in `job`"


def _says(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def test_the_parts_of_a_snapshot_cannot_be_changed() -> None:
    for part in (Snapshot, Job):
        assert part.__dataclass_params__.frozen and fields(part)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("message", "uids"),
    [
        ("Preempted to accommodate a workload (UID: w-1, JobUID: j-1) due to prioritization in the ClusterQueue; "
         "preemptor path: /training", ["w-1", "j-1"]),
        ("Previously: Preempted to accommodate a workload (UID: w-1, JobUID: UNKNOWN) due to reclamation", ["w-1"]),
        ("Preempted to accommodate a workload (UID: w-1) due to prioritization", ["w-1"]),
        ("something else (UID: w-1)", []),
    ],
)  # fmt: skip
def test_who_preempted_a_workload_is_in_kueue_s_message(message: str, uids: list[str]) -> None:
    found = scene.workload(evicted=("Preempted", message, 30))
    assert states.preemptor_uids(found) == uids
