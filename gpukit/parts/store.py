"""Images of two replicas in the store: how much of them is kept once, and how fast they go there and come back."""

from __future__ import annotations

import filecmp
import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from singularity_proxy.protocol.manifest import Manifest, RankImage, Requirements

from ..job import Job
from ..kit import Kit, Result, SkipPartError

if TYPE_CHECKING:
    from singularity_proxy.store import Store

NAMESPACE, JOB = "kit", "kit"
CHECKPOINT = f"{JOB}-a1-g1"


def run(kit: Kit, result: Result) -> None:
    try:
        from singularity_proxy.store import Store  # needs packages that not every machine has
    except ImportError as error:
        raise SkipPartError(f"the store's packages are not here: {error}") from None
    steps, width = kit.pick((100000, 4096), (100000, 16))
    ways = ["driver"] if kit.fake or not kit.driver().lends() else ["driver", "own"]
    for way in ways:
        env = {"SINGULARITY_DEVICE_COPIES": way, "CUDA_VISIBLE_DEVICES": "0"}
        with Job(kit, way, "world.py", (steps, width, "ddp"), [[0, 1]], env) as running:
            running.stop(5)
            images = {rank: running.pods[0].image(running.checkpoint, rank) for rank in (0, 1)}
            whole = sum(_size(folder) for folder in images.values())
            place = kit.folder / f"store-{way}"
            store = Store(f"file://{place}")
            began = time.monotonic()
            put = store.put_ranks(NAMESPACE, JOB, CHECKPOINT, images)
            took = time.monotonic() - began
            kept = _size(place)
            result.check(
                f"{way}: what is in the store is less than the images", kept < whole, f"{kept} of {whole} bytes"
            )
            result.figure(f"{way}: images of both, GB", whole / 1e9)
            result.figure(f"{way}: bytes in the store of those of the images", kept / whole)
            if not kit.fake:
                result.figure(f"{way}: to the store, GB/s of images", whole / 1e9 / took)
                _device_part(result, way, images)
            _back(kit, result, store, put.images, images, way)
    result.sentence = f"copies of {' and '.join(ways)}"


def _back(kit: Kit, result: Result, store: Store, ranks: list[RankImage], images: dict[int, Path], way: str) -> None:
    made = Manifest(
        id=CHECKPOINT, namespace=NAMESPACE, job=JOB, attempt=1, generation=1_000_001, step=5, world_size=len(images),
        engine="process", created_at=time.time(), ranks=ranks,
        requirements=Requirements(architecture="x86_64", cpu_flags_digest=""),
    )  # fmt: skip
    targets = {rank: kit.folder / f"back-{way}-{rank}" for rank in images}
    began = time.monotonic()
    size = store.fetch_ranks(made, targets)
    took = time.monotonic() - began
    alike = all(
        filecmp.cmp(path, targets[rank] / path.relative_to(folder), shallow=False)
        for rank, folder in images.items()
        for path in folder.rglob("*")
        if path.is_file()
    )
    result.check(f"{way}: what comes back is what went there", alike)
    if not kit.fake:
        result.figure(f"{way}: from the store, GB/s", size / 1e9 / took)
    for folder in targets.values():
        shutil.rmtree(folder)


def _device_part(result: Result, way: str, images: dict[int, Path]) -> None:
    """How much of the largest file of one replica is in that of the other, by blocks of 4 KiB."""
    largest = {rank: max(folder.rglob("*"), key=lambda path: path.stat().st_size) for rank, folder in images.items()}
    mine, theirs = (set(_blocks(path)) for path in largest.values())
    result.figure(
        f"{way}: blocks of the largest file that the other replica has", len(mine & theirs) / max(1, len(mine))
    )


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(4096):
            yield hashlib.blake2b(block, digest_size=12).digest()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
