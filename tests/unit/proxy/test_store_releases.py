"""Stores that earlier releases have written are restored, verified and gone on with by this one.

`stores/*.tar.xz` were written by the code of a release, or of a commit, with `image` as here: two ranks, two
checkpoints of manifest format 4, packs of version 2.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from store_samples import manifest, noise, same

from singularity_proxy.errors import CorruptChunkError
from singularity_proxy.store import Store, download
from singularity_proxy.store.trust import of_attempt

STORES = sorted(Path(__file__).with_name("stores").glob("*.tar.xz"))
JOB = ("team", "train")


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "store", filter="data")
    return Store(f"file://{tmp_path}/store")


def image(folder: Path, rank: int, more: bytes = b"") -> Path:
    folder.mkdir(parents=True)
    text = b"the same line again and again\n" * 20_000
    (folder / "pages-1.img").write_bytes(noise(9, 48_000) + bytes(300_000) + text + noise(rank, 3_000))
    (folder / "core-1.img").write_bytes(b"core" * 100 + more)
    (folder / "empty.img").write_bytes(b"")
    (folder / "sub").mkdir()
    (folder / "sub" / "rank.json").write_text("{}")
    return folder


def test_there_are_stores_of_releases() -> None:
    assert next(path.name for path in STORES) == "0.1.0.tar.xz"


def test_checkpoints_of_earlier_releases_are_restored_and_verified(old: Store, tmp_path: Path) -> None:
    for number, more in ((1, b""), (2, b"more")):
        made = old.read_manifest(*JOB, f"train-a1-g{number}")
        assert made.format == 4 and old.verify(made) == []
        back = {rank: tmp_path / f"back-{number}-{rank}" for rank in (0, 1)}
        old.fetch_ranks(made, back)
        for rank, folder in back.items():
            assert same(folder, image(tmp_path / f"image-{number}-{rank}", rank, more))


def test_an_archive_of_such_a_checkpoint_is_imported(old: Store, tmp_path: Path) -> None:
    archive = io.BytesIO()
    old.export(old.read_manifest(*JOB, "train-a1-g2"), archive)
    archive.seek(0)
    made = old.import_(archive, job="other")
    assert made.format == 4 and old.verify(old.read_manifest("team", "other", made.id)) == []


def test_a_job_goes_on_in_such_a_store(old: Store, tmp_path: Path) -> None:
    """Both formats lie beside each other. What the old checkpoints need stays as long as they do."""
    folders = {rank: image(tmp_path / f"image-{rank}", rank, b"third") for rank in (0, 1)}
    committed = [(name, old.read_digest(*JOB, name)[1]) for name in ("train-a1-g2", "train-a1-g1")]
    put = old.put_ranks(*JOB, "train-a1-g3", folders, trust=of_attempt("key of the attempt", committed))
    old.write_manifest(manifest(put.images, 3))
    made = old.read_manifest(*JOB, "train-a1-g3")
    assert made.format == 5
    before = {each.name for rank in old.read_manifest(*JOB, "train-a1-g2").ranks for each in rank.packs}
    assert before.isdisjoint(each.name for rank in made.ranks for each in rank.packs)
    assert old.collect_garbage(*JOB).deleted == 0
    for name in ("train-a1-g1", "train-a1-g2", "train-a1-g3"):
        assert old.verify(old.read_manifest(*JOB, name)) == []
    old.fetch_ranks(made, {1: tmp_path / "back"})
    assert same(folders[1], tmp_path / "back")
    assert old.prune(*JOB, 1) == ["train-a1-g2", "train-a1-g1"] and old.collect_garbage(*JOB).deleted > len(before)
    assert old.verify(made) == []


def test_damage_of_such_a_pack_is_noticed(old: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a block that is not compressed, and of the head."""
    monkeypatch.setattr(download, "SECOND_LOOK_S", 0.01)
    made = old.read_manifest(*JOB, "train-a1-g1")
    packs = list((tmp_path / "store").rglob("packs/*"))
    whole = {path: path.read_bytes() for path in packs}
    for at in (9, 40, -1, -2000):
        for path, data in whole.items():
            spoilt = bytearray(data)
            spoilt[at % len(data)] ^= 1
            path.write_bytes(bytes(spoilt))
        with pytest.raises(CorruptChunkError):
            old.fetch_ranks(made, {0: tmp_path / "back"})
        assert old.verify(made)
