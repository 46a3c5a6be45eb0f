"""A checkpoint that somebody refers to stays: retention, gc and prune pass it over until it is let go."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_samples import FOLDER, JOB, NAMESPACE, commit, image

from singularity_proxy.errors import CheckpointNotFoundError, DamageError, StoreError
from singularity_proxy.protocol import names
from singularity_proxy.sidecar.retention import superseded
from singularity_proxy.store import Store, admin

FIRST = f"{JOB}-a1-g1"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three checkpoints of one job."""
    made = Store(f"file://{tmp_path}/store")
    for number in (1, 2, 3):
        commit(made, image(tmp_path / f"image-{number}", seed=number), number)
    return made


def ids(store: Store) -> list[str]:
    return [entry.id for entry in store.list_checkpoints(NAMESPACE, JOB)]


def test_a_held_checkpoint_stays_until_each_holder_has_let_it_go(store: Store) -> None:
    digest = store.read_digest(NAMESPACE, JOB, FIRST)[1]
    for holder in ("twin", "other", names.HOLD_REWIND):
        manifest, found = store.hold(NAMESPACE, JOB, FIRST, holder, digest)
        assert (manifest.id, found) == (FIRST, digest)
    for holder in ("twin", "other", names.HOLD_REWIND):
        listed = {entry.id: entry for entry in store.list_checkpoints(NAMESPACE, JOB)}
        assert holder in listed[FIRST].held and listed[FIRST].pinned
        assert FIRST not in superseded([*listed.values()], [], "")
        assert store.prune(NAMESPACE, JOB, 1) in ([f"{JOB}-a1-g2"], [])
        store.collect_garbage(NAMESPACE, JOB)
        assert store.verify(manifest) == []
        store.release(NAMESPACE, JOB, FIRST, holder)
    store.release(NAMESPACE, JOB, FIRST, "twin")
    assert store.prune(NAMESPACE, JOB, 1) == [FIRST]


def test_what_is_not_there_or_not_whole_is_not_held(store: Store, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 'train-a9-g9' of job team/train"):
        store.hold(NAMESPACE, JOB, "train-a9-g9", "twin")
    with pytest.raises(DamageError, match="is not the manifest that was committed"):
        store.hold(NAMESPACE, JOB, FIRST, "twin", "0" * 64)
    packs = [pack.name for rank in store.read_manifest(NAMESPACE, JOB, FIRST).ranks for pack in rank.packs]
    (tmp_path / "store" / FOLDER / "packs" / packs[0]).unlink()
    with pytest.raises(DamageError, match=f"pack {packs[0]} is missing"):
        store.hold(NAMESPACE, JOB, FIRST, "twin")
    with pytest.raises(StoreError, match=r"job = '\.\./x'"):
        store.hold(NAMESPACE, JOB, FIRST, "../x")
    assert not any(entry.pinned for entry in store.list_checkpoints(NAMESPACE, JOB))


def test_a_hold_that_was_there_before_survives_a_question_that_fails(store: Store) -> None:
    store.hold(NAMESPACE, JOB, FIRST, "twin")
    with pytest.raises(DamageError):
        store.hold(NAMESPACE, JOB, FIRST, "twin", "0" * 64)
    assert store.list_checkpoints(NAMESPACE, JOB)[-1].held == ("twin",)


def test_people_see_who_holds_it_and_may_take_all_of_it_away(store: Store) -> None:
    said = admin.answer(store.url, ["hold", NAMESPACE, JOB, FIRST, "twin"])["result"]
    assert (said["id"], said["held_by"], said["pinned"]) == (FIRST, ["twin"], True)
    refused = admin.answer(store.url, ["hold", NAMESPACE, JOB, "train-a9-g9", "twin"])
    assert "no checkpoint 'train-a9-g9'" in refused["error"]
    listed = admin.answer(store.url, ["ls", NAMESPACE, JOB])["result"]
    assert [entry["held_by"] for entry in listed] == [[], [], ["twin"]]
    assert admin.answer(store.url, ["release", NAMESPACE, JOB, FIRST, "nobody"])["result"]["released"] == "nobody"
    store.pin(NAMESPACE, JOB, FIRST)
    store.pin(NAMESPACE, JOB, FIRST, pinned=False)
    assert not any(entry.pinned or entry.held for entry in store.list_checkpoints(NAMESPACE, JOB))
    assert ids(store)[-1] == FIRST
