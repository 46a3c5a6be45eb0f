"""What went wrong on nodes under training jobs, remembered for a while: pods go away with their job.

A pod that failed tells its node, its exit code and its last words. What NVML has told of the GPUs of a pod stands in
the record of its attempt, by the pod's index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from singularity_proxy.protocol import exit_codes
from singularity_proxy.protocol.messages import LastWords, PodGpus

from ...contract import attempt_records, kinds
from ...contract.record_types import AttemptRecord
from ...jobs import gpu_words
from ...kube import server_time
from ...kube.resources import Object
from ...planner.job import JobKey
from ...planner.model import Symptom
from ..cache import World
from ..forever import Skips
from ..snapshot import Pod, of_attempt

MOST: Final = 5000
"""Symptoms that are remembered, the newest."""
HARDWARE_XIDS: Final = frozenset((48, 62, 64, 74, 79, 92, 94, 95, 119, 120, 140))
"""Errors of the hardware in NVIDIA's list of Xids: memory that could not be corrected, remapped or contained, NVLink,
the bus, the GPU's own processor. The others come from programs, or tell of a repair that worked."""
NOBODYS: Final = (exit_codes.FINISHED, exit_codes.STOPPED, exit_codes.LOST, exit_codes.NOT_RESTORED)
"""Exit codes whose cause is in another place than the pod's node."""

Key = tuple[str, ...]


class Symptoms:
    """Not thread-safe. A restart of the controller forgets those whose pods and records are gone."""

    def __init__(self, world: World, skips: Skips, throttled_percent: float) -> None:
        self._world, self._skips, self._throttled = world, skips, throttled_percent
        self._known: dict[Key, Symptom] = {}
        self._forgiven: dict[str, float] = {}

    def see(self, now: float) -> list[Symptom]:
        """All that are remembered, oldest first."""
        for raw in self._world.all_jobs():
            job = kinds.place(raw)
            with self._skips.over("plan", f"pods of {'/'.join(job)}"):
                pods = [Pod.parse(pod) for pod in self._world.pods_of(*job)]
                self._remember(failures(job, pods, now))
                history = attempt_records.history(raw)
                if history:
                    self._remember(of_gpus(job, str(raw["metadata"]["uid"]), history[-1], pods, now, self._throttled))
        found = sorted(self._known.items(), key=lambda item: item[1].at)[-MOST:]
        self._known = dict(found)
        return [symptom for _, symptom in found if symptom.at > self._forgiven.get(symptom.node, 0.0)]

    def forgive(self, node: str, now: float) -> None:
        """Somebody has looked after the node: what was before does not count."""
        self._forgiven[node] = max(now, self._forgiven.get(node, 0.0))

    def _remember(self, found: Iterable[tuple[Key, Symptom]]) -> None:
        for key, symptom in found:
            self._known.setdefault(key, symptom)


def failures(job: JobKey, pods: Sequence[Pod], now: float) -> list[tuple[Key, Symptom]]:
    """Of pods that have failed by themselves, and were not asked to end. Pure."""
    found: list[tuple[Key, Symptom]] = []
    for pod in pods:
        code = _code(pod.raw)
        if pod.phase != "Failed" or pod.deleting or not pod.node or code is None or code in NOBODYS or _moved(pod.raw):
            continue
        words = pod.end.text if pod.end else exit_codes.of(code).reads
        beside = {str(p.node) for p in pods if p.node and p.attempt == pod.attempt} - {str(pod.node)}
        at, kind = _ended_at(pod.raw, now), _kind(code, pod.end)
        symptom = Symptom(str(pod.node), at, job, pod.attempt or 0, kind, words, frozenset(beside))
        found.append((("pod", str(pod.raw["metadata"].get("uid"))), symptom))
    return found


def _kind(code: int, end: LastWords | None) -> Literal["program", "memory", "machine"]:
    if end is not None and end.cause == "memory":
        return "memory"
    return "machine" if code in (exit_codes.KILLED, exit_codes.PROTOCOL) else "program"


def of_gpus(
    job: JobKey, uid: str, record: AttemptRecord, pods: Sequence[Pod], now: float, throttled_percent: float
) -> list[tuple[Key, Symptom]]:
    """What the hardware of an attempt's pods has reported. Pure."""
    nodes = {pod.index: str(pod.node) for pod in of_attempt(pods, record.attempt) if pod.node}
    found: list[tuple[Key, Symptom]] = []
    for told in record.gpus.pods if record.gpus is not None else ():
        for what in _hardware(told, throttled_percent) if told.index in nodes else ():
            key = (uid, str(record.attempt), str(told.index), what)
            words = what if what != "slow" else f"slowed down by heat or power for {told.throttled:.0f} % of the time"
            found.append((key, Symptom(nodes[told.index], now, job, record.attempt, "gpu", words)))
    return found


def _hardware(told: PodGpus, throttled_percent: float) -> list[str]:
    xids = [x for x in told.xids if x in HARDWARE_XIDS]
    words = [f"Xid {x}" + (f" ({gpu_words.XIDS[x]})" if x in gpu_words.XIDS else "") for x in xids]
    words += ["memory errors that could not be corrected"] if told.ecc_uncorrected else []
    return words + (["slow"] if told.throttled >= throttled_percent else [])


def _ended(pod: Object) -> list[Mapping[str, object]]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return [ended for s in statuses if (ended := (s.get("state") or {}).get("terminated"))]


def _code(pod: Object) -> int | None:
    """Of the first container that ended with an error, as `views.end_of` has it; None: none has ended so."""
    codes = [int(str(ended.get("exitCode") or 0)) for ended in _ended(pod)]
    return next((code for code in codes if code), None)


def _ended_at(pod: Object, now: float) -> float:
    ends = [server_time.parse(str(ended["finishedAt"])) for ended in _ended(pod) if ended.get("finishedAt")]
    return min([*ends, now])


def _moved(pod: Object) -> bool:
    """Kubernetes itself has ended the pod: an eviction, a taint, a preemption by the scheduler."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in conditions)
