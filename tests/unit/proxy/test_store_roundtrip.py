"""The store on file:// and memory://: round trip, deduplication, verification, retention."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import CheckpointNotFoundError, CorruptChunkError, StoreError
from proxy.protocol.manifest import ImageFile, Manifest, RankImage, Requirements
from proxy.store import Store, layout
from proxy.store.chunker import CHUNK_SIZE, cuts, zero_digest

REQUIREMENTS = Requirements(architecture="x86_64", cpu_flags_digest="", python="3.14.0", image="")


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "file":
        yield Store(f"file://{tmp_path}/store")
    else:
        url = f"memory://{tmp_path.name}"
        yield Store(url)
        memory = fsspec.filesystem("memory")
        if memory.exists(f"/{tmp_path.name}"):
            memory.rm(f"/{tmp_path.name}", recursive=True)


def _image(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    pages = os.urandom(CHUNK_SIZE) + bytes(3 * CHUNK_SIZE) + bytes([seed]) * (CHUNK_SIZE // 2)
    (folder / "pages-1.img").write_bytes(pages)
    (folder / "core-1.img").write_bytes(b"core" * 100)
    (folder / "empty.img").write_bytes(b"")
    (folder / "sub").mkdir()
    (folder / "sub" / "rank.json").write_text("{}")
    return folder


def _manifest(files: list[ImageFile], number: int = 1, job: str = "train") -> Manifest:
    return Manifest(
        id=f"{job}-a1-g{number}", namespace="team", job=job, attempt=1, generation=1_000_000 + number, step=17,
        world_size=1, engine="process", created_at=1000.0 + number, ranks=[RankImage(0, files)],
        requirements=REQUIREMENTS,
    )  # fmt: skip


def _chunk_file(store: Store, digest: str) -> str:
    return store.backend.path(layout.chunk_path(digest))


@given(size=st.integers(0, 10_000), chunk=st.integers(1, 3_000))
def test_cuts_cover_the_file_without_gap_or_overlap(size: int, chunk: int) -> None:
    at = 0
    for offset, length in cuts(size, chunk):
        assert offset == at and 0 < length <= chunk
        at += length
    assert at == size


def test_round_trip_is_exact_and_counts_bytes(store: Store, tmp_path: Path) -> None:
    image = _image(tmp_path / "image")
    put = store.put_image_dir(image)
    total = sum(p.stat().st_size for p in image.rglob("*") if p.is_file())
    assert put.bytes == total
    assert put.bytes_stored == total - 2 * CHUNK_SIZE, "three zero chunks are one chunk in the store"
    store.write_manifest(_manifest(put.files))
    manifest = store.read_manifest("team", "train", "train-a1-g1")
    assert store.fetch_rank(manifest, 0, tmp_path / "back") == total
    for path in image.rglob("*"):
        if path.is_file():
            assert (tmp_path / "back" / path.relative_to(image)).read_bytes() == path.read_bytes()
    assert (tmp_path / "back" / "pages-1.img").stat().st_blocks * 512 < 3 * CHUNK_SIZE, "zero chunks become holes"


def test_second_put_stores_only_what_changed(store: Store, tmp_path: Path) -> None:
    image = _image(tmp_path / "image")
    store.put_image_dir(image)
    assert store.put_image_dir(image).bytes_stored == 0
    with (image / "pages-1.img").open("r+b") as file:
        file.write(b"changed")
    assert store.put_image_dir(image).bytes_stored == CHUNK_SIZE


@pytest.mark.parametrize(
    ("damage", "text"), [("flip", "does not match its digest"), ("cut", "bytes instead of"), ("remove", "is missing")]
)
def test_damaged_chunk_is_refused_by_name(store: Store, tmp_path: Path, damage: str, text: str) -> None:
    put = store.put_image_dir(_image(tmp_path / "image"))
    chunk = next(f for f in put.files if f.path == "pages-1.img").chunks[0]
    assert chunk.sha256 != zero_digest(chunk.size)
    path = _chunk_file(store, chunk.sha256)
    data = bytearray(store.backend.fs.cat_file(path))
    if damage == "remove":
        store.backend.fs.rm_file(path)
    else:
        data[5] ^= 1
        store.backend.fs.pipe_file(path, bytes(data if damage == "flip" else data[:-1]))
    with pytest.raises(CorruptChunkError, match=text) as caught:
        store.fetch_rank(_manifest(put.files), 0, tmp_path / "back")
    assert caught.value.digest == chunk.sha256 and chunk.sha256 in str(caught.value)
    assert "rank 0, file pages-1.img" in str(caught.value)


def test_truncated_chunk_in_the_store_is_written_again(store: Store, tmp_path: Path) -> None:
    image = _image(tmp_path / "image")
    put = store.put_image_dir(image)
    chunk = put.files[0].chunks[0]
    store.backend.fs.pipe_file(_chunk_file(store, chunk.sha256), b"x")
    assert store.put_image_dir(image).bytes_stored == chunk.size
    assert store.fetch_rank(_manifest(put.files), 0, tmp_path / "back") == put.bytes


def test_cancelled_upload_stops(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cancelled"):
        store.put_image_dir(_image(tmp_path / "image"), cancelled=lambda: True)


def test_image_with_a_symlink_or_without_a_directory_is_refused(store: Store, tmp_path: Path) -> None:
    image = _image(tmp_path / "image")
    (image / "link").symlink_to("/etc/passwd")
    with pytest.raises(StoreError, match="not a regular file"):
        store.put_image_dir(image)
    with pytest.raises(StoreError, match="not a directory"):
        store.put_image_dir(tmp_path / "none")


def test_missing_and_invalid_manifests(store: Store) -> None:
    with pytest.raises(CheckpointNotFoundError, match="'train-a1-g9'"):
        store.read_manifest("team", "train", "train-a1-g9")
    store.backend.write(layout.manifest_path("team", "train", "train-a1-g9"), b'{"id": 1}')
    with pytest.raises(StoreError, match="not a valid manifest"):
        store.read_manifest("team", "train", "train-a1-g9")
    with pytest.raises(StoreError, match="copied or renamed"):
        manifest = _manifest([])
        store.write_manifest(manifest)
        data = store.backend.read(layout.manifest_path("team", "train", manifest.id))
        assert data is not None
        store.backend.write(layout.manifest_path("team", "other", manifest.id), data)
        store.read_manifest("team", "other", manifest.id)


def test_latest_valid_says_what_it_skipped_and_why(store: Store, tmp_path: Path) -> None:
    assert store.latest_valid("team", "train") == (None, [])
    first = store.put_image_dir(_image(tmp_path / "one", 1))
    second = store.put_image_dir(_image(tmp_path / "two", 2))
    store.write_manifest(_manifest(first.files, 1))
    store.write_manifest(_manifest(second.files, 2))
    store.backend.write(layout.manifest_path("team", "train", "train-a1-g3"), b"{")
    lost = next(f for f in second.files if f.path == "pages-1.img").chunks[0].sha256
    store.backend.fs.rm_file(_chunk_file(store, lost))
    best, skipped = store.latest_valid("team", "train")
    assert best is not None and best.id == "train-a1-g1"
    assert {s.id for s in skipped} == {"train-a1-g2", "train-a1-g3"}
    assert any(lost in s.problem for s in skipped) and any("not valid JSON" in s.problem for s in skipped)


def test_prune_keeps_the_newest_and_the_pinned(store: Store) -> None:
    for number in range(1, 6):
        store.write_manifest(_manifest([], number))
    assert store.prune("team", "train", 2, frozenset({"train-a1-g1"})) == ["train-a1-g3", "train-a1-g2"]
    assert [x.id for x in store.list_checkpoints("team", "train")] == ["train-a1-g5", "train-a1-g4", "train-a1-g1"]
    with pytest.raises(StoreError, match="keep = 0"):
        store.prune("team", "train", 0)


def test_garbage_collection_takes_only_old_unnamed_chunks(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    live = store.put_image_dir(_image(tmp_path / "live", 1))
    dead = store.put_image_dir(_image(tmp_path / "dead", 2))
    store.write_manifest(_manifest(live.files))
    live_names = {c.sha256 for f in live.files for c in f.chunks}
    dead_names = {c.sha256 for f in dead.files for c in f.chunks} - live_names
    assert store.collect_garbage() == 0, "everything is young"
    with pytest.raises(StoreError, match="grace_s"):
        store.collect_garbage(1.0)
    old = time.time() - 2 * 86400
    for name in live_names | dead_names:
        os.utime(_chunk_file(store, name), (old, old))
    again = min(dead_names)
    assert store.backend.refresh(layout.chunk_path(again))
    freed = store.collect_garbage()
    gone = {n for n in live_names | dead_names if not Path(_chunk_file(store, n)).exists()}
    assert gone == dead_names - {again} and freed > 0
    assert store.fetch_rank(_manifest(live.files), 0, tmp_path / "back") == live.bytes


def test_reuse_makes_an_old_chunk_young(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    put = store.put_image_dir(_image(tmp_path / "image"))
    path = layout.chunk_path(put.files[0].chunks[0].sha256)
    old = time.time() - 2 * 86400
    os.utime(store.backend.path(path), (old, old))
    assert store.put_image_dir(tmp_path / "image").bytes_stored == 0
    found = store.backend.size_and_age(path)
    assert found is not None and found[1] < 3600


def test_unreadable_manifest_stops_garbage_collection(store: Store) -> None:
    store.backend.write(layout.manifest_path("team", "train", "train-a1-g3"), b"{")
    with pytest.raises(StoreError, match=r"train-a1-g3\.json cannot be read"):
        store.collect_garbage()


def test_probe_says_what_is_wrong(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/fine").probe()
    assert list((tmp_path / "fine").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write probe-"):
        Store(f"file://{tmp_path}/file").probe()


@pytest.mark.parametrize("url", ["", "nosuch://x/y"])
def test_bad_url(url: str) -> None:
    with pytest.raises(StoreError):
        Store(url)


@pytest.mark.parametrize("bad", ["..", "a/b", "", "UPPER", "a..b"])
def test_names_cannot_leave_the_store(store: Store, bad: str) -> None:
    with pytest.raises(StoreError):
        store.read_manifest("team", bad, "x")
    with pytest.raises(StoreError):
        store.read_manifest("team", "train", bad)
    with pytest.raises(StoreError, match="not a sha256"):
        layout.chunk_path(bad)


def test_no_temporary_file_stays_and_readers_never_see_half(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    store.put_image_dir(_image(tmp_path / "image"))
    assert not [p for p in (tmp_path / "store").rglob("*") if ".tmp-" in p.name]
