"""What a store does, on every kind of file system: file, memory, gs on a fake-gcs-server, s3 on moto's server."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from store_samples import FOLDER, JOB, MIB, NAMESPACE, commit, image, manifest, noise, same

from proxy.errors import CheckpointNotFoundError, CorruptChunkError, StoreError
from proxy.protocol.manifest import Manifest
from proxy.store import PutResult, Store, layout, locks
from proxy.store.known import Known


@pytest.fixture(params=["file", "memory", "gs", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "file":
        yield Store(f"file://{tmp_path}/store", patience_s=60)
    elif request.param in ("gs", "s3"):
        yield Store(request.getfixturevalue(f"{request.param}_url"), patience_s=60)
    else:
        yield Store(f"memory://{tmp_path.name}", patience_s=60)
        memory = fsspec.filesystem("memory")
        if memory.exists(f"/{tmp_path.name}"):
            memory.rm(f"/{tmp_path.name}", recursive=True)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def objects(store: Store, kind: str) -> list[str]:
    return sorted(store.backend.find(f"{FOLDER}/{kind}"))


def test_round_trip_is_exact_and_counts_bytes(store: Store, tmp_path: Path) -> None:
    folder = image(tmp_path / "image")
    total = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    seen: list[tuple[int, int]] = []
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder}, progress=lambda *p: seen.append(p))
    assert put.bytes == total and MIB < put.bytes_stored < MIB + 100_000, "zeros and repeated text cost nearly nothing"
    assert seen[-1] == (total, total) and [d for d, _ in seen] == sorted(d for d, _ in seen)
    store.write_manifest(manifest(put.images))
    made = store.read_manifest(NAMESPACE, JOB, "train-a1-g1")
    seen.clear()
    assert store.fetch_ranks(made, {0: tmp_path / "back"}, progress=lambda *p: seen.append(p)) == total
    assert same(folder, tmp_path / "back") and max(seen) == (total, total)
    assert (tmp_path / "back/pages-1.img").stat().st_blocks * 512 < 3 * MIB, "zeros become holes"
    assert store.verify(made) == []


def test_only_what_changed_is_stored_again(store: Store, tmp_path: Path) -> None:
    folder = image(tmp_path / "image")
    commit(store, folder)
    with (folder / "pages-1.img").open("r+b") as file:
        file.seek(500_000)
        file.write(b"changed")
    again = store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder})
    assert 0 < again.bytes_stored < 40_000
    store.fetch_ranks(manifest(again.images, 2), {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")


def test_replicas_are_stored_once_wherever_their_content_lies(store: Store, tmp_path: Path) -> None:
    one = image(tmp_path / "one")
    other = image(tmp_path / "other")
    (other / "pages-1.img").write_bytes(noise(5, 64 * 37) + (one / "pages-1.img").read_bytes())
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: one, 1: other})
    alone = store.put_ranks(NAMESPACE, "alone", "alone-a1-g1", {0: one})
    assert put.bytes_stored < 1.1 * alone.bytes_stored
    store.fetch_ranks(manifest(put.images), {1: tmp_path / "back-1", 0: tmp_path / "back-0"})
    assert same(one, tmp_path / "back-0") and same(other, tmp_path / "back-1")


def test_replicas_in_two_pods_divide_the_work(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pod 1 uploads while pod 0 stands between the half it begins with and the other half."""
    folders = [image(tmp_path / f"pod-{i}", size=20 * MIB) for i in range(2)]
    alone = store.put_ranks(NAMESPACE, "alone", "alone-a1-g1", {0: folders[0]}).bytes_stored
    results: dict[int, PutResult] = {}
    looks: list[int] = []

    def look(known: Known) -> None:
        looks.append(len(results))
        if len(looks) == 3:  # before the first pack of the second half
            wait_for(lambda: len(objects(store, "packs")) == 2)
            results[1] = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {1: folders[1]}, (1, 2))
        known.refresh()

    monkeypatch.setattr(Known, "refresh_if_cheap", look)
    results[0] = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folders[0]}, (0, 2))
    together = results[0].bytes_stored + results[1].bytes_stored
    assert together < 1.15 * alone
    both = manifest([results[0].images[0], results[1].images[0]])
    store.write_manifest(both)
    store.fetch_ranks(both, {0: tmp_path / "b0", 1: tmp_path / "b1"})
    assert same(folders[0], tmp_path / "b0") and same(folders[1], tmp_path / "b1")


def test_an_upload_that_was_broken_off_is_gone_on_with(store: Store, tmp_path: Path) -> None:
    # More packs than may be under way at once: the upload meets the cancellation before its last one.
    folder = image(tmp_path / "image", size=96 * MIB)

    def cancelled() -> bool:
        return len(Store(store.url).backend.find(f"{FOLDER}/packs")) >= 2

    with pytest.raises(StoreError, match="cancelled"):
        store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder}, cancelled=cancelled)
    kept = len(objects(store, "packs"))
    assert kept >= 2 and objects(store, "locks") == []
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder})
    assert put.bytes_stored < (98 - 7 * kept) * MIB
    store.fetch_ranks(manifest(put.images), {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")


@pytest.mark.parametrize("kind", ["packs", "recipes"])
@pytest.mark.parametrize(
    ("damage", "text"),
    [("flip", "does not match its digest"), ("cut", "bytes instead of|match its digest"), ("remove", "is missing")],
)
def test_a_damaged_object_is_refused_by_name(store: Store, tmp_path: Path, kind: str, damage: str, text: str) -> None:
    made = commit(store, image(tmp_path / "image"))
    (path,) = objects(store, kind)
    data = bytearray(store.backend.read(path) or b"")
    if damage == "remove":
        store.backend.delete(path)
    else:
        data[len(data) // 2] ^= 1
        store.backend.write(path, bytes(data if damage == "flip" else data[:-1]))
    with pytest.raises(CorruptChunkError, match=text) as caught:
        store.fetch_ranks(made, {0: tmp_path / "back"})
    assert caught.value.digest == path.rsplit("/", 1)[1] and caught.value.digest in str(caught.value)
    problems = store.verify(made)
    assert len(problems) == 1 and caught.value.digest in problems[0]
    if damage != "flip":
        best, skipped = store.latest_valid(NAMESPACE, JOB)
        assert best is None and caught.value.digest in skipped[0].problem


@pytest.mark.parametrize("left", [-1, 0])
def test_a_pack_of_the_wrong_size_is_not_relied_on(store: Store, tmp_path: Path, left: int) -> None:
    folder = image(tmp_path / "image")
    commit(store, folder)
    (path,) = objects(store, "packs")
    store.backend.write(path, (store.backend.read(path) or b"")[:left])
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder})
    assert put.bytes_stored > MIB
    store.fetch_ranks(manifest(put.images), {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")


def test_missing_and_invalid_manifests(store: Store, tmp_path: Path) -> None:
    path = layout.manifest_path(NAMESPACE, JOB, "train-a1-g9")
    with pytest.raises(CheckpointNotFoundError, match="'train-a1-g9'"):
        store.read_manifest(NAMESPACE, JOB, "train-a1-g9")
    store.backend.write(path, b'{"id": 1, "format": 3}')
    with pytest.raises(StoreError, match="not a valid manifest"):
        store.read_manifest(NAMESPACE, JOB, "train-a1-g9")
    store.backend.write(path, b'{"format": 4}')
    with pytest.raises(StoreError, match="format: 4 is not supported, this build reads format 3"):
        store.read_manifest(NAMESPACE, JOB, "train-a1-g9")
    commit(store, image(tmp_path / "image", size=MIB))
    data = store.backend.read(layout.manifest_path(NAMESPACE, JOB, "train-a1-g1"))
    assert data is not None
    store.backend.write(layout.manifest_path(NAMESPACE, "other", "train-a1-g1"), data)
    with pytest.raises(StoreError, match="copied or renamed"):
        store.read_manifest(NAMESPACE, "other", "train-a1-g1")


def test_latest_valid_says_what_it_skipped_and_why(store: Store, tmp_path: Path) -> None:
    assert store.latest_valid(NAMESPACE, JOB) == (None, [])
    commit(store, image(tmp_path / "one", 1), 1)
    before = set(objects(store, "packs"))
    commit(store, image(tmp_path / "two", 2), 2)
    store.backend.write(layout.manifest_path(NAMESPACE, JOB, "train-a1-g3"), b"{")
    (lost,) = set(objects(store, "packs")) - before
    store.backend.delete(lost)
    best, skipped = store.latest_valid(NAMESPACE, JOB)
    assert best is not None and best.id == "train-a1-g1"
    assert {s.id for s in skipped} == {"train-a1-g2", "train-a1-g3"}
    assert any(lost.rsplit("/", 1)[1] in s.problem for s in skipped)
    assert any("not valid JSON" in s.problem for s in skipped)
    assert store.jobs() == [(NAMESPACE, JOB)]


def test_prune_keeps_the_newest_and_the_pinned(store: Store, tmp_path: Path) -> None:
    saved = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: image(tmp_path / "image", size=MIB)})
    for number in range(1, 7):
        store.write_manifest(manifest(saved.images, number))
    store.pin(NAMESPACE, JOB, "train-a1-g2")
    with pytest.raises(CheckpointNotFoundError):
        store.pin(NAMESPACE, JOB, "train-a1-g9")
    assert store.prune(NAMESPACE, JOB, 2, frozenset({"train-a1-g1"})) == ["train-a1-g4", "train-a1-g3"]
    left = store.list_checkpoints(NAMESPACE, JOB)
    assert [(x.id, x.pinned) for x in left] == [
        ("train-a1-g6", False), ("train-a1-g5", False), ("train-a1-g2", True), ("train-a1-g1", False),
    ]  # fmt: skip
    store.pin(NAMESPACE, JOB, "train-a1-g2", pinned=False)
    assert store.prune(NAMESPACE, JOB, 2) == ["train-a1-g2", "train-a1-g1"]
    with pytest.raises(StoreError, match="keep = 0"):
        store.prune(NAMESPACE, JOB, 0)


def test_garbage_collection_takes_what_no_manifest_names(store: Store, tmp_path: Path) -> None:
    live, dead = image(tmp_path / "live", 1), image(tmp_path / "dead", 2)
    commit(store, dead, 1)
    made = commit(store, live, 2)
    assert store.collect_garbage(NAMESPACE, JOB).deleted == 0
    store.prune(NAMESPACE, JOB, 1)
    done = store.collect_garbage(NAMESPACE, JOB)
    assert done.deleted == 2 and done.freed > MIB and not done.running
    assert store.verify(made) == [] and objects(store, "locks") == []
    store.backend.write(layout.manifest_path(NAMESPACE, JOB, "train-a1-g3"), b"{")
    with pytest.raises(StoreError, match=r"nothing was deleted.*train-a1-g3\.json"):
        store.collect_garbage(NAMESPACE, JOB)
    assert objects(store, "locks") == []


def test_garbage_collection_gives_way_to_an_upload_until_its_commit(store: Store, tmp_path: Path) -> None:
    folder = image(tmp_path / "image")
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder})
    done = store.collect_garbage(NAMESPACE, JOB)
    assert (done.deleted, done.running) == (0, ["upload-pod-train-a1-g1.0"]), "its packs are named by no manifest yet"
    made = manifest(put.images)
    store.write_manifest(made)
    assert store.collect_garbage(NAMESPACE, JOB).running == []
    assert store.verify(made) == []


def test_an_upload_waits_for_a_collection(store: Store, tmp_path: Path) -> None:
    """The collection has looked for uploads and found none: what it is about to delete must not be relied on."""
    folder = image(tmp_path / "image")
    commit(store, folder)
    store.backend.delete(layout.manifest_path(NAMESPACE, JOB, "train-a1-g1"))  # all of it is garbage now
    name, running = locks.announce_collection(store.backend, FOLDER)
    assert running == []
    asked = threading.Event()
    result: list[Manifest] = []

    def cancelled() -> bool:
        asked.set()
        return False

    def upload() -> None:
        put = Store(store.url).put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder}, cancelled=cancelled)
        result.append(manifest(put.images, 2))

    thread = threading.Thread(target=upload)
    thread.start()
    assert asked.wait(30), "it waits, and asks whether it still has to"
    for path in objects(store, "packs"):
        store.backend.delete(path)
    locks.withdraw(store.backend, FOLDER, name)
    thread.join(60)
    assert store.verify(result[0]) == []


def test_archive_goes_to_another_store_and_comes_back(store: Store, tmp_path: Path) -> None:
    folder = image(tmp_path / "image")
    made = commit(store, folder)
    archive = io.BytesIO()
    assert store.export(made, archive) > MIB
    archive.seek(0)
    other = Store(f"file://{tmp_path}/other")
    taken = other.import_(archive, "elsewhere", "copy")
    assert (taken.namespace, taken.job, taken.step) == ("elsewhere", "copy", made.step)
    other.fetch_ranks(other.read_manifest("elsewhere", "copy", made.id), {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")
    archive.seek(0)
    with pytest.raises(StoreError, match="already"):
        store.import_(archive)
    archive.seek(0)
    assert store.import_(archive, job="again").job == "again"


def test_cancelled_upload_and_bad_folders(store: Store, tmp_path: Path) -> None:
    folder = image(tmp_path / "image")
    with pytest.raises(StoreError, match="cancelled"):
        store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder}, cancelled=lambda: True)
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(StoreError, match="not a regular file"):
        store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder})
    with pytest.raises(StoreError, match="not a directory"):
        store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: tmp_path / "none"})
    assert objects(store, "locks") == []


@pytest.mark.parametrize("bad", ["..", "a/b", "", "UPPER", "a..b"])
def test_names_cannot_leave_the_store(store: Store, bad: str) -> None:
    with pytest.raises(StoreError):
        store.read_manifest(NAMESPACE, bad, "x")
    with pytest.raises(StoreError):
        store.read_manifest(NAMESPACE, JOB, bad)
    with pytest.raises(StoreError, match="not a sha256"):
        layout.object_path(FOLDER, "packs", bad)


def test_probe_leaves_nothing(store: Store) -> None:
    store.probe()
    assert store.backend.find("") == {}
