"""From a checkpoint reference to images on this pod's disk and a plan for the launcher."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time

from ..errors import RestoreRefusedError
from ..protocol import names
from ..protocol.manifest import Manifest
from ..protocol.messages import CheckpointRef, Plan
from ..store import Store
from . import machine_facts
from .config import Config

log = logging.getLogger(__name__)


def fresh_plan(config: Config, leader_ip: str) -> Plan:
    """Start from the beginning."""
    return Plan("fresh", config.attempt, config.world_size, config.ranks, leader_ip, names.MASTER_PORT)


async def restore_plan(config: Config, leader_ip: str, ref: CheckpointRef) -> Plan:
    """Check the manifest, fetch this pod's images, verified.

    Raises RestoreRefusedError (does not fit), CorruptChunkError (names the object), StoreError.
    """
    store = Store(ref.url)
    manifest = await asyncio.to_thread(store.read_manifest, config.namespace, config.job, ref.id)
    _check_committed(manifest, ref)
    warning = machine_facts.check(manifest, config.world_size, machine_facts.requirements())
    if warning:
        log.warning(warning)
    started = time.monotonic()
    folder = config.image_dir / ref.id
    await asyncio.to_thread(shutil.rmtree, folder, True)
    targets = {rank: folder / f"rank-{rank}" for rank in config.ranks}
    total = await asyncio.to_thread(store.fetch_ranks, manifest, targets)
    log.info("fetched %d bytes of %s in %.1f s", total, ref.id, time.monotonic() - started)
    return Plan(
        mode="restore",
        attempt=config.attempt,
        world_size=config.world_size,
        ranks=config.ranks,
        master_addr=leader_ip,
        master_port=names.MASTER_PORT,
        generation=manifest.generation,
        checkpoint_id=ref.id,
    )


def _check_committed(manifest: Manifest, ref: CheckpointRef) -> None:
    """Ids repeat when two Jobs of one name (two clusters, say) share a store: what was committed counts."""
    found = (manifest.attempt, manifest.generation, manifest.step, manifest.created_at)
    if found != (ref.attempt, ref.generation, ref.step, ref.created_at):
        raise RestoreRefusedError(
            f"checkpoint {ref.id} in {ref.url} is not the one that was committed: it has step {manifest.step}, "
            f"generation {manifest.generation}, made at {manifest.created_at:.3f}; committed was step {ref.step}, "
            f"generation {ref.generation}, made at {ref.created_at:.3f}. Another job of this name writes to the store: "
            "give each cluster a store URL of its own"
        )
