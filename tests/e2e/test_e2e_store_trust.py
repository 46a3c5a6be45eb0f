"""What is in the store changes behind a paused job's back: the checkpoint before is restored, and no bit is wrong.

Two pods with a rank each. Somebody who can write to the store, and not to the Job, overwrites what only the newest
checkpoint names: its manifest (whole and valid in itself) and packs, or one byte of one pack (review B1, E7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from other_kinds import ctl
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.contract import attempt_records
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from singularity_proxy.protocol.manifest import dumps
from singularity_proxy.protocol.messages import CheckpointRef
from singularity_proxy.store import Store, layout

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "rows-trust", say)
    made.queue("trust", {"ondemand": "100m"})
    yield made
    made.close()


def committed(job: Training) -> CheckpointRef:
    found = attempt_records.checkpoint(job.job())
    assert found is not None
    return found


def saved_twice(rows: Rows, name: str) -> tuple[Training, CheckpointRef, CheckpointRef]:
    """A paused job, the checkpoint that it was paused with, and one that it took before on the side."""
    job = rows.train(name, "trust", workers=2)
    job.until_steps()
    ctl(rows, "checkpoint", name, "--wait")
    older = committed(job)
    job.until(lambda s: s.step > older.step + 5, "steps after the first checkpoint")
    ctl(rows, "pause", name, "--wait")
    wait_for(lambda: not job.pods(), "the pods of the paused job are gone", TIMEOUT_S)
    newer = committed(job)
    assert newer.generation > older.generation
    return job, newer, older


def own_packs(rows: Rows, job: Training, ref: CheckpointRef, other: CheckpointRef) -> tuple[Store, list[Path]]:
    """The store as this machine sees it, and the packs that `ref` names and `other` does not."""
    url = ref.url.replace("file:///shared", f"file://{rows.stage.cluster.shared}")
    store = Store(url)
    names = [
        {pack.name for rank in store.read_manifest(rows.namespace, job.name, each.id).ranks for pack in rank.packs}
        for each in (ref, other)
    ]
    folder = Path(url.removeprefix("file://")) / "jobs" / rows.namespace / job.name / "packs"
    return store, [folder / name for name in sorted(names[0] - names[1])]


def goes_on_from(job: Training, rows: Rows, newer: CheckpointRef, older: CheckpointRef, *words: str) -> None:
    """Attempt 2 says what is wrong and runs nothing; attempt 3 goes on from `older`, to the same bits."""
    before = job.lines()
    ctl(rows, "resume", job.name)
    second = job.until_ended(2)
    assert second.restored_from == newer.id and second.first_step_at is None
    assert second.note and all(word in second.note for word in (newer.id, *words)), second.note
    status = job.until_attempt(3)
    third = status.attempts[2]
    assert third.restored_from == older.id and third.first_step == older.step
    assert [(skipped.id, skipped.step) for skipped in third.skipped] == [(newer.id, newer.step)]
    assert f"checkpoint {newer.id} (step {newer.step}) cannot be restored" in " ".join(
        ctl(rows, "status", job.name, "-o", "wide").split()
    )
    job.until(lambda s: s.step > newer.step, "all that was skipped ran again")
    job.finish()
    # Every line of every rank has the bits of an uninterrupted run; what came after the older checkpoint ran again.
    assert job.repeated() == newer.step - older.step
    assert job.lines()[: len(before)] == before


def test_manifest_and_packs_that_were_overwritten_are_not_unpacked(rows: Rows) -> None:
    job, newer, older = saved_twice(rows, "replaced")
    store, packs = own_packs(rows, job, newer, older)
    manifest = store.read_manifest(rows.namespace, job.name, newer.id)
    for path in packs:
        path.write_bytes(b"what somebody else wants to run" * 1000)
    path = layout.manifest_path(rows.namespace, job.name, newer.id)
    store.backend.write(path, dumps(replace(manifest, master_port=1)).encode())
    assert "is not the manifest that was committed" in ctl(rows, "checkpoints", "verify", job.name, newer.id, code=1)
    goes_on_from(job, rows, newer, older, "is not the manifest that was committed")


def test_one_flipped_byte_costs_the_steps_since_the_checkpoint_before(rows: Rows) -> None:
    job, newer, older = saved_twice(rows, "flipped")
    _, packs = own_packs(rows, job, newer, older)
    assert packs, "every checkpoint has something of its own"
    data = packs[0].read_bytes()
    packs[0].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    goes_on_from(job, rows, newer, older, packs[0].name)
