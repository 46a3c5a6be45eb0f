"""What a rank plants among its images: nothing is followed, nothing is waited for, and the checkpoint fails by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from store_samples import FOLDER, JOB, MIB, NAMESPACE, image, manifest, noise, same

from singularity_proxy.errors import StoreError
from singularity_proxy.store import PutResult, Store
from singularity_proxy.store import images as image_files
from singularity_proxy.store.pack import CONTENT_SIZE

NAME = f"{JOB}-a1-g1"
SECRET = noise(9, 3 * MIB)
Plant = Callable[[Path, Path], None]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that only the sidecar may read."""
    path = tmp_path / "elsewhere" / "pages-9.img"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


def put(store: Store, images: Path, growing: Callable[[], bool] = lambda: False) -> PutResult:
    folders = {0: images / NAME / "rank-0"}
    return store.put_ranks(NAMESPACE, JOB, NAME, folders, growing=growing, below=images)


def is_stored(store: Store, content: bytes) -> bool:
    """Whether any of it is in a pack. It does not compress."""
    sample = content[MIB : MIB + 64]
    return any(sample in (store.backend.read(path) or b"") for path in store.backend.find(f"{FOLDER}/packs"))


def _link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def _pipe(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def _device(path: Path, secret: Path) -> None:
    try:
        os.mknod(path, 0o20600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("needs root: makes a device")


def _hard_link(path: Path, secret: Path) -> None:
    os.link(secret, path)


def _folder(path: Path, secret: Path) -> None:
    path.symlink_to(secret.parent)


KINDS: list[tuple[Plant, str]] = [
    (_link, "symbolic link"), (_pipe, "a pipe"), (_device, "a device"), (_hard_link, "hard link"),
    (_folder, "symbolic link"),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "text"), KINDS)
@pytest.mark.parametrize("grows", [False, True])
def test_what_is_no_file_of_the_image_fails_the_checkpoint_by_name(
    store: Store, tmp_path: Path, secret: Path, plant: Plant, text: str, grows: bool
) -> None:
    planted = image(tmp_path / "images" / NAME / "rank-0") / "pages-2.img"
    plant(planted, secret)
    looks = iter(range(8 if grows else 0))
    with pytest.raises(StoreError, match=f"pages-2.img.*{text}"):
        put(store, tmp_path / "images", lambda: next(looks, None) is not None)
    assert not is_stored(store, SECRET)
    assert store.uploads(NAMESPACE, JOB) == []


@pytest.mark.parametrize("level", [NAME, f"{NAME}/rank-0", f"{NAME}/rank-0/sub"])
@pytest.mark.parametrize("grows", [False, True])
def test_a_folder_that_is_a_link_is_not_followed(
    store: Store, tmp_path: Path, secret: Path, level: str, grows: bool
) -> None:
    other = image(tmp_path / "other" / NAME / "rank-0", 3)
    (other / "pages-9.img").write_bytes(SECRET)
    link = tmp_path / "images" / level
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "other" / level)
    looks = iter(range(8 if grows else 0))
    with pytest.raises(StoreError, match=f"{level} is not a.*symbolic link"):
        put(store, tmp_path / "images", lambda: next(looks, None) is not None)
    assert not is_stored(store, SECRET)


@pytest.mark.parametrize("by", ["link", "file"])
def test_a_file_that_is_replaced_after_it_was_listed_is_not_read(
    store: Store, tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    images = tmp_path / "images"
    victim = image(images / NAME / "rank-0", size=3 * CONTENT_SIZE) / "pages-1.img"
    walk = image_files.walk

    def then_replace(*args: object) -> list[image_files.File]:
        found = walk(*args)  # type: ignore[arg-type]
        victim.unlink()
        victim.symlink_to(secret) if by == "link" else victim.write_bytes(SECRET)
        return found

    monkeypatch.setattr(image_files, "walk", then_replace)
    with pytest.raises(StoreError, match=r"pages-1\.img (is not a regular file|changed while it was stored)"):
        put(store, images)
    assert not is_stored(store, SECRET)


def test_files_that_ranks_of_the_pod_share_are_stored(store: Store, tmp_path: Path) -> None:
    """The launcher packs what changed in the container once, and gives it to every rank by a hard link."""
    images = tmp_path / "images"
    folders = {rank: image(images / NAME / f"rank-{rank}", rank) for rank in (0, 1)}
    (folders[0] / "layer.tar").write_bytes(noise(4, MIB))
    os.link(folders[0] / "layer.tar", folders[1] / "layer.tar")
    made = manifest(store.put_ranks(NAMESPACE, JOB, NAME, folders, below=images).images)
    store.fetch_ranks(made, {rank: tmp_path / f"back-{rank}" for rank in folders})
    assert all(same(folders[rank], tmp_path / f"back-{rank}") for rank in folders)
