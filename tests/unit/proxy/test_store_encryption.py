"""Encrypted checkpoints: who has which key reads what, and nobody else (review F5)."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from store_samples import FOLDER, JOB, MIB, NAMESPACE, commit, image, manifest, namespace_keys, noise, same

from singularity_proxy.errors import CorruptChunkError, DamageError, KeyLostError
from singularity_proxy.protocol import exit_codes, names
from singularity_proxy.store import Store, admin, download, keys, sealing
from singularity_proxy.store.keys import JobKeys, NamespaceKeys
from singularity_proxy.store.trust import of_attempt

SECRET = b"aws_secret_access_key = EXAMPLEKEY"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SECOND_LOOK_S", 0.01)


@pytest.fixture
def ours(tmp_path: Path) -> NamespaceKeys:
    return namespace_keys(tmp_path / "keys")


@pytest.fixture
def store(tmp_path: Path, ours: NamespaceKeys) -> Store:
    return Store(f"file://{tmp_path}/store", keys=ours)


def with_secret(folder: Path) -> Path:
    made = image(folder)
    (made / "environ.img").write_bytes(SECRET + noise(5, 4000))
    return made


def everything(store: Store) -> bytes:
    return b"".join(store.backend.read(path) or b"" for path in store.backend.find(""))


def test_nothing_of_the_content_is_in_the_store(store: Store, tmp_path: Path) -> None:
    """Not even digests by which somebody could find out whether a known text is in it."""
    folder = with_secret(tmp_path / "image")
    plain = Store(f"file://{tmp_path}/plain")
    put = commit(plain, folder)
    head, _ = download.read_pack(plain.backend, FOLDER, plain.keys(NAMESPACE, JOB), put.ranks[0].packs[0], "")
    clear = everything(plain)
    assert SECRET in clear and all(key in clear for key in head.keys)
    made = commit(store, folder)
    stored = everything(store)
    assert SECRET not in stored and not any(key in stored for key in head.keys)
    assert not any(noise(0, MIB)[at : at + 32] in stored for at in range(0, MIB, 4096))
    store.fetch_ranks(made, {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back") and store.verify(made) == []


def test_content_is_stored_once_whichever_attempt_pod_or_checkpoint_has_it(store: Store, tmp_path: Path) -> None:
    folder = image(tmp_path / "image")
    trust = of_attempt("key of attempt 1", [])
    first = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder}, part=(0, 2), trust=trust)
    other = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {1: folder}, part=(1, 2), trust=trust)
    assert first.bytes_stored > MIB and other.bytes_stored < 2000
    digest = store.write_manifest(manifest([*first.images, *other.images]))
    later = Store(store.url, keys=store.namespace_keys)
    again = later.put_ranks(
        NAMESPACE, JOB, "train-a2-g2", {0: folder}, trust=of_attempt("key of attempt 2", [("train-a1-g1", digest)])
    )
    assert again.bytes_stored < 2000 and len(later.keys(NAMESPACE, JOB).wrapped()) == 1


def test_pods_that_make_data_keys_at_the_same_time_have_what_the_others_store(store: Store, tmp_path: Path) -> None:
    folder, mine, theirs = image(tmp_path / "image"), store.keys(NAMESPACE, JOB), store.keys(NAMESPACE, JOB)
    begun = Barrier(2)
    stock = JobKeys.wrapped

    def wrapped(keys: JobKeys) -> list[tuple[str, str]]:
        found = stock(keys)
        if not found:
            begun.wait(10)  # neither has seen the other's
        return found

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(JobKeys, "wrapped", wrapped)
        writing = {keys: pool.submit(keys.writing) for keys in (mine, theirs)}
    assert len(mine.wrapped()) == 2 and all(made.result()[0] is not None for made in writing.values())
    assert mine.writing() == theirs.writing()
    first = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder}, part=(0, 2))
    other = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {1: folder}, part=(1, 2))
    assert first.bytes_stored > MIB and other.bytes_stored < 2000


def test_without_its_key_a_checkpoint_is_refused_by_name_and_nothing_is_marked_as_damaged(
    store: Store, ours: NamespaceKeys, tmp_path: Path
) -> None:
    made = commit(store, image(tmp_path / "image"))
    needed = ours.newest()
    for other, text in (
        (None, f"encrypted, with key {needed} of the namespace, and no key is given"),
        (namespace_keys(tmp_path / "others"), f"needs key {needed} of the namespace"),
    ):
        blind = Store(store.url, keys=other)
        asked: list[Callable[[Store], object]] = [
            lambda blind: blind.fetch_ranks(made, {0: tmp_path / "back"}),
            lambda blind: blind.verify(made),
            lambda blind: blind.parts(made, tmp_path / "parts", lambda path: True),
            lambda blind: blind.export(made, io.BytesIO()),
        ]
        for ask in asked:
            with pytest.raises(KeyLostError, match=text) as caught:
                ask(blind)
            assert caught.value.passes and caught.value.exit_code == exit_codes.LOST
            assert not isinstance(caught.value, DamageError), "the job does not begin anew for it"
        assert blind.backend.find(f"{FOLDER}/damaged") == {}
        best, skipped = blind.latest_valid(NAMESPACE, JOB)
        assert best == made and skipped == []
        assert blind.prune(NAMESPACE, JOB, 1) == [] and blind.collect_garbage(NAMESPACE, JOB).deleted == 0
    store.fetch_ranks(made, {0: tmp_path / "back"})


def test_a_secret_without_keys_is_said_at_once(tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    store = Store(f"file://{tmp_path}/store", keys=NamespaceKeys(empty))
    with pytest.raises(KeyLostError, match="cannot be read"):
        store.probe(NAMESPACE)
    empty.mkdir()
    with pytest.raises(KeyLostError, match="has no key: kubectl create secret"):
        store.probe(NAMESPACE)
    (empty / "2026").write_text("too short")
    with pytest.raises(KeyLostError, match="2026: must be 32 random bytes"):
        store.probe(NAMESPACE)
    (empty / "2026").write_text(base64.b64encode(os.urandom(32)).decode() + "\n")
    store.probe(NAMESPACE)
    assert store.backend.find("") == {}


def test_a_rotated_key(store: Store, ours: NamespaceKeys, tmp_path: Path) -> None:
    """Old checkpoints are read as long as the old key is there. What is written from then on needs the new one."""
    folder = image(tmp_path / "image")
    old = commit(store, folder)
    retired, before = ours.newest(), {each.name for each in old.ranks[0].packs}
    namespace_keys(ours.folder, "2026-12-24")
    assert ours.newest() != retired
    new = commit(store, folder, 2)
    assert before.isdisjoint(each.name for each in new.ranks[0].packs)
    for number, made in enumerate((old, new)):
        store.fetch_ranks(made, {0: tmp_path / f"back-{number}"})
    (ours.folder / "2026-11-27").unlink()
    store.fetch_ranks(new, {0: tmp_path / "back-new"})
    assert same(folder, tmp_path / "back-new")
    with pytest.raises(KeyLostError, match=f"needs key {retired} of the namespace"):
        store.fetch_ranks(old, {0: tmp_path / "back-old"})


def test_data_keys_are_wrapped_anew(store: Store, ours: NamespaceKeys, tmp_path: Path) -> None:
    """`rewrap`: nothing is stored again, and the old key is not needed any more."""
    folder = image(tmp_path / "image")
    old = commit(store, folder)
    namespace_keys(ours.folder, "2026-12-24")
    os.environ[names.ENV_STORE_KEYS] = str(ours.folder)
    try:
        assert len(admin.answer(store.url, ["rewrap", NAMESPACE, JOB])["result"]["data_keys"]) == 1
    finally:
        del os.environ[names.ENV_STORE_KEYS]
    assert {by for _, by in store.keys(NAMESPACE, JOB).wrapped()} == {ours.newest()}
    (ours.folder / "2026-11-27").unlink()
    assert store.keys(NAMESPACE, JOB).rewrap() == []
    store.fetch_ranks(old, {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")
    assert store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder}).bytes_stored < 2000


def test_checkpoints_from_before_encryption_are_restored_and_not_built_on(
    store: Store, ours: NamespaceKeys, tmp_path: Path
) -> None:
    folder = with_secret(tmp_path / "image")
    plain = Store(store.url)
    old = commit(plain, folder)
    store.fetch_ranks(old, {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back") and store.verify(old) == []
    new = commit(store, folder, 2)
    store.drop(NAMESPACE, JOB, [old.id])
    store.collect_garbage(NAMESPACE, JOB)
    assert SECRET not in everything(store)
    store.fetch_ranks(new, {0: tmp_path / "again"})
    third = commit(plain, folder, 3)  # switched off again
    assert SECRET in everything(store) and plain.verify(third) == []


@pytest.mark.parametrize("kind", ["packs", "recipes", "keys"])
def test_every_altered_byte_is_found(store: Store, tmp_path: Path, kind: str) -> None:
    made = commit(store, image(tmp_path / "image", size=20_000))
    (path,) = store.backend.find(f"{FOLDER}/{kind}")
    data = store.backend.read(path) or b""
    for at in sorted({*range(0, min(len(data), 80), 7), *range(0, len(data), max(1, len(data) // 40)), len(data) - 1}):
        altered = bytearray(data)
        altered[at] ^= 1
        store.backend.write(path, bytes(altered))
        with pytest.raises(DamageError):
            store.fetch_ranks(made, {0: tmp_path / "back"})
    store.backend.write(path, data)
    store.fetch_ranks(made, {0: tmp_path / "back"})


def test_parts_cannot_be_swapped_or_come_from_elsewhere() -> None:
    key, other = (sealing.DataKey(os.urandom(8).hex(), os.urandom(32)) for _ in range(2))
    draft = sealing.Draft(key)
    whole, part = draft.begin(b"head"), draft.cipher.encrypt(1, b"content")
    first, cipher = sealing.opened(whole + part, {key.id: key.key}.__getitem__)
    assert first == b"head" and cipher is not None and cipher.decrypt(1, part) == b"content"
    with pytest.raises(sealing.SealError, match="was altered, or was not encrypted with its data key"):
        cipher.decrypt(2, part)
    with pytest.raises(sealing.SealError):
        cipher.decrypt(1, sealing.Draft(key).cipher.encrypt(1, b"content"))
    with pytest.raises(sealing.SealError):
        sealing.opened(whole, lambda name: other.key)


def test_a_key_that_somebody_else_puts_there_is_of_no_use(store: Store, ours: NamespaceKeys, tmp_path: Path) -> None:
    """Who writes to the store has no key of the namespace. Neither is a checkpoint damaged by it."""
    made = commit(store, image(tmp_path / "image"))
    ((data_key, by),) = store.keys(NAMESPACE, JOB).wrapped()
    strange = namespace_keys(tmp_path / "strange")
    mine = sealing.DataKey(data_key, bytes(32))
    store.backend.write(f"{FOLDER}/{keys.FOLDER}/{data_key}.{'0' * 16}", strange.wrap(mine)[1])
    store.fetch_ranks(made, {0: tmp_path / "back"})
    store.backend.write(f"{FOLDER}/{keys.FOLDER}/{data_key}.{by}", strange.wrap(mine)[1])
    with pytest.raises(KeyLostError, match="0000"):
        store.fetch_ranks(made, {0: tmp_path / "back"})
    store.backend.delete(f"{FOLDER}/{keys.FOLDER}/{data_key}.{'0' * 16}")
    with pytest.raises(DamageError, match="was altered"):
        store.fetch_ranks(made, {0: tmp_path / "back"})
    store.backend.delete(f"{FOLDER}/{keys.FOLDER}/{data_key}.{by}")
    with pytest.raises(DamageError, match="is missing"):
        store.fetch_ranks(made, {0: tmp_path / "back"})


def test_an_altered_data_key_stops_no_upload(store: Store, tmp_path: Path) -> None:
    folder = image(tmp_path / "image")
    commit(store, folder)
    ((data_key, by),) = store.keys(NAMESPACE, JOB).wrapped()
    store.backend.write(f"{FOLDER}/{keys.FOLDER}/{data_key}.{by}", b"altered")
    store.probe(NAMESPACE, JOB)
    made = commit(store, folder, 2)
    store.fetch_ranks(made, {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")


def test_an_archive_is_encrypted_and_brings_its_data_keys(store: Store, ours: NamespaceKeys, tmp_path: Path) -> None:
    folder = with_secret(tmp_path / "image")
    archive = io.BytesIO()
    store.export(commit(store, folder), archive)
    assert SECRET not in archive.getvalue()
    archive.seek(0)
    with pytest.raises(KeyLostError):
        Store(f"file://{tmp_path}/blind").import_(archive)
    archive.seek(0)
    there = Store(f"file://{tmp_path}/there", keys=ours)
    taken = there.import_(archive, "elsewhere", "copy")
    there.fetch_ranks(taken, {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")


def test_a_pack_is_found_altered_before_anything_of_it_is_written(store: Store, tmp_path: Path) -> None:
    made = commit(store, image(tmp_path / "image"))
    (path,) = store.backend.find(f"{FOLDER}/packs")
    data = bytearray(store.backend.read(path) or b"")
    data[-1] ^= 1
    store.backend.write(path, bytes(data))
    with pytest.raises(CorruptChunkError, match="was altered, or was not encrypted with its data key") as caught:
        store.fetch_ranks(made, {0: tmp_path / "back"})
    assert caught.value.exit_code == exit_codes.NOT_RESTORED
    assert list(store.backend.find(f"{FOLDER}/damaged")), "later uploads do not build on it"


@pytest.mark.parametrize("kind", ["gs", "s3"])
def test_an_object_store(request: pytest.FixtureRequest, ours: NamespaceKeys, tmp_path: Path, kind: str) -> None:
    store = Store(request.getfixturevalue(f"{kind}_url"), keys=ours)
    folder = with_secret(tmp_path / "image")
    made = commit(store, folder)
    assert SECRET not in everything(store) and store.verify(made) == []
    assert store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder}).bytes_stored < 2000
    parts = store.parts(made, tmp_path / "parts", lambda path: True)
    parts.fetch_files(["pages-1.img"])
    assert (tmp_path / "parts" / "pages-1.img").read_bytes() == (folder / "pages-1.img").read_bytes()
    with pytest.raises(KeyLostError):
        Store(store.url).fetch_ranks(made, {0: tmp_path / "blind"})
    store.fetch_ranks(made, {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")
