"""Which attempts run: pods as the API server shows them, gathered by attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kueue_integration.contract import job_names
from kueue_integration.controller.snapshot import Pod
from kueue_integration.kube.resources import Object, label

from .objects import job_of

Key = tuple[int, int]
"""Job, and number of the attempt."""


@dataclass(frozen=True)
class Attempt:
    """All of its pods run.

    :param leader: the pod with index 0, and its `uid` and `ip`
    :param pods: names of all
    """

    job: int
    number: int
    namespace: str
    name: str
    leader: str
    uid: str
    ip: str
    pods: tuple[str, ...]

    @property
    def key(self) -> Key:
        return self.job, self.number

    @property
    def workers(self) -> int:
        return len(self.pods)


class Attempts:
    """What `look` was shown so far."""

    def __init__(self) -> None:
        self._pods: dict[Key, dict[int, Object]] = {}
        self._known: set[Key] = set()

    def look(self, raw: Object) -> Attempt | Key | None:
        """An attempt whose last pod runs now, or the key of one of whose pods ends; None: neither."""
        pod = Pod.parse(raw)
        job = job_of(label(raw, job_names.LABEL_JOB) or "")
        if job is None or pod.attempt is None or pod.index is None:
            return None
        key = job, pod.attempt
        if pod.deleting or not pod.can_write:
            self._pods.pop(key, None)
            self._known.add(key)
            return key
        status = raw.get("status") or {}
        if pod.phase != "Running" or not status.get("podIP") or key in self._known:
            return None
        mine = self._pods.setdefault(key, {})
        mine[pod.index] = raw
        if len(mine) < _workers(raw):
            return None
        self._known.add(key)
        return _attempt(key, self._pods.pop(key))


def _workers(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {})[job_names.ANN_WORKERS])


def _attempt(key: Key, pods: Mapping[int, Object]) -> Attempt:
    meta, names = pods[0]["metadata"], tuple(str(pods[index]["metadata"]["name"]) for index in sorted(pods))
    return Attempt(
        *key,
        namespace=str(meta["namespace"]),
        name=str(label(pods[0], job_names.LABEL_JOB)),
        leader=str(meta["name"]),
        uid=str(meta["uid"]),
        ip=str(pods[0]["status"]["podIP"]),
        pods=names,
    )
