"""A store behind a bad network: real servers of two protocols (gs, s3), and a proxy that injects faults."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from faulty_proxy import FaultyProxy
from object_servers import ENDPOINTS
from store_samples import FOLDER, JOB, MIB, NAMESPACE, commit, image, manifest, same

from singularity_proxy.errors import StoreError
from singularity_proxy.store import PutResult, Store, backend, locks

NAME = "train-a1-g2"
SIZE = 12 * MIB
"""Of what does not compress in an image: two packs."""


@pytest.fixture(params=["gs", "s3", "gs by fsspec", pytest.param("s3 by fsspec", marks=pytest.mark.full)])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of an empty bucket."""
    scheme, _, client = request.param.partition(" by ")
    monkeypatch.setenv(backend.CLIENT, client)
    found: str = request.getfixturevalue(f"{scheme}_url")
    return found


@pytest.fixture
def proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Between the store and its server."""
    variable = ENDPOINTS[urlsplit(url).scheme]
    made = FaultyProxy(urlsplit(os.environ[variable]).port or 0)
    monkeypatch.setenv(variable, made.url)
    yield made
    made.close()


class Putting:
    """An upload in a thread of its own."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.result: PutResult | None = None
        self.error = ""
        self._thread = threading.Thread(target=self._run, args=(store, folder))
        self._thread.start()

    def _run(self, store: Store, folder: Path) -> None:
        try:
            self.result = store.put_ranks(NAMESPACE, JOB, NAME, {0: folder})
        except StoreError as error:
            self.error = str(error)

    def end(self) -> PutResult | None:
        self._thread.join(200)
        assert not self._thread.is_alive()
        return self.result


def check_whole(store: Store, put: PutResult | None, folder: Path, back: Path) -> None:
    """Commit, read everything back, compare."""
    assert put is not None
    made = manifest(put.images, 2)
    store.write_manifest(made)
    assert store.verify(made) == []
    store.fetch_ranks(made, {0: back})
    assert same(folder, back)


def check_not_committed(store: Store, earlier: str) -> None:
    """The upload that failed is no checkpoint, and the one before is as it was."""
    best, skipped = store.latest_valid(NAMESPACE, JOB)
    assert best is not None and best.id == earlier and skipped == [] and store.verify(best) == []


@pytest.mark.parametrize("seconds", [1.0, pytest.param(60.0, marks=pytest.mark.full)])
def test_a_server_that_answers_errors_for_a_while(proxy: FaultyProxy, url: str, tmp_path: Path, seconds: float) -> None:
    store, folder = Store(url), image(tmp_path / "image", size=SIZE)
    began = time.monotonic()
    proxy.fail("503", after=2 * MIB, spreads=True)  # begins in the middle of a pack
    putting = Putting(store, folder)
    proxy.wait(lambda: proxy.fired["503"] >= 4 and time.monotonic() - began >= seconds)
    proxy.heal()
    check_whole(store, putting.end(), folder, tmp_path / "back")
    assert seconds < 60 or store.backend.retries >= 1


def test_errors_that_outlast_the_patience_commit_nothing(
    proxy: FaultyProxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = Store(url), image(tmp_path / "image", size=SIZE)
    earlier = commit(store, image(tmp_path / "earlier", seed=7, size=MIB))
    monkeypatch.setattr(backend, "FIRST_TRY_S", 4.0)
    proxy.fail("503", after=2 * MIB, spreads=True)
    putting = Putting(Store(url, patience_s=3), folder)
    assert putting.end() is None
    assert "cannot write" in putting.error and url in putting.error
    proxy.heal()
    check_not_committed(store, earlier.id)
    assert store.collect_garbage(NAMESPACE, JOB).running, "it could not say that it had ended"
    check_whole(store, Putting(store, folder).end(), folder, tmp_path / "back")
    store.prune(NAMESPACE, JOB, 1)
    assert store.collect_garbage(NAMESPACE, JOB).running == [] and store.backend.find(f"{FOLDER}/locks") == {}


def test_connections_cut_in_the_middle_of_an_upload(proxy: FaultyProxy, url: str, tmp_path: Path) -> None:
    store, folder = Store(url), image(tmp_path / "image", size=SIZE)
    proxy.fail("cut", after=2 * MIB, times=2)
    putting = Putting(store, folder)
    check_whole(store, putting.end(), folder, tmp_path / "back")
    assert proxy.fired["cut"] == 2


@pytest.mark.parametrize(("fault", "after", "times"), [("503", 0, 3), ("cut", 2 * MIB, 2), ("silence", 2 * MIB, 1)])
def test_a_download_that_meets_faults(
    proxy: FaultyProxy,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    after: int,
    times: int,
) -> None:
    monkeypatch.setattr(backend, "FIRST_TRY_S", 4.0)
    store, folder = Store(url), image(tmp_path / "image", size=SIZE)
    made = commit(store, folder)
    proxy.fail(fault, after=after, times=times)
    store.fetch_ranks(made, {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back") and proxy.fired[fault] == times


def test_a_download_is_given_up_with_a_sentence(
    proxy: FaultyProxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "FIRST_TRY_S", 2.0)
    store = Store(url, patience_s=3600)
    made = commit(store, image(tmp_path / "image", size=MIB))
    proxy.fail("403")
    with pytest.raises(StoreError, match=r"cannot read .*: (Forbidden|PermissionError: Forbidden)"):
        store.fetch_ranks(made, {0: tmp_path / "back"})
    proxy.fail("503")
    with pytest.raises(StoreError, match=r"cannot read "):
        Store(url, patience_s=2).fetch_ranks(made, {0: tmp_path / "back"})


def test_a_connection_that_falls_silent_is_replaced(
    proxy: FaultyProxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "FIRST_TRY_S", 2.0)
    store, folder = Store(url), image(tmp_path / "image", size=SIZE)
    proxy.fail("silence", after=2 * MIB, times=1)
    check_whole(store, Putting(store, folder).end(), folder, tmp_path / "back")
    assert proxy.fired["silence"] == 1 and store.backend.retries >= 1


def test_a_server_that_never_answers_is_given_up(
    proxy: FaultyProxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = Store(url), image(tmp_path / "image", size=MIB)
    earlier = commit(store, image(tmp_path / "earlier", seed=7, size=MIB))
    proxy.fail("silence")
    monkeypatch.setattr(backend, "FIRST_TRY_S", 3.0)
    putting = Putting(Store(url, patience_s=3), folder)
    assert putting.end() is None and "TimeoutError: no answer within 3 s" in putting.error
    proxy.heal()
    check_not_committed(store, earlier.id)


def test_cancelling_does_not_wait_for_a_silent_server(proxy: FaultyProxy, url: str, tmp_path: Path) -> None:
    """Its patience of an hour is longer than the test may take."""
    store, cancel, errors = Store(url, patience_s=3600), threading.Event(), []
    folder = image(tmp_path / "image", size=8 * MIB)

    def put() -> None:
        try:
            store.put_ranks(NAMESPACE, JOB, NAME, {0: folder}, cancelled=cancel.is_set)
        except StoreError as error:
            errors.append(str(error))

    proxy.fail("silence", after=2 * MIB)
    thread = threading.Thread(target=put)
    thread.start()
    proxy.wait_fired("silence")
    cancel.set()
    thread.join(120)
    assert not thread.is_alive() and "cancelled" in errors[0]


@pytest.mark.parametrize("fault", ["503", "silence"])
def test_a_manifest_that_nobody_waits_for_any_more_never_appears(
    proxy: FaultyProxy, url: str, tmp_path: Path, fault: str
) -> None:
    store, over, errors = Store(url, patience_s=3600), threading.Event(), []
    put = store.put_ranks(NAMESPACE, JOB, NAME, {0: image(tmp_path / "image", size=MIB)})

    def write() -> None:
        try:
            store.write_manifest(manifest(put.images, 2), over.is_set)
        except StoreError as error:
            errors.append(str(error))

    proxy.fail(fault)
    thread = threading.Thread(target=write)
    thread.start()
    proxy.wait_fired(fault)
    over.set()
    thread.join(120)
    assert not thread.is_alive() and "cancelled" in errors[0], "nothing is left that could write it"
    proxy.heal()
    assert store.list_checkpoints(NAMESPACE, JOB) == []
    store.write_manifest(manifest(put.images, 2))
    assert store.latest_valid(NAMESPACE, JOB)[0] is not None


def test_a_refusal_is_said_at_once(proxy: FaultyProxy, url: str, tmp_path: Path) -> None:
    store = Store(url, patience_s=3600)
    proxy.fail("403")
    with pytest.raises(StoreError, match=r"cannot write .*: (Forbidden|PermissionError: Forbidden)"):
        store.put_ranks(NAMESPACE, JOB, NAME, {0: image(tmp_path / "image", size=MIB)})
    assert store.backend.retries == 0 and proxy.fired["403"] >= 1


def test_a_slow_store_slows_the_upload_down_and_loses_nothing(proxy: FaultyProxy, url: str, tmp_path: Path) -> None:
    """What the upload says is done is what the store has: it does not run ahead of it."""
    store, folder = Store(url), image(tmp_path / "image", size=SIZE)
    proxy.rate = 6e6
    ahead: list[int] = []

    def progress(done: int, total: int) -> None:
        # The image has 4.5 MiB of zeros and text that are not sent.
        ahead.append(done - 5 * MIB - proxy.received)

    put = store.put_ranks(NAMESPACE, JOB, NAME, {0: folder}, progress=progress)
    proxy.rate = 0.0
    check_whole(store, put, folder, tmp_path / "back")
    assert max(ahead) <= 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"key": ""}, "Unable to locate credentials"),
        ({"url": "s3://no-such-bucket/x"}, "bucket does not exist"),
        ({"url": "s3://not a bucket/x"}, "Invalid bucket name"),
    ],
    ids=["key", "bucket", "name"],
)
def test_what_is_wrong_with_s3_is_said_at_once(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], text: str
) -> None:
    """And not taken for a store that is away, which is tried again."""
    if "key" in change:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = Store(change.get("url", s3_url))
    with pytest.raises(StoreError, match=text) as caught:
        store.probe()
    assert type(caught.value) is StoreError and store.backend.retries == 0


def test_a_delete_without_an_answer_is_given_up_when_the_collections_time_is_over(
    proxy: FaultyProxy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody relies on what it was about to delete, whether the delete is still carried out or not."""
    store, folder = Store(url), image(tmp_path / "image", size=MIB)
    commit(store, folder)
    store.backend.delete(f"{FOLDER}/{JOB}-a1-g1.json")
    proxy.fail("silence", about=b"DELETE ")
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="cannot delete"):
        patch.setattr(locks, "COLLECTION_S", 3.0)
        store.collect_garbage(NAMESPACE, JOB)
    assert proxy.fired["silence"]
    proxy.heal()
    put = store.put_ranks(NAMESPACE, JOB, NAME, {0: folder})
    assert put.bytes_stored > MIB
    check_whole(store, put, folder, tmp_path / "back")
    assert store.collect_garbage(NAMESPACE, JOB).deleted == 2
    assert store.backend.find(f"{FOLDER}/locks") == {}
