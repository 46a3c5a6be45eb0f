"""Jobs of other users share a store and cannot read in it, where it is a folder (review F4)."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from store_samples import JOB, NAMESPACE, commit, image, manifest, namespace_keys

from localcluster import shared_folder
from singularity_proxy.errors import StoreError
from singularity_proxy.store import Store, memory

STRANGER = 1000
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="changes its user")


def as_stranger(work: Callable[[], object]) -> str:
    """What another user without capabilities is told."""
    memory.load()  # the libraries here are root's
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)

    def run() -> None:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        try:
            there.send(f"done: {work()}")
        except (StoreError, OSError) as error:
            there.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    said: str = here.recv()
    process.join()
    return said


@pytest.fixture(params=["plain", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    keys = namespace_keys(tmp_path / "keys") if request.param == "encrypted" else None
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and stat.S_IMODE(folder.stat().st_mode) & 0o011 == 0:
            folder.chmod(0o711)
    (tmp_path / "store").mkdir(mode=0o755)
    return Store(f"file://{tmp_path}/store", patience_s=1, keys=keys)


def test_another_user_neither_lists_nor_reads(store: Store, tmp_path: Path) -> None:
    """The review's `read_other.py`: a rank of another tenant, with the whole store mounted, as uid 1000."""
    made = commit(store, image(tmp_path / "image"))
    store.pin(NAMESPACE, JOB, made.id)
    back = tmp_path / "stolen"
    back.mkdir(mode=0o777)
    back.chmod(0o777)
    for work in (
        lambda: store.jobs(),
        lambda: [listing.manifest for listing in store.list_checkpoints(NAMESPACE, JOB)],
        lambda: store.read_manifest(NAMESPACE, JOB, made.id),
        lambda: store.fetch_ranks(made, {0: back / "rank"}),
        lambda: store.verify(made),
        lambda: store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: tmp_path / "image"}),
        lambda: store.drop(NAMESPACE, JOB, [made.id]),
    ):
        said = as_stranger(work)
        assert "Permission denied" in said or said == "done: []", said
    assert not any(path.stat().st_size for path in back.rglob("*.img") if path.is_file())
    assert store.verify(made) == []
    for path in (tmp_path / "store" / "jobs").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o600 if path.is_file() else 0o751 if path.name == NAMESPACE else 0o700), path
    assert stat.S_IMODE((tmp_path / "store" / "jobs").stat().st_mode) == 0o751


def test_jobs_of_several_users_have_their_places(store: Store, tmp_path: Path) -> None:
    """A platform that lets several users into a namespace gives its store a default ACL."""
    try:
        os.setxattr(tmp_path / "store", "system.posix_acl_default", shared_folder.default_acl())
    except OSError:
        pytest.skip("no ACLs here")
    (tmp_path / "store").chmod(0o777)
    commit(store, image(tmp_path / "image"))
    assert "Permission denied" in as_stranger(lambda: store.read_manifest(NAMESPACE, JOB, "train-a1-g1"))
    folder = image(tmp_path / "theirs")

    def theirs() -> object:
        put = store.put_ranks(NAMESPACE, "other", "other-a1-g1", {0: folder})
        store.write_manifest(manifest(put.images, job="other"))
        return store.verify(store.read_manifest(NAMESPACE, "other", "other-a1-g1"))

    for path in (*tmp_path.glob("keys/*"), *tmp_path.glob("keys")):
        os.chown(path, STRANGER, STRANGER)
    assert as_stranger(theirs) == "done: []"
