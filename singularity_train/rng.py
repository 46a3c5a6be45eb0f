"""Random numbers without a state to save: each place where some are drawn has a key, and is seeded with it.

A key is made of the job's seed and of what is drawn for: step and virtual rank, or epoch and sample. So dropout and
augmentation depend neither on the number of workers nor on the loader's processes, and a checkpoint holds no
generator. Seeded are Python's `random`, torch on all devices and, where the script has imported it, numpy's global
generator. Generators that the script makes itself belong in `extra`.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator

import torch


def key(*parts: int | str) -> int:
    """63 bits that are the same on every machine and in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed(*parts: int | str, devices: bool = True) -> None:
    """Seed the global generators of this process.

    :param devices: also those of GPUs, which takes longer than the others together
    """
    value = key(*parts)
    random.seed(value)
    if devices:
        torch.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value % 2**32)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """The global generators of the CPU are afterwards as they were before."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), torch.get_rng_state(), None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])
        if numpy is not None:
            numpy.random.set_state(before[2])


def permutation(length: int, *parts: int | str) -> torch.Tensor:
    """A shuffled ``[0, length)``, int64, of which the global generators know nothing."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(key(*parts)))
