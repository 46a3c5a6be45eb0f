"""What a store does, on every kind of file system: file, memory, gs on a fake-gcs-server, s3 on moto's server."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from store_samples import FOLDER, JOB, MIB, NAMESPACE, commit, image, manifest, namespace_keys, noise, same
from waits import until

from singularity_proxy.errors import CheckpointNotFoundError, CorruptChunkError, DamageError, StoreError
from singularity_proxy.protocol import exit_codes
from singularity_proxy.protocol import manifest as mf
from singularity_proxy.protocol.manifest import object_name
from singularity_proxy.store import PutResult, Store, chunking, download, layout, locks
from singularity_proxy.store.backend import CLIENT, Backend
from singularity_proxy.store.chunk_index import Known
from singularity_proxy.store.draft import Draft
from singularity_proxy.store.parts import Parts
from singularity_proxy.store.trust import of_attempt
from singularity_proxy.store.upload import Upload


@pytest.fixture(
    params=[
        "file", "encrypted", "memory", "gs", "s3", "gs by fsspec",
        pytest.param("s3 by fsspec", marks=pytest.mark.full),  # the client of the one, with the servers of the others
    ]
)  # fmt: skip
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    scheme, _, client = request.param.partition(" by ")
    monkeypatch.setenv(CLIENT, client)
    if scheme == "file":
        yield Store(f"file://{tmp_path}/store", patience_s=60)
    elif scheme == "encrypted":
        yield Store(f"file://{tmp_path}/store", patience_s=60, keys=namespace_keys(tmp_path / "store-keys"))
    elif scheme in ("gs", "s3"):
        yield Store(request.getfixturevalue(f"{scheme}_url"), patience_s=60)
    else:
        yield Store(f"memory://{tmp_path.name}", patience_s=60)
        memory = fsspec.filesystem("memory")
        if memory.exists(f"/{tmp_path.name}"):
            memory.rm(f"/{tmp_path.name}", recursive=True)


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
    assert 0 < again.bytes_stored < 1.2 * chunking.LARGEST, "a chunk of dense content"
    store.fetch_ranks(manifest(again.images, 2), {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")


def test_replicas_are_stored_once_wherever_their_content_lies(store: Store, tmp_path: Path) -> None:
    one = image(tmp_path / "one", size=8 * MIB)
    other = image(tmp_path / "other", size=8 * MIB)
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
    stock = Upload._read_later

    def between(upload: Upload, *words: Any) -> None:
        if upload.part[0] == 0:
            until(lambda: len(objects(store, "packs")) == 2)
            results[1] = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {1: folders[1]}, (1, 2))
        stock(upload, *words)

    monkeypatch.setattr(Known, "refresh_if_cheap", Known.refresh)
    monkeypatch.setattr(Upload, "_read_later", between)
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
    [
        ("flip", "does not match its digest|other content than its key|was altered"),
        ("cut", "bytes instead of|match its digest"),
        ("remove", "is missing"),
    ],
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


def test_a_manifest_is_never_written_over_another(store: Store, tmp_path: Path) -> None:
    made = commit(store, image(tmp_path / "image", size=MIB))
    store.write_manifest(made)  # again: an answer may have been lost
    with pytest.raises(StoreError, match=r"train-a1-g1\.json is there with other content, and stays"):
        store.write_manifest(replace(made, step=made.step + 1))
    assert store.read_manifest(NAMESPACE, JOB, "train-a1-g1") == made
    assert not [path for path in objects(store, "") if ".tmp-" in path]


def test_of_two_sidecars_with_the_same_part_at_once_one_commits_and_can_be_restored(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a cut in the network: the old pod still uploads while the new one does. Each finds the other's packs."""
    folders = [image(tmp_path / f"pod-{i}", seed=i, size=9 * MIB) for i in range(2)]
    for folder in folders:
        (folder / "shared.img").write_bytes(noise(7, 9 * MIB))
    meet = threading.Barrier(2, timeout=120)
    stock = Upload._read_later

    def together(upload: Upload, *words: Any) -> None:
        meet.wait()
        stock(upload, *words)

    monkeypatch.setattr(Known, "refresh_if_cheap", Known.refresh)
    monkeypatch.setattr(Upload, "_read_later", together)

    def sidecar(number: int) -> str | mf.Manifest:
        mine = Store(store.url, patience_s=60, keys=store.namespace_keys)
        put = mine.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folders[number]}, (0, 2))
        meet.wait()
        made = replace(manifest(put.images), step=number)
        try:
            mine.write_manifest(made)
        except StoreError as error:
            return str(error)
        return made

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(sidecar, range(2)))
    (won,) = (end for end in ends if isinstance(end, mf.Manifest))
    assert [text for text in ends if isinstance(text, str) and "is there with other content, and stays" in text], ends
    assert store.read_manifest(NAMESPACE, JOB, "train-a1-g1") == won
    store.collect_garbage(NAMESPACE, JOB)
    assert store.verify(won) == [] and store.fetch_ranks(won, {0: tmp_path / "back"}) > 18 * MIB
    assert same(folders[won.step], tmp_path / "back")


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_store_that_cannot_create_exclusively_is_asked_first(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"{kind}://{tmp_path}/store", patience_s=1)
    stock = store.backend.files.fs.pipe_file

    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def pipe(path: str, data: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise NotImplementedError("A header you provided implies functionality that is not implemented")
        stock(path, data)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(store.backend.files.fs, "pipe_file", pipe)
    made = commit(store, image(tmp_path / "image", size=MIB))
    with pytest.raises(StoreError, match=r"is there .*and stays"):
        store.write_manifest(replace(made, step=made.step + 1))
    assert store.read_manifest(NAMESPACE, JOB, "train-a1-g1") == made


def test_missing_and_invalid_manifests(store: Store, tmp_path: Path) -> None:
    path = layout.manifest_path(NAMESPACE, JOB, "train-a1-g9")
    with pytest.raises(CheckpointNotFoundError, match="'train-a1-g9'"):
        store.read_manifest(NAMESPACE, JOB, "train-a1-g9")
    store.backend.write(path, b'{"id": 1, "format": 5}')
    with pytest.raises(StoreError, match="not a valid manifest"):
        store.read_manifest(NAMESPACE, JOB, "train-a1-g9")
    store.backend.write(path, b'{"format": 3}')
    with pytest.raises(StoreError, match="format: 3 is not supported, this build reads formats 4 to 5"):
        store.read_manifest(NAMESPACE, JOB, "train-a1-g9")
    commit(store, image(tmp_path / "image", size=MIB))
    data = store.backend.read(layout.manifest_path(NAMESPACE, JOB, "train-a1-g1"))
    assert data is not None
    store.backend.write(layout.manifest_path(NAMESPACE, "other", "train-a1-g1"), data)
    with pytest.raises(StoreError, match="copied or renamed"):
        store.read_manifest(NAMESPACE, "other", "train-a1-g1")


def test_a_manifest_is_read_by_the_digest_that_was_committed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SECOND_LOOK_S", 0.01)
    folder = image(tmp_path / "image")
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder})
    digest = store.write_manifest(manifest(put.images))
    path = layout.manifest_path(NAMESPACE, JOB, "train-a1-g1")
    data = store.backend.read(path)
    assert data is not None and digest == hashlib.sha256(data).hexdigest()
    assert store.read_manifest(NAMESPACE, JOB, "train-a1-g1", digest) == manifest(put.images)
    other = mf.dumps(replace(manifest(put.images), step=99)).encode()  # valid in itself: anybody can seal one
    store.backend.write(path, other)
    assert store.read_manifest(NAMESPACE, JOB, "train-a1-g1").step == 99
    for found in (other, b"", b"[" * 100_000, data[:-1], data + b" "):
        store.backend.write(path, found)
        with pytest.raises(DamageError, match=f"is not the manifest that was committed.*committed was {digest}"):
            store.read_manifest(NAMESPACE, JOB, "train-a1-g1", digest)
    store.backend.delete(path)
    with pytest.raises(DamageError, match="no checkpoint 'train-a1-g1'"):
        store.read_manifest(NAMESPACE, JOB, "train-a1-g1", digest)


def test_what_does_not_match_is_read_a_second_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache between here and the store gives one bad answer: that is no reason to give a checkpoint up."""
    folder = image(tmp_path / "image")
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder})
    digest = store.write_manifest(manifest(put.images))
    stock, seen = Backend.view, set[str]()

    def view(backend: Backend, relative: str, begin: int | None, end: int | None) -> memoryview | None:
        data = stock(backend, relative, begin, end)
        if relative in seen or data is None:
            return data
        seen.add(relative)
        return memoryview(bytes(data[:-1]) + bytes([data[-1] ^ 1]))

    monkeypatch.setattr(Backend, "view", view)
    monkeypatch.setattr(download, "SECOND_LOOK_S", 0.01)
    made = store.read_manifest(NAMESPACE, JOB, "train-a1-g1", digest)
    counts: list[int] = []
    store.fetch_ranks(made, {0: tmp_path / "back"}, progress=lambda done, total: counts.append(done))
    assert same(folder, tmp_path / "back") and len(seen) == (4 if objects(store, "keys") else 3)
    assert counts[-1] == put.bytes == max(counts), "nothing is counted twice"


def test_a_pack_that_was_found_damaged_is_not_relied_on_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head is whole, so nothing but a restore notices. The job then makes the same bytes once more."""
    monkeypatch.setattr(download, "SECOND_LOOK_S", 0.01)
    folder = image(tmp_path / "image", size=20 * MIB)
    made = commit(store, folder)
    for path in objects(store, "packs")[:2]:
        data = store.backend.read(path) or b""
        store.backend.write(path, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptChunkError, match=r"other content than its key|was altered"):
        store.fetch_ranks(made, {0: tmp_path / "back"})
    assert len(objects(store, "damaged")) == 2, "one is enough to give the checkpoint up, both must be known"
    again = commit(store, folder, 2)
    store.fetch_ranks(again, {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")
    for number in (1, 2):
        store.drop(NAMESPACE, JOB, [f"train-a1-g{number}"])
    for _ in range(2):
        store.collect_garbage(NAMESPACE, JOB)
    assert sorted(store.backend.find(FOLDER)) == objects(store, "keys"), "an upload that begins now may rely on its key"


def planted(store: Store, whole: bytes, instead: bytes) -> tuple[str, dict[bytes, bytes]]:
    """A pack with a valid head whose chunks are those of `instead`, under the keys of those of `whole`: who may write
    to the store, and has its key if it is encrypted, can make one. Its name sorts before those of honest packs. Returns
    it with the content by key."""
    ends = chunking.ends(whole, True)
    pairs = {whole[a:b]: instead[a:b] for a, b in zip([0, *ends], ends, strict=False) if whole[a:b] != instead[a:b]}
    for salt in itertools.count():
        draft = Draft(b"", store.keys(NAMESPACE, JOB).writing()[0])
        # The salt names a chunk: the head has no digest of content that is not compressed.
        for honest, mine in (*pairs.items(), (salt.to_bytes(8, "big"), b"salt")):
            draft.add([chunking.key_of(honest)], [len(mine)])[:] = mine
        digest, data = draft.build()
        if digest.startswith("0"):
            name = object_name(digest, "0" * 16)
            store.backend.write(f"{FOLDER}/packs/{name}", bytes(data))
            return name, {chunking.key_of(honest): mine for honest, mine in pairs.items()}
    raise AssertionError


def test_a_planted_pack_is_not_restored(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that trusts everybody finds a chunk of its own in it, by its key, and the checkpoint that is committed
    names it."""
    monkeypatch.setattr(download, "SECOND_LOOK_S", 0.01)
    folder = image(tmp_path / "image")
    whole = (folder / "pages-1.img").read_bytes()
    name, lies = planted(store, whole, whole[:500_000] + b"evil" + whole[500_004:])
    made = commit(store, folder)
    assert name in {each.name for each in made.ranks[0].packs}, "an upload reads heads, and no content"
    with pytest.raises(CorruptChunkError, match="has chunk 0 of other content than its key") as caught:
        store.fetch_ranks(made, {0: tmp_path / "back"})
    assert caught.value.digest == name and next(iter(lies)).hex() in str(caught.value)
    assert caught.value.exit_code == exit_codes.NOT_RESTORED
    with ThreadPoolExecutor(1) as pool:
        parts = Parts(
            store.backend, store.keys(NAMESPACE, JOB), made, tmp_path / "parts", lambda path: True, pool.submit
        )
        with pytest.raises(CorruptChunkError, match=name):
            parts.fetch_files(["pages-1.img"])
    (problem,) = store.verify(made)
    assert f"pack {name} of checkpoint train-a1-g1 has chunk 0 of other content" in problem
    archive = io.BytesIO()
    with pytest.raises(CorruptChunkError, match=name):
        store.export(made, archive)
        archive.seek(0)
        store.import_(archive, job="other")
    again = commit(store, folder, 2)
    assert store.verify(again) == [], "it is known as damaged now"
    store.fetch_ranks(again, {0: tmp_path / "again"})
    assert same(folder, tmp_path / "again")


def test_an_upload_relies_on_its_own_attempts_packs_and_on_committed_ones(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever may write to the store adds a pack (review F2). The checkpoint does not name it, and is restored."""
    folder = image(tmp_path / "image")
    whole = (folder / "pages-1.img").read_bytes()
    name, _ = planted(store, whole, whole[:500_000] + b"evil" + whole[500_004:])
    first = of_attempt("key of attempt 1", [])
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder}, trust=first)
    made = manifest(put.images)
    digest = store.write_manifest(made)
    assert name not in {each.name for each in made.ranks[0].packs} and store.verify(made) == []
    assert "1 packs are not used again" in caplog.text and name in caplog.text
    store.fetch_ranks(made, {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")
    assert store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder}, trust=first).bytes_stored < 1000
    for committed, new in (
        ([], True),
        ([(made.id, "0" * 64)], True),
        ([("train-a1-g9", digest), (made.id, digest)], False),
    ):
        later = of_attempt("key of attempt 2", committed)
        stored = store.put_ranks(NAMESPACE, JOB, "train-a2-g3", {0: folder}, trust=later).bytes_stored
        assert (stored > MIB) == new, committed
        for path in objects(store, "packs"):
            if path.rsplit("/", 1)[1] not in {name, *(each.name for each in made.ranks[0].packs)}:
                store.backend.delete(path)


def test_what_was_committed_before_an_attempt_is_relied_on_until_it_ends(store: Store, tmp_path: Path) -> None:
    """Also when retention has deleted the checkpoint that named it."""
    folder = image(tmp_path / "image")
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder}, trust=of_attempt("key of attempt 1", []))
    committed = [("train-a1-g1", store.write_manifest(manifest(put.images)))]
    later = of_attempt("key of attempt 2", committed)
    again = store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder}, trust=later)
    store.write_manifest(manifest(again.images, 2))
    assert store.prune(NAMESPACE, JOB, 1) == ["train-a1-g1"]
    third = store.put_ranks(NAMESPACE, JOB, "train-a1-g3", {0: folder}, trust=later)
    assert third.bytes_stored == again.bytes_stored < 1000, "recipes"


@pytest.mark.parametrize("kind", ["packs", "recipes"])
def test_an_object_that_was_made_empty_or_huge(
    store: Store, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = commit(store, image(tmp_path / "image"))
    (path,) = objects(store, kind)
    data = store.backend.read(path) or b""
    monkeypatch.setattr(download, "SECOND_LOOK_S", 0.01)
    asked: list[int] = []
    stock = Backend.view

    def view(backend: Backend, relative: str, begin: int | None, end: int | None) -> memoryview | None:
        found = stock(backend, relative, begin, end)
        asked.append(len(found or b""))
        return found

    monkeypatch.setattr(Backend, "view", view)
    for content in (b"", data + noise(1, 8 * MIB)):
        store.backend.write(path, content)
        with pytest.raises(CorruptChunkError, match=r"0 bytes instead of|is longer than its|match its digest"):
            store.fetch_ranks(made, {0: tmp_path / "back"})
    assert max(asked) <= 2 * MIB, "no more is read than there should be"


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
    assert done.deleted == 0 and done.running == store.uploads(NAMESPACE, JOB), "its packs are named by no manifest yet"
    assert [name.rpartition(".")[0] for name in done.running] == ["upload-pod-train-a1-g1.0"]
    made = manifest(put.images)
    store.write_manifest(made)
    assert store.collect_garbage(NAMESPACE, JOB).running == []
    assert store.verify(made) == []


def test_an_upload_relies_on_nothing_that_a_collection_is_about_to_delete(store: Store, tmp_path: Path) -> None:
    """The collection has looked for uploads and found none; its deletes come whenever they come."""
    folder = image(tmp_path / "image")
    commit(store, folder)
    store.backend.delete(layout.manifest_path(NAMESPACE, JOB, "train-a1-g1"))  # all of it is garbage now
    doomed = objects(store, "packs") + objects(store, "recipes")
    _, running = locks.mark(store.backend, FOLDER, [path.removeprefix(f"{FOLDER}/") for path in doomed])
    assert running.pods == []
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder})
    assert put.bytes_stored > MIB, "the same content, under other names"
    store.write_manifest(manifest(put.images, 2))
    for path in doomed:
        store.backend.delete(path)
    assert store.verify(manifest(put.images, 2)) == []
    assert store.collect_garbage(NAMESPACE, JOB).deleted == 0
    assert objects(store, "locks") == [], "nothing is left of what the mark names"


def test_a_collection_spares_an_import_under_way_and_nothing_else(store: Store, tmp_path: Path) -> None:
    commit(store, image(tmp_path / "dead", 1), 1)
    store.backend.delete(layout.manifest_path(NAMESPACE, JOB, "train-a1-g1"))
    upload = locks.draw()
    locks.announce(store.backend, FOLDER, locks.import_upload(upload))
    taken = layout.object_path(FOLDER, "packs", object_name("a" * 64, upload))
    store.backend.write(taken, b"content")
    done = store.collect_garbage(NAMESPACE, JOB)
    assert done.deleted == 2 and objects(store, "packs") == [taken]
    locks.withdraw(store.backend, FOLDER, locks.import_upload(upload))
    assert store.collect_garbage(NAMESPACE, JOB).deleted == 1, "it has died"


def test_an_upload_is_ended_by_its_checkpoint_and_part_only(store: Store, tmp_path: Path) -> None:
    folder = image(tmp_path / "image", size=MIB)
    for checkpoint in ("train-a1-g1", "train-a1-g10"):
        for part in (0, 1):
            store.put_ranks(NAMESPACE, JOB, checkpoint, {0: folder}, (part, 2))
    earlier = store.uploads(NAMESPACE, JOB)
    assert len(earlier) == 4
    store.end_uploads(NAMESPACE, JOB, "train-a1-g1", 1)
    assert [n.rpartition(".")[0][11:] for n in store.uploads(NAMESPACE, JOB)] == [
        "train-a1-g1.0", "train-a1-g10.0", "train-a1-g10.1",
    ]  # fmt: skip
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g10", {0: folder})
    store.withdraw_uploads(NAMESPACE, JOB, earlier)
    assert len(store.uploads(NAMESPACE, JOB)) == 1, "the same part and checkpoint again is another upload"
    store.write_manifest(manifest(put.images, 10))
    assert store.uploads(NAMESPACE, JOB) == []


def test_archive_goes_to_another_store_and_comes_back(store: Store, tmp_path: Path) -> None:
    folder = image(tmp_path / "image")
    made = commit(store, folder)
    archive = io.BytesIO()
    assert store.export(made, archive) > MIB
    archive.seek(0)
    other = Store(f"file://{tmp_path}/other", keys=store.namespace_keys)
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
    with pytest.raises(StoreError, match="checkpoint id"):
        store.put_ranks(NAMESPACE, JOB, bad, {})


def test_probe_leaves_nothing(store: Store) -> None:
    store.probe()
    assert store.backend.find("") == {}
