"""From a checkpoint reference to images on this pod's disk and a plan for the launcher."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence

from ..errors import DamageError, ProxyError, RestoreRefusedError, StoreError
from ..protocol import image_room, names
from ..protocol.manifest import Manifest, RankImage
from ..protocol.messages import RESTORES, CheckpointRef, Damage, DamageReport, HelloReply, Origin, Plan, Through
from ..store import NamespaceKeys, Parts, Store
from . import hardware, state_parts
from .config import Config
from .state_parts import PartsServer

log = logging.getLogger(__name__)
Agree = Callable[[Through, str], Awaitable[Through]]
"""`Pod.agree`."""
Meet = Callable[[Sequence[int]], Awaitable[str]]
"""`Pod.meeting_place`."""


def store_of(config: Config) -> Store:
    """The job's store, with the namespace's keys. Raises StoreError."""
    return Store(config.store, keys=NamespaceKeys(config.store_keys) if config.store_keys else None)


def fresh_plan(config: Config, leader_ip: str, outputs: bool = False) -> Plan:
    """Start from the beginning."""
    place = leader_ip, names.MASTER_PORT
    return Plan("fresh", config.attempt, config.world_size, config.ranks, *place, outputs=outputs)


def maker(config: Config, origin: Origin | None, checkpoint: str) -> str:
    """The job in whose folder `checkpoint` lies: this one, or the one that it was forked from."""
    return origin.job if origin is not None and origin.checkpoint == checkpoint else config.job


def own(config: Config, reply: HelloReply) -> list[tuple[str, str]]:
    """Id and digest of the committed checkpoints that lie in the job's own folder, newest first."""
    return [(ref.id, ref.sha256) for ref in reply.committed if maker(config, reply.origin, ref.id) == config.job]


def parts_of(config: Config, ref: CheckpointRef, origin: Origin | None) -> Parts:
    """State engine: the checkpoint, to be fetched in parts. Raises ProxyError. Not for the event loop."""
    _check_url(config, ref)
    store = store_of(config)
    manifest = store.read_manifest(config.namespace, maker(config, origin, ref.id), ref.id, ref.sha256)
    folder = config.image_dir / names.STATE_FROM
    return store.parts(
        manifest, folder, state_parts.is_part, lambda: image_room.of(config.image_dir, config.image_room)
    )


async def restore_plan(
    config: Config,
    leader_ip: str,
    ref: CheckpointRef,
    origin: Origin | None = None,
    agree: Agree | None = None,
    server: PartsServer | None = None,
    meet: Meet | None = None,
    outputs: bool = False,
) -> Plan:
    """Check the manifest, fetch the images that this pod needs, verified.

    :param agree: what all pods go on from, if this one can go on from that; None: what this one can
    :param meet: where ranks meet without those that have ended; None: at the leader's
    :param server: state engine: takes what ranks ask for, so that only what all of them need is fetched here

    Raises RestoreRefusedError (does not fit, also into the limit of the images' volume), DamageError (names the
    object), StoreError. MeshError: the others have not said what they can.
    """
    _check_url(config, ref)
    store = store_of(config)
    job = maker(config, origin, ref.id)
    manifest = await asyncio.to_thread(store.read_manifest, config.namespace, job, ref.id, ref.sha256)
    through, why = hardware.through(manifest, config.engine, config.world_size, hardware.requirements())
    if why:
        log.warning(why)
    both = manifest.engine == config.engine == names.ENGINE_BOTH
    if both and through == "process" and len(ref.failed) == RESTORES - 1:
        through, why = "state", f"{len(ref.failed)} restores of its processes have failed"
    if agree is not None and both:
        own, through = through, await agree(through, why)
        why = why or ("the node of another pod cannot take the processes" if through != own else "")
        log.info("%s: ranks go on from the %s", ref.id, "processes" if through == "process" else f"state: {why}")
    started = time.monotonic()
    ended = [image.rank for image in manifest.ranks if _has_ended(image)] if through == "process" else []
    plan = Plan(
        mode="restore",
        attempt=config.attempt,
        world_size=config.world_size,
        ranks=config.ranks,
        master_addr=leader_ip if meet is None else await meet(ended),
        master_port=names.MASTER_PORT,
        ended=ended,
        generation=manifest.generation,
        checkpoint_id=ref.id,
        through=through,
        why=why if through == "state" else "",
        outputs=outputs,
    )
    if server is not None and await _fetched_ahead(config, manifest, server):
        if outputs:
            await asyncio.to_thread(_fetch_outputs, config, store, manifest)
        log.info("fetched what all ranks need of %s in %.1f s", ref.id, time.monotonic() - started)
        return plan
    folder = config.image_dir / ref.id
    await asyncio.to_thread(shutil.rmtree, folder, True)
    # Of the state engine, a rank may need what any rank has saved.
    ranks = range(manifest.world_size) if through == "state" else config.ranks
    targets = {rank: folder / f"rank-{rank}" for rank in ranks}
    try:
        folder.mkdir(parents=True)
        room = image_room.of(config.image_dir, config.image_room)
        part = _part(manifest.engine, through)
        total = await asyncio.to_thread(store.fetch_ranks, manifest, targets, room=room, wanted=part)
    except ProxyError:
        await asyncio.to_thread(shutil.rmtree, folder, True)  # a part of a checkpoint is for nobody
        raise
    log.info("fetched %d bytes of %s in %.1f s", total, ref.id, time.monotonic() - started)
    return plan


async def _fetched_ahead(config: Config, manifest: Manifest, server: PartsServer) -> bool:
    """Fetch what the ranks of this pod need for sure. False: these images are none of `singularity_train`.

    Raises as `restore_plan` does.
    """
    parts = await server.parts()
    folder = config.image_dir / names.STATE_FROM
    paths = parts.paths()
    await asyncio.to_thread(parts.fetch_files, [p for p in paths if p.startswith(f"{names.STATE_CHECKPOINTS}/")])
    text = await asyncio.to_thread(state_parts.manifest_of, folder, paths)
    if not text:
        return False
    await asyncio.to_thread((folder / names.STATE_BLOBS).mkdir, parents=True, exist_ok=True)
    needed = state_parts.ahead(parts, text, config.ranks, config.world_size, manifest.world_size)
    await asyncio.to_thread(parts.fetch_files, needed)
    log.info("%d of %d files are needed for sure: %d bytes", len(needed), len(paths), parts.bytes_fetched)
    return True


def _fetch_outputs(config: Config, store: Store, manifest: Manifest) -> None:
    """What the ranks of this pod take over of `$OUTPUTS`, as the launcher divides it. Raises ProxyError."""
    folder = config.image_dir / names.OUTPUTS_FROM
    shutil.rmtree(folder, ignore_errors=True)
    having = [image.rank for image in manifest.ranks if names.OUTPUTS_TAR in (file.path for file in image.files)]
    targets = {rank: folder / f"rank-{rank}" for rank in having if rank % config.world_size in config.ranks}
    if targets:
        room = image_room.of(config.image_dir, config.image_room)
        store.fetch_ranks(manifest, targets, room=room, wanted=lambda path: path == names.OUTPUTS_TAR)


def _has_ended(image: RankImage) -> bool:
    """The rank had ended when the others were saved: nothing of it is left but that, and its outputs."""
    return names.ENDED_FILE in (file.path for file in image.files)


def _part(engine: str, through: Through) -> Callable[[str], bool]:
    """Which files of a rank's image are fetched, by path."""
    if engine != names.ENGINE_BOTH:
        return lambda path: True
    return lambda path: path.startswith(f"{names.STATE_PART}/") == (through == "state")


def failed(config: Config, ref: CheckpointRef, why: str, passes: bool = False) -> DamageReport:
    """The report for the controller about a checkpoint that is whole, and was not restored in this pod."""
    return DamageReport(config.namespace, config.job, config.attempt, [Damage(ref.id, why, True, passes)])


async def damage(config: Config, ref: CheckpointRef, error: DamageError, reply: HelloReply) -> tuple[DamageReport, str]:
    """The report for the controller, and a sentence about what comes next. Of older checkpoints only the manifests are
    read.

    The controller chooses in the same way, so that all pods of the next attempt restore the same one.
    """
    found = [Damage(ref.id, str(error))]
    store = store_of(config)
    after = "training begins anew: no older checkpoint is left"
    for older in (r for r in reply.committed if r.generation < ref.generation and not r.passed_over):
        try:
            job = maker(config, reply.origin, older.id)
            await asyncio.to_thread(store.read_manifest, config.namespace, job, older.id, older.sha256)
        except DamageError as problem:
            found.append(Damage(older.id, str(problem)))
            continue
        except StoreError as problem:
            log.warning("whether checkpoint %s is there is left to the next attempt: %s", older.id, problem)
        after = f"next is checkpoint {older.id} (step {older.step})"
        break
    return DamageReport(config.namespace, config.job, config.attempt, found), after


def _check_url(config: Config, ref: CheckpointRef) -> None:
    """The reference is an annotation. It must not lead this sidecar to any place outside its job's store."""
    if ref.url.rstrip("/") != config.store.rstrip("/"):
        raise RestoreRefusedError(
            f"annotation {names.ANN_CHECKPOINT}, field url = {ref.url!r}: the job's store is {config.store!r}, and "
            "nothing is restored from another one. Put that URL back"
        )
