"""`Gpus` of several pods as one, and cut to a size that fits into the Job's history. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from .messages import GpuFault, Gpus

MAX_FAULTS: Final = 6
"""Kinds of Xid by GPU that are kept: the history is an annotation, with many attempts in it."""


def merged(parts: Iterable[Gpus | None]) -> Gpus | None:
    """Of all pods; None if none has reported. Faults add up, the mean counts each GPU once."""
    told = [part for part in parts if part is not None]
    if not told:
        return None
    busy = [(part.utilisation, part.count) for part in told if part.utilisation is not None]
    fullest = max(told, key=lambda part: part.memory_peak)
    return bounded(
        Gpus(
            count=sum(part.count for part in told),
            utilisation=round(sum(u * n for u, n in busy) / sum(n for _, n in busy), 1) if busy else None,
            memory_peak=fullest.memory_peak,
            memory_total=fullest.memory_total,
            ecc_corrected=_sum([part.ecc_corrected for part in told]),
            ecc_uncorrected=_sum([part.ecc_uncorrected for part in told]),
            faults=[fault for part in told for fault in part.faults],
            faults_more=sum(part.faults_more for part in told),
        )
    )


def bounded(gpus: Gpus) -> Gpus:
    """With MAX_FAULTS kinds at most, one entry for each; the others are counted together."""
    counts: dict[tuple[str, int], int] = {}
    for fault in gpus.faults:
        counts[fault.gpu, fault.xid] = counts.get((fault.gpu, fault.xid), 0) + fault.count
    kept = [GpuFault(gpu, xid, count) for (gpu, xid), count in counts.items()]
    more = sum(fault.count for fault in kept[MAX_FAULTS:])
    return replace(gpus, faults=kept[:MAX_FAULTS], faults_more=gpus.faults_more + more)


def events(gpus: Gpus | None) -> int:
    """Xids of all kinds."""
    return 0 if gpus is None else sum(fault.count for fault in gpus.faults) + gpus.faults_more


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
