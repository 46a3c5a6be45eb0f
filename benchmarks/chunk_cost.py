"""`python -m benchmarks.chunk_cost`: what each part of an upload costs, in processor seconds per GB, in memory alone.

Nothing is read or written. The two contents are random bytes, which do not compress, and normally distributed float32
numbers, which are like weights. Other digests take part where their packages are installed (`pip install blake3
xxhash`). The best of several turns counts: a busy machine only adds.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import time
from collections.abc import Callable, Mapping

import numpy as np

from singularity_proxy.store import chunking, draft

MIB = 1 << 20
TURNS = 5
_GB = 1e9
Digest = Callable[[memoryview], bytes]


def digests() -> dict[str, Digest]:
    """By name: sha256, and others whose packages are there."""
    found: dict[str, Digest] = {"sha256": lambda data: hashlib.sha256(data).digest()[: chunking.KEY_SIZE]}
    for name, make in (
        ("blake3", lambda module: lambda data: module.blake3(data).digest(length=chunking.KEY_SIZE)),
        ("xxhash", lambda module: lambda data: module.xxh3_128_digest(data)),
    ):
        try:
            found[name] = make(importlib.import_module(name))  # type: ignore[no-untyped-call]
        except ImportError:
            continue
    return found


def costs(content: memoryview, turns: int = TURNS) -> Mapping[str, float]:
    """Processor seconds per GB of each part of an upload of this content."""
    ends = chunking.ends(content, final=True)
    chunks = [content[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    parts: dict[str, Callable[[], object]] = {"cut": lambda: chunking.ends(content, final=True)}
    for name, digest in digests().items():
        parts[f"{name} of each chunk"] = lambda digest=digest: [digest(chunk) for chunk in chunks]  # type: ignore[misc]
        parts[f"{name} of the whole"] = lambda digest=digest: digest(content)  # type: ignore[misc]
    parts["packs"] = lambda: packed(chunks)
    return {name: min(_timed(part) for _ in range(turns)) / len(content) * _GB for name, part in parts.items()}


def packed(chunks: list[memoryview]) -> int:
    """Bytes of the packs of these chunks: blocks are compressed where that is worth it, and get their digest."""
    made, size = draft.Draft(), 0
    for at, chunk in enumerate(chunks, 1):
        made.add([b"k" * chunking.KEY_SIZE], [len(chunk)])[:] = chunk
        if made.full or at == len(chunks):
            size += len(made.build()[1])
            made.clear()
    return size


def contents(size: int) -> dict[str, memoryview]:
    source = np.random.default_rng(1)
    return {
        "random bytes": memoryview(source.bytes(size)),
        "float32, normal": memoryview(source.standard_normal(size // 4, dtype=np.float32).tobytes()),
    }


def _timed(part: Callable[[], object]) -> float:
    began = time.process_time()
    part()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chunk_cost", description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="MiB of each content (default: 64)")
    size = parser.parse_args().mib * MIB
    for name, content in contents(size).items():
        print(f"{name}: {size / MIB:.0f} MiB")
        for part, cost in costs(content).items():
            print(f"  {part:24} {cost:6.3f} s/GB")


if __name__ == "__main__":
    main()
