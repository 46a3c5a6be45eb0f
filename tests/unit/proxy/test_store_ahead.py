"""An upload that begins while images are still being written: what is stored early, and that nothing relies on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from store_samples import FOLDER, JOB, MIB, NAMESPACE, image, manifest, noise, same

from singularity_proxy.errors import StoreError
from singularity_proxy.store import PutResult, Store
from singularity_proxy.store.early_upload import LEAST
from singularity_proxy.store.segments import READ_SIZE

NAME = f"{JOB}-a1-g1"
PAGES = "pages-1.img"
Act = Callable[[], object]


class Dump:
    """Writes images between two looks of the upload that follows it: one of `acts` each, then they are whole."""

    def __init__(self, *acts: Act) -> None:
        self._acts = list(acts)

    def growing(self) -> bool:
        if not self._acts:
            return False
        self._acts.pop(0)()
        return True


def rest() -> None:
    """The upload looks, and nothing new has come."""


def append(path: Path, data: bytes) -> Act:
    def act() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    return act


def overwrite(path: Path, at: int, data: bytes) -> Act:
    def act() -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    return act


def put(store: Store, folders: dict[int, Path], *acts: Act, part: tuple[int, int] = (0, 1)) -> PutResult:
    return store.put_ranks(NAMESPACE, JOB, NAME, folders, part, growing=Dump(*acts).growing)


def comes_back(store: Store, result: PutResult, folder: Path, back: Path) -> bool:
    made = manifest(result.images)
    store.fetch_ranks(made, {0: back})
    return same(folder, back) and store.verify(made) == []


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store", patience_s=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rank-0"


def test_what_has_been_dumped_is_stored_while_the_rest_is_dumped(store: Store, folder: Path, tmp_path: Path) -> None:
    pieces = [append(folder / PAGES, noise(seed, 5 * MIB)) for seed in range(6)]
    looks = [look for piece in pieces for look in (piece, rest, rest, rest)]
    result = put(store, {0: folder}, *looks, append(folder / "core-1.img", b"core"))
    assert result.bytes == 30 * MIB + 4
    assert result.bytes_ahead >= 16 * MIB and 30 * MIB < result.bytes_stored < 31 * MIB
    assert comes_back(store, result, folder, tmp_path / "back")
    # What the next upload finds in place is what it would have made itself.
    again = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g2", {0: folder})
    assert again.bytes_stored < 200_000 and again.bytes_ahead == 0, "a recipe"


def test_nothing_is_stored_ahead_of_images_that_do_not_grow(store: Store, tmp_path: Path) -> None:
    result = store.put_ranks(NAMESPACE, JOB, NAME, {0: image(tmp_path / "image", size=20 * MIB)})
    assert result.bytes_ahead == 0


def test_pages_of_all_ranks_and_processes_are_followed(store: Store, tmp_path: Path) -> None:
    paths = [tmp_path / f"rank-{rank}" / f"pages-{number}.img" for rank in (0, 1) for number in (1, 2)]
    acts = [append(path, noise(index, 9 * MIB)) for index, path in enumerate(paths)]
    result = put(store, {rank: tmp_path / f"rank-{rank}" for rank in (0, 1)}, *acts, *[rest] * 40)
    assert result.bytes_ahead >= 24 * MIB
    store.fetch_ranks(manifest(result.images), {0: tmp_path / "b0", 1: tmp_path / "b1"})
    assert same(tmp_path / "rank-0", tmp_path / "b0") and same(tmp_path / "rank-1", tmp_path / "b1")


@pytest.mark.parametrize("at", [0, READ_SIZE // 2, READ_SIZE + 12_345, 3 * READ_SIZE - 8])
def test_a_page_that_changes_after_it_was_looked_at_is_stored_as_it_is_in_the_end(
    store: Store, folder: Path, tmp_path: Path, at: int
) -> None:
    grown = append(folder / PAGES, noise(1, 4 * READ_SIZE))
    changed = overwrite(folder / PAGES, at, b"another byte")
    result = put(store, {0: folder}, grown, *[rest] * 16, changed)
    assert result.bytes_ahead > 0, "it had been looked at"
    assert (folder / PAGES).read_bytes()[at : at + 12] == b"another byte"
    assert comes_back(store, result, folder, tmp_path / "back")


def test_a_file_that_is_replaced_or_cut_after_it_was_looked_at(store: Store, folder: Path, tmp_path: Path) -> None:
    one, two, three = (folder / f"pages-{number}.img" for number in (1, 2, 3))
    grown = [append(path, noise(number, 3 * READ_SIZE)) for number, path in enumerate((one, two, three))]

    def act() -> None:
        one.unlink()
        one.write_bytes(noise(7, 2 * READ_SIZE))
        with two.open("r+b") as file:
            file.truncate(READ_SIZE + 77)
        three.unlink()

    result = put(store, {0: folder}, *grown, *[rest] * 30, act)
    assert result.bytes_ahead > 0 and result.bytes == 3 * READ_SIZE + 77
    assert comes_back(store, result, folder, tmp_path / "back")


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(4, 40))])
def test_whatever_a_writer_does_what_counts_are_the_bytes_in_the_end(
    store: Store, folder: Path, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    path = folder / PAGES
    acts: list[Act] = [append(path, noise(seed, LEAST))]

    def anything() -> None:
        size = path.stat().st_size
        kind = chance.randrange(4)
        if kind == 0:
            overwrite(path, chance.randrange(size), chance.randbytes(chance.randrange(1, 100_000)))()
        elif kind == 1:
            with path.open("r+b") as file:
                file.truncate(chance.randrange(size + 1))
        else:
            append(path, bytes(chance.randrange(MIB)) + chance.randbytes(chance.randrange(3 * MIB)))()

    acts += [chance.choice([anything, anything, rest]) for _ in range(24)]
    result = put(store, {0: folder}, *acts)
    assert comes_back(store, result, folder, tmp_path / "back")


def test_replicas_that_grow_in_two_pods_are_stored_once(store: Store, tmp_path: Path) -> None:
    """Each pod stores ahead what it begins with; the rest it finds in the store, or stores at the end."""
    data = noise(3, 32 * MIB)
    folders = [tmp_path / f"pod-{index}" for index in range(2)]
    results: list[PutResult] = []

    def other() -> None:
        acts = [append(folders[1] / PAGES, data), *[rest] * 30]
        results.append(put(store, {1: folders[1]}, *acts, part=(1, 2)))

    results.append(put(store, {0: folders[0]}, append(folders[0] / PAGES, data), *[rest] * 30, other, part=(0, 2)))
    assert all(result.bytes_ahead >= 8 * MIB for result in results)
    assert sum(result.bytes_stored for result in results) < 1.05 * 32 * MIB
    assert comes_back(store, results[1], folders[0], tmp_path / "back")


def test_an_upload_is_cancelled_while_images_grow(store: Store, folder: Path, tmp_path: Path) -> None:
    looks = 0

    def growing() -> bool:
        nonlocal looks
        looks += 1
        append(folder / PAGES, noise(looks, 5 * MIB))()
        return True

    with pytest.raises(StoreError, match="cancelled"):
        store.put_ranks(NAMESPACE, JOB, NAME, {0: folder}, cancelled=lambda: looks >= 12, growing=growing)
    assert sorted(store.backend.find(f"{FOLDER}/locks")) == []
    kept = len(store.backend.find(f"{FOLDER}/packs"))
    # What was stored is found by the next one, as after any upload that was broken off.
    result = store.put_ranks(NAMESPACE, JOB, NAME, {0: folder})
    assert kept >= 1 and result.bytes_stored < result.bytes - 7 * kept * MIB
    assert comes_back(store, result, folder, tmp_path / "back")


def test_a_store_that_fails_while_images_grow(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"memory://{tmp_path.name}", patience_s=0.2)
    stock = store.backend.fs.pipe_file

    def pipe(path: str, value: bytes, **options: object) -> object:
        if "/packs/" in path:
            raise OSError("the wire is cut")
        return stock(path, value, **options)

    monkeypatch.setattr(store.backend.fs, "pipe_file", pipe)
    acts = [look for seed in range(40) for look in (append(folder / PAGES, noise(seed, 5 * MIB)), rest, rest, rest)]
    with pytest.raises(StoreError, match="the wire is cut"):
        put(store, {0: folder}, *acts)


def test_folders_that_never_come(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a directory: there is no image to store"):
        put(store, {0: tmp_path / "none"}, *[rest] * 3)
