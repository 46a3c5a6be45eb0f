"""A store that fails: errors that pass, errors that last, a full disk, archives that were tampered with."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_samples import FOLDER, JOB, NAMESPACE, commit, image, manifest, same

from singularity_proxy.errors import StoreError
from singularity_proxy.store import Store, locks


def test_errors_that_pass_are_tried_again_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"memory://{tmp_path.name}")
    put, fails = store.backend.files.fs.pipe_file, [5]

    def flaky(*args: Any, **options: Any) -> None:
        if fails[0] > 0:
            fails[0] -= 1
            raise ConnectionResetError("the store went away")
        put(*args, **options)

    monkeypatch.setattr(store.backend.files.fs, "pipe_file", flaky)
    folder = image(tmp_path / "image")
    result = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: folder})
    assert fails == [0] and store.backend.retries == 5
    store.fetch_ranks(manifest(result.images), {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")


def test_errors_that_last_end_the_upload_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"memory://{tmp_path.name}", patience_s=0.5)

    def away(*args: Any, **options: Any) -> None:
        raise ConnectionResetError("the store went away")

    monkeypatch.setattr(store.backend.files.fs, "pipe_file", away)
    with pytest.raises(StoreError, match=r"cannot write .*: ConnectionResetError: the store went away"):
        store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: image(tmp_path / "image")})
    assert store.backend.retries > 0


def test_a_full_disk_is_said_at_once_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs root: mounts a small file system")
    try:
        store, folder = Store(f"file://{disk}/store"), image(tmp_path / "image", size=8 << 20)
        earlier = commit(store, image(tmp_path / "earlier", seed=7, size=1 << 19))
        before = {p for p in disk.rglob("*") if p.is_file() and p.parent.name != "packs"}
        with pytest.raises(StoreError, match="the disk is full") as caught:
            store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder})
        assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENOSPC
        assert store.backend.retries == 0
        left = [p for p in disk.rglob("*") if p.is_file()]
        assert {p for p in left if p.parent.name != "packs"} == before, "no manifest, no lock"
        assert not [p for p in left if ".tmp-" in p.name], "nothing half written"
        best, skipped = store.latest_valid(NAMESPACE, JOB)
        assert best is not None and best.id == earlier.id and skipped == [] and store.verify(best) == []
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        put = store.put_ranks(NAMESPACE, JOB, "train-a1-g2", {0: folder})
        store.fetch_ranks(manifest(put.images, 2), {0: tmp_path / "back"})
        assert same(folder, tmp_path / "back"), "there is space again"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_manifest_whose_time_is_over_while_it_is_written_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, over, sync = Store(f"file://{tmp_path}/store"), threading.Event(), os.fsync
    put = store.put_ranks(NAMESPACE, JOB, "train-a1-g1", {0: image(tmp_path / "image", size=1 << 19)})

    def slow(descriptor: int) -> None:
        sync(descriptor)
        over.set()

    monkeypatch.setattr(os, "fsync", slow)
    with pytest.raises(StoreError, match=r"train-a1-g1.json was not written: it was cancelled"):
        store.write_manifest(manifest(put.images), over.is_set)
    assert store.list_checkpoints(NAMESPACE, JOB) == []
    assert not [path for path in tmp_path.rglob("*") if ".tmp-" in path.name]
    assert store.collect_garbage(NAMESPACE, JOB).running, "its packs are there for the next one"


Change = Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]


def _rename(name: str) -> Change:
    return lambda members: setattr(members[1][0], "name", name)


def _link(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members[1][0].type, members[1][0].linkname, members[1][0].size = tarfile.SYMTYPE, "/etc/passwd", 0


def _longer(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    info, data = members[1]
    info.size = len(data) + 1
    members[1] = (info, data + b"x")


def _flip(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    info, data = members[2]
    members[2] = (info, data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_rename("../../escaped"), "'../../escaped', twice or without need"),
        (_rename("/tmp/escaped"), "'/tmp/escaped', twice or without need"),
        (_link, "is not a regular file"),
        (_longer, "bytes, more than"),
        (_flip, "does not match its digest"),
        (lambda members: members.append(members[1]), "twice or without need"),
        (lambda members: members.pop(), "lacks packs/"),
        (lambda members: members.pop(0), "does not begin with manifest.json"),
    ],
)
def test_a_tampered_archive_is_refused(tmp_path: Path, change: Change, text: str) -> None:
    store = Store(f"file://{tmp_path}/store")
    made = commit(store, image(tmp_path / "image"))
    archive = io.BytesIO()
    store.export(made, archive)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
    change(members)
    changed = io.BytesIO()
    with tarfile.open(fileobj=changed, mode="w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    changed.seek(0)
    other = Store(f"file://{tmp_path}/other")
    with pytest.raises(StoreError, match=text):
        other.import_(changed)
    assert other.list_checkpoints(NAMESPACE, JOB) == []
    assert other.backend.find(f"{FOLDER}/locks") == {}
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize(
    "url",
    [
        "s4://bucket/prefix", "http://10.0.0.1/latest/meta-data", "https://example.org/x", "ftp://host/x",
        "simplecache::gs://bucket/x", "simplecache::http://10.0.0.1/x", "gs://bucket/x::http://10.0.0.1/",
        "FILE:///x", "/bare/path", "local:///x", "data:,x", "github://o:r@/x", "filecache://x", "reference://x",
    ],
)  # fmt: skip
def test_only_stores_that_are_known_are_opened(url: str) -> None:
    """Any other could make the pod ask an address inside the cluster, or run what a library of fsspec's has."""
    with pytest.raises(StoreError, match=r"not of a kind that is supported; give file://, gs://, s3://, az:// or memory://"):
        Store(url)


def test_a_collection_sends_no_delete_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, sent = Store(f"memory://{tmp_path.name}", patience_s=60), []
    commit(store, image(tmp_path / "image", size=1 << 19))
    store.backend.delete(f"{FOLDER}/{JOB}-a1-g1.json")

    def away(path: str) -> None:
        sent.append(time.monotonic())
        raise ConnectionResetError("the store went away")

    monkeypatch.setattr(store.backend.files.fs, "rm_file", away)
    monkeypatch.setattr(locks, "COLLECTION_S", 3.0)
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"(cannot|did not) delete .*the store went away"):
        store.collect_garbage(NAMESPACE, JOB)
    assert len(sent) > 1 and max(sent) < began + 33, "and not for the store's minute"
