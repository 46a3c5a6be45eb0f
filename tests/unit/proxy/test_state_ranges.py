"""Parts of a checkpoint: what is fetched, counted and refused; the socket that ranks ask at."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import threading
from pathlib import Path

import pytest
from store_samples import JOB, NAMESPACE, manifest

from singularity_proxy.agent import state_parts as agent
from singularity_proxy.errors import CorruptChunkError, ProxyError, RestoreRefusedError, StoreError
from singularity_proxy.protocol import names
from singularity_proxy.protocol.image_room import Room
from singularity_proxy.sidecar.state_parts import PartsServer, ahead, is_part, shards
from singularity_proxy.store import Parts, Range, Store

MIB = 1 << 20
SIZE = 20 * MIB


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, list[bytes], list[object]]:
    """Two ranks with a blob each, one that both have, and a record of their own."""
    top = tmp_path_factory.mktemp("stored")
    contents = [random.Random(rank).randbytes(SIZE) for rank in (0, 1)]
    for rank, content in enumerate(contents):
        folder = top / f"rank-{rank}"
        (folder / "blobs").mkdir(parents=True)
        (folder / f"blobs/b{rank}").write_bytes(content)
        (folder / "blobs/both").write_bytes(b"the same" * 1000)
        (folder / "blobs/empty").write_bytes(b"")
        (folder / "rank.json").write_text(str(rank) * (rank + 1))
    store = Store(f"file://{top}/store", patience_s=2)
    put = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g1", {rank: top / f"rank-{rank}" for rank in (0, 1)})
    return store, contents, list(put.images)


def parts_of(stored: tuple[Store, list[bytes], list[object]], target: Path, room: Room | None = None) -> Parts:
    store, _, images = stored
    made = manifest(images)  # type: ignore[arg-type]
    return store.parts(made, target, is_part, None if room is None else lambda: room)


def test_a_range_costs_little_more_than_its_bytes_and_nothing_the_second_time(
    stored: tuple[Store, list[bytes], list[object]], tmp_path: Path
) -> None:
    parts = parts_of(stored, tmp_path / "t")
    begin, end = 9 * MIB, 11 * MIB
    assert 2 * MIB <= parts.fetch([Range("blobs/b1", begin, end)]) < 3.5 * MIB
    found = (tmp_path / "t/blobs/b1").read_bytes()
    assert len(found) == SIZE and found[begin:end] == stored[1][1][begin:end]
    assert not any(found[: 8 * MIB]), "the rest is a hole"
    assert parts.fetch([Range("blobs/b1", begin, end)]) == 0
    got = parts.bytes_fetched
    parts.fetch_files(["blobs/b1", "blobs/both", "blobs/empty"])
    assert (tmp_path / "t/blobs/b1").read_bytes() == stored[1][1]
    assert (tmp_path / "t/blobs/both").read_bytes() == b"the same" * 1000
    assert parts.bytes_fetched < SIZE * 1.1 and parts.bytes_fetched > got
    assert not (tmp_path / "t/rank.json").exists()


def test_many_threads_that_want_the_same_fetch_it_once(
    stored: tuple[Store, list[bytes], list[object]], tmp_path: Path
) -> None:
    parts = parts_of(stored, tmp_path / "t")
    threads = [threading.Thread(target=parts.fetch, args=([Range("blobs/b0", 0, SIZE)],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (tmp_path / "t/blobs/b0").read_bytes() == stored[1][0]
    assert SIZE <= parts.bytes_fetched < 1.1 * SIZE


def test_what_is_not_there_is_refused_by_name(stored: tuple[Store, list[bytes], list[object]], tmp_path: Path) -> None:
    parts = parts_of(stored, tmp_path / "t")
    for wrong in (Range("blobs/no", 0, 1), Range("blobs/b0", 0, SIZE + 1), Range("rank.json", 0, 1)):
        assert f"has no bytes {wrong.begin} to {wrong.end} of '{wrong.path}'" in parts.problem([wrong])
        with pytest.raises(StoreError, match="has no bytes"):
            parts.fetch([wrong])
    for limited, error in ((True, RestoreRefusedError), (False, StoreError)):
        room = Room(MIB, "there is no more", "Raise checkpoint_disk", limited)
        with pytest.raises(error, match=r"No space left on device .* there is no more\. Raise checkpoint_disk"):
            parts_of(stored, tmp_path / "t", room).fetch([Range("blobs/b0", 0, SIZE)])


def test_a_damaged_block_is_found_by_who_needs_it(
    stored: tuple[Store, list[bytes], list[object]], tmp_path: Path
) -> None:
    parts = parts_of(stored, tmp_path / "t")
    parts.fetch([Range("blobs/b0", 0, 1)])
    packs = [path for path in Path(stored[0].url.removeprefix("file://")).rglob("packs/**/*") if path.is_file()]
    before = {path: path.read_bytes() for path in packs}
    try:
        for path, data in before.items():
            middle = len(data) // 2
            path.chmod(0o644)
            path.write_bytes(data[:middle] + bytes(1000) + data[middle + 1000 :])
        with pytest.raises(CorruptChunkError, match="other content than its key"):
            parts.fetch([Range("blobs/b0", 0, SIZE)])
        packs[0].unlink()
        with pytest.raises(CorruptChunkError):
            parts_of(stored, tmp_path / "u").fetch_files(["blobs/b0", "blobs/b1"])
    finally:
        for path, data in before.items():
            path.write_bytes(data)
    parts.fetch([Range("blobs/b0", 0, SIZE)])
    assert (tmp_path / "t/blobs/b0").read_bytes() == stored[1][0]


# --- what every rank needs --------------------------------------------------------------------------------------------
def library(**change: object) -> bytes:
    def tensor(*blobs: str) -> dict[str, object]:
        return {"pieces": [{"blob": blob} for blob in blobs]}

    made = {
        "format": "singularity-state", "version": 1, "objects": {"o": {"blob": ""}, "p": {"blob": "b0"}},
        "tensors": {"whole": tensor("both"), "parted": tensor("b0", "b1"), "mixed": tensor("both", "b1")},
    }  # fmt: skip
    return json.dumps({**made, **change}).encode()


def test_only_blobs_that_hold_nothing_but_shards_can_wait() -> None:
    assert shards(library()) == {"b1"}, "b0 has an object too"
    for other in (b"{", b"[]", b"null", library(version=2), library(tensors={"t": 1}), library(objects=None)):
        assert shards(other) == frozenset()


def test_a_pod_fetches_ahead_what_its_ranks_need_for_sure(
    stored: tuple[Store, list[bytes], list[object]], tmp_path: Path
) -> None:
    parts, text = parts_of(stored, tmp_path), library()
    everything = {"blobs/b0", "blobs/b1", "blobs/both", "blobs/empty"}
    assert parts.paths() == everything
    assert ahead(parts, text, [0], world=3, saved_by=2) == everything - {"blobs/b1"}
    assert ahead(parts, text, [1], world=2, saved_by=2) == everything, "the same shards again"
    assert ahead(parts, text, [0], world=2, saved_by=2) == everything - {"blobs/b1"}
    assert ahead(parts, text, [0, 1, 2], world=3, saved_by=2) == everything, "all ranks are here"
    assert ahead(parts, b"", [0], world=3, saved_by=2) == everything


# --- the socket -------------------------------------------------------------------------------------------------------
async def test_a_rank_asks_and_gets_its_part(
    stored: tuple[Store, list[bytes], list[object]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[ProxyError] = []
    gate, started = threading.Event(), threading.Event()

    def make() -> Parts:
        started.set()
        assert gate.wait(120)
        return parts_of(stored, folder / "t")

    async def give_up(error: ProxyError) -> None:
        ended.append(error)

    server = PartsServer(folder, make, give_up, poll_s=0.1)
    await server.start()
    monkeypatch.setenv(names.ENV_STATE_PARTS, str(folder / names.PARTS_FILE))
    monkeypatch.setenv(names.ENV_STATE_FROM, str(folder / "t"))
    assert agent.bring(folder / "other") is None
    bring = agent.bring(folder / "t")
    assert bring is not None
    answers: list[int] = []
    get = agent._Connection.getresponse

    def counted(connection: agent._Connection) -> http.client.HTTPResponse:
        response = get(connection)
        answers.append(response.status)
        return response

    monkeypatch.setattr(agent._Connection, "getresponse", counted)
    asked = asyncio.create_task(asyncio.to_thread(bring, [("blobs/b0", 0, 100)]))
    await asyncio.to_thread(started.wait, 30)
    async with asyncio.timeout(120):
        while answers.count(202) < 2:  # the server keeps no answer for long: the rank asks again
            await asyncio.sleep(0.01)
    gate.set()
    await asyncio.wait_for(asked, 120)
    assert (folder / "t/blobs/b0").read_bytes()[:100] == stored[1][0][:100]
    with pytest.raises(OSError, match=r"answers 400: .*has no bytes 0 to 1 of 'no'"):
        await asyncio.to_thread(bring, [("no", 0, 1)])
    await server.close()
    assert not ended


def test_a_sidecar_that_is_away_for_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"nothing.sock cannot be reached: .* for 0 s; see the log of device-proxy"):
        agent.ask(str(tmp_path / "nothing.sock"), [], reach_s=0.3)


async def test_what_cannot_be_fetched_ends_the_pod_and_is_no_answer_to_the_rank(folder: Path) -> None:
    ended: list[ProxyError] = []

    def make() -> Parts:
        raise StoreError("the store is away")

    async def give_up(error: ProxyError) -> None:
        ended.append(error)

    server = PartsServer(folder, make, give_up, poll_s=0.1)
    await server.start()
    path = str(folder / names.PARTS_FILE)
    asked = asyncio.create_task(asyncio.to_thread(agent.ask, path, [("blobs/b0", 0, 1)], 0.5))
    async with asyncio.timeout(120):
        while not ended:
            await asyncio.sleep(0.01)
    assert "the store is away" in str(ended[0])
    assert not asked.done()
    await server.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asked, 120)
