"""`Gpus` of several pods as one, and cut to a size that fits into the Job's history. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from .messages import GpuFault, Gpus, PodGpus

MAX_FAULTS: Final = 6
"""Kinds of Xid by GPU that are kept: the history is an annotation, with many attempts in it."""


MAX_PODS: Final = 6
MAX_XIDS: Final = 8
"""Of one pod."""


def of_pods(reports: Mapping[int, Gpus | None]) -> Gpus | None:
    """`merged` reports of all pods, by their index, with the pods that had something wrong."""
    whole = merged(report for _, report in sorted(reports.items()))
    if whole is None:
        return None
    found = [_trouble(index, report) for index, report in sorted(reports.items()) if report is not None]
    return bounded(replace(whole, pods=[pod for pod in found if pod.xids or pod.ecc_uncorrected or pod.throttled]))


def _trouble(index: int, told: Gpus) -> PodGpus:
    xids = list(dict.fromkeys(fault.xid for fault in told.faults))
    return PodGpus(index, xids, told.ecc_uncorrected or 0, told.throttled or 0.0)


def merged(parts: Iterable[Gpus | None]) -> Gpus | None:
    """Of all pods; None if none has reported. Faults add up, the mean counts each GPU once."""
    told = [part for part in parts if part is not None]
    if not told:
        return None
    busy = [(part.utilisation, part.count) for part in told if part.utilisation is not None]
    slowed = [(part.throttled, part.count) for part in told if part.throttled is not None]
    fullest = max(told, key=lambda part: part.memory_peak)
    return bounded(
        Gpus(
            count=sum(part.count for part in told),
            utilisation=_mean(busy),
            memory_peak=fullest.memory_peak,
            memory_total=fullest.memory_total,
            ecc_corrected=_sum([part.ecc_corrected for part in told]),
            ecc_uncorrected=_sum([part.ecc_uncorrected for part in told]),
            faults=[fault for part in told for fault in part.faults],
            faults_more=sum(part.faults_more for part in told),
            throttled=_mean(slowed),
            pods=[pod for part in told for pod in part.pods],
        )
    )


def bounded(gpus: Gpus) -> Gpus:
    """With MAX_FAULTS kinds at most, one entry for each; the others are counted together."""
    counts: dict[tuple[str, int], int] = {}
    for fault in gpus.faults:
        counts[fault.gpu, fault.xid] = counts.get((fault.gpu, fault.xid), 0) + fault.count
    kept = [GpuFault(gpu, xid, count) for (gpu, xid), count in counts.items()]
    more = sum(fault.count for fault in kept[MAX_FAULTS:])
    pods = [replace(pod, xids=pod.xids[:MAX_XIDS]) for pod in gpus.pods[:MAX_PODS]]
    return replace(gpus, faults=kept[:MAX_FAULTS], faults_more=gpus.faults_more + more, pods=pods)


def events(gpus: Gpus | None) -> int:
    """Xids of all kinds."""
    return 0 if gpus is None else sum(fault.count for fault in gpus.faults) + gpus.faults_more


def _mean(percents: Sequence[tuple[float, int]]) -> float | None:
    """Of (percent, GPUs)."""
    return round(sum(p * n for p, n in percents) / sum(n for _, n in percents), 1) if percents else None


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
