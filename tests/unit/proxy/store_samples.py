"""What the tests of the store put in, and manifests over it."""

from __future__ import annotations

import os
import random
from functools import lru_cache
from pathlib import Path

from singularity_proxy.protocol.manifest import Manifest, RankImage, Requirements
from singularity_proxy.store import Store, keys, layout

NAMESPACE, JOB = "team", "train"
FOLDER = layout.job_folder(NAMESPACE, JOB)
MIB = 1 << 20


def namespace_keys(folder: Path, *names: str) -> keys.NamespaceKeys:
    """A folder with further keys of these names, as a Secret of the namespace is mounted."""
    folder.mkdir(exist_ok=True)
    for name in names or ("2026-11-27",):
        (folder / name).write_bytes(os.urandom(32))
    return keys.NamespaceKeys(folder)


@lru_cache(32)
def noise(seed: int, size: int) -> bytes:
    """The same bytes for the same seed; does not compress."""
    return random.Random(seed).randbytes(size)


def image(folder: Path, seed: int = 0, size: int = MIB) -> Path:
    """A rank's image directory: pages, zeros, text, an empty file, a folder. Of two seeds they share nothing."""
    folder.mkdir(parents=True)
    pages = noise(seed, size) + bytes(3 * MIB) + b"the same line %d again and again\n" % seed * 20_000
    (folder / "pages-1.img").write_bytes(pages)
    (folder / "core-1.img").write_bytes(b"core%d" % seed * 100)
    (folder / "empty.img").write_bytes(b"")
    (folder / "sub").mkdir()
    (folder / "sub" / "rank.json").write_text(str(seed))
    return folder


def manifest(images: list[RankImage], number: int = 1, job: str = JOB) -> Manifest:
    """Each is dated before the one before it: the nodes that take them have clocks of their own."""
    return Manifest(
        id=f"{job}-a1-g{number}", namespace=NAMESPACE, job=job, attempt=1, generation=1_000_000 + number, step=17,
        world_size=len(images), engine="process", created_at=1000.0 - number, ranks=images,
        requirements=Requirements(architecture="x86_64", cpu_flags_digest=""),
    )  # fmt: skip


def commit(store: Store, folder: Path, number: int = 1) -> Manifest:
    """Put the image in `folder` as rank 0 of checkpoint `number`."""
    put = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g{number}", {0: folder})
    made = manifest(put.images, number)
    store.write_manifest(made)
    return made


def same(one: Path, other: Path) -> bool:
    """Both folders hold the same files."""
    return _content(one) == _content(other)


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
