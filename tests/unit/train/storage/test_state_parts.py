"""Each rank reads what it needs: real shards, real stores, and a sidecar's server for each pod."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch_nursery import Nursery

from singularity_proxy.errors import ProxyError
from singularity_proxy.protocol import manifest as mf
from singularity_proxy.protocol.messages import CheckpointRef
from singularity_proxy.sidecar import hardware, restore
from singularity_proxy.sidecar.config import Config
from singularity_proxy.sidecar.state_parts import PartsServer
from singularity_proxy.store import Parts, Store

pytestmark = pytest.mark.criu
RANKS = 4
ID = "train-a1-g1"


def stored(root: Path, kind: str, nursery: Nursery) -> tuple[CheckpointRef, str]:
    """What four pods of one rank have saved and stored; and the digest of it."""
    saved = nursery.run(RANKS, "state_parts_programs:save", root=str(root), kind=kind)
    store = Store(f"file://{root}/store")
    puts = [
        store.put_ranks("team", "train", ID, {rank: root / f"rank-{rank}"}, part=(rank, RANKS)) for rank in range(RANKS)
    ]
    made = mf.Manifest(
        id=ID, namespace="team", job="train", attempt=1, generation=1_000_001, step=1, world_size=RANKS,
        engine="state", created_at=1.0, ranks=[image for put in puts for image in put.images],
        requirements=hardware.requirements(),
    )  # fmt: skip
    sha256 = store.write_manifest(made)
    for rank in range(RANKS):
        store.end_uploads("team", "train", ID, rank)
    ref = CheckpointRef(
        id=ID, generation=made.generation, attempt=1, step=1, world_size=RANKS, url=store.url, bytes=0, bytes_stored=0,
        created_at=1.0, sha256=sha256, engine="state",
    )  # fmt: skip
    return ref, saved[0]["digest"]


def config_of(root: Path, ref: CheckpointRef, world: int, index: int) -> Config:
    return Config(
        namespace="team", job="train", pod=f"train-{index}", pod_ip="127.0.0.1", index=index, attempt=2, workers=world,
        world_size=world, store=ref.url, controller_url="", controller_ca="", token_file=root, engine="state",
        root=root / f"{world}-{index}",
    )  # fmt: skip


@contextmanager
def pods(root: Path, ref: CheckpointRef, world: int) -> Iterator[tuple[list[Parts], list[ProxyError]]]:
    """As many sidecars, with what their ranks need for sure; and why pods had to end."""
    loop, ended = asyncio.new_event_loop(), list[ProxyError]()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(120)

    async def give_up(error: ProxyError) -> None:
        ended.append(error)

    async def one(config: Config) -> PartsServer:
        config.image_dir.mkdir(parents=True)
        server = PartsServer(config.run_dir, lambda: restore.parts_of(config, ref, None), give_up, poll_s=0.2)
        await server.start()
        plan = await restore.restore_plan(config, "127.0.0.1", ref, server=server)
        assert (plan.mode, plan.checkpoint_id) == ("restore", ref.id)
        return server

    servers = [do(one(config_of(root, ref, world, index))) for index in range(world)]
    try:
        yield [do(server.parts()) for server in servers], ended
    finally:
        for server in servers:
            do(server.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(120)


def whole(ref: CheckpointRef) -> int:
    """Bytes of all packs of the checkpoint."""
    made = Store(ref.url).read_manifest("team", "train", ref.id, ref.sha256)
    return sum(stored.size for stored in {pack for image in made.ranks for pack in image.packs})


def test_of_a_sharded_state_each_rank_fetches_its_part(nursery: Nursery, root: Path) -> None:
    ref, digest = stored(root, "fsdp", nursery)
    state = whole(ref)
    for world, most in ((4, 0.30), (2, 0.56), (3, 0.60)):
        with pods(root, ref, world) as (parts, ended):
            before = [each.bytes_fetched for each in parts]
            found = nursery.run(world, "state_parts_programs:load", root=str(root), kind="fsdp")
            got = [each.bytes_fetched for each in parts]
            assert {each["digest"] for each in found} == {digest}
            assert max(got) <= most * state, (world, got, state)
            assert max(each["read"] for each in found) <= most * state
            if world == RANKS:
                assert got == before, "as many ranks have the same shards: these are fetched while nothing runs yet"
            else:
                assert max(before) < 0.2 * state, "who needs which shard is known to the ranks alone"
            assert not ended


def test_what_every_rank_needs_is_there_before_any_rank_asks(nursery: Nursery, root: Path) -> None:
    ref, digest = stored(root, "ddp", nursery)
    with pods(root, ref, 2) as (parts, _):
        before = [each.bytes_fetched for each in parts]
        assert all(0.99 < each / whole(ref) < 1.03 for each in before)
        found = nursery.run(2, "state_parts_programs:load", root=str(root), kind="ddp")
        assert {each["digest"] for each in found} == {digest}
        assert [each.bytes_fetched for each in parts] == before


def test_damage_that_a_rank_meets_ends_its_pod(nursery: Nursery, root: Path) -> None:
    """The rank itself hears nothing: with an error of its own it would fail the job."""
    ref, _ = stored(root, "fsdp", nursery)
    with pods(root, ref, 2) as (_, ended):
        for path in (root / "store").rglob("packs/**/*"):
            if path.is_file() and path.stat().st_size > 1 << 20:
                path.chmod(0o644)
                with path.open("r+b") as file:
                    file.seek(path.stat().st_size // 2)
                    file.write(b"damage")
        asked = threading.Thread(
            target=lambda: nursery.ask(2, "state_parts_programs:load", root=str(root), kind="fsdp"), daemon=True
        )
        asked.start()
        deadline = threading.Event()
        for _ in range(600):
            if len(ended) == 2 or deadline.wait(0.1):
                break
        assert len(ended) == 2 and all("pack" in str(error) for error in ended), ended
    asked.join(120)
    assert not asked.is_alive(), "without their sidecars the ranks end"
