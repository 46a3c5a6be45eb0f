"""The leader's retention, however late it is, never touches what a checkpoint of its own attempt needs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.protocol.manifest import Manifest
from singularity_proxy.sidecar.leader import Leader
from singularity_proxy.store import Store


async def test_the_retention_of_the_start_meets_the_first_checkpoint_between_its_packs_and_its_manifest(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, kept = threading.Event(), threading.Event()
    retain, write = Leader.retain, Store.write_manifest

    async def late(self: Leader, *args: Any, **options: Any) -> None:
        assert await asyncio.to_thread(stored.wait, 60)
        await retain(self, *args, **options)
        kept.set()

    def after(self: Store, manifest: Manifest, *args: Any) -> str:
        stored.set()
        assert kept.wait(120)
        return write(self, manifest, *args)

    monkeypatch.setattr(Leader, "retain", late)
    monkeypatch.setattr(Store, "write_manifest", after)
    world = await World(folder, controller, workers=2, world_size=2).start()
    await world.stepped(3)
    await controller.command(60)
    await eventually("commit", lambda: controller.commits)
    await world.end()
    ref = controller.commits[0].checkpoint
    store = Store(ref.url)
    assert kept.is_set() and store.verify(store.read_manifest("team", "train", ref.id)) == []
