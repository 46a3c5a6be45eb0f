"""One look at a cluster at a time, whoever asks: the page of the cluster never waits long, nor does the API server.

A look is a few lists of all Workloads and jobs. So open pages share what was seen some seconds ago. When it is older,
one thread looks again, while they go on showing the former report. A large cluster is looked at less often: all looks
together take at most SHARE of the time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kueue_integration.errors import KubeError, SingularityError
from kueue_integration.kube.client import Kube
from kueue_integration.overview.look import look
from kueue_integration.overview.report import Overview, overview
from proxy.protocol import decode

from ..exceptions import SingularityProviderError
from ..identity import ANN_TASK, Claim

log = logging.getLogger(__name__)

FRESH_S = 4.0
SHARE = 0.1
FIRST_WAIT_S = 1.0
"""Who has nothing to show yet waits this long, and then asks again."""
STALE_S = 60.0
"""A report of before is not shown as if it were of now, unless the cluster does not answer,"""
KEPT_S = 600.0
"""and then for this long."""
LIMIT_S = 15.0
"""A look that takes longer is reported."""


class Clients(Protocol):
    """`actions.Clusters`."""

    def kube(self, conn_id: str) -> Kube: ...

    def forget(self, conn_id: str) -> None: ...


@dataclass(frozen=True)
class Seen:
    """A report, and the task instance of each training job by the job's UID, as the Job itself says."""

    report: Overview
    tasks: Mapping[str, Claim]


@dataclass(frozen=True)
class State:
    """What is known of a cluster. Neither `seen` nor `trouble`: it is being asked for the first time."""

    seen: Seen | None
    trouble: str | None
    """A sentence, if the last look failed or takes long; `seen` is of before then."""


@dataclass
class _Place:
    """One connection. `began` is None while nobody looks; times are those of a monotonic clock."""

    seen: Seen | None = None
    seen_at: float = 0.0
    trouble: str | None = None
    began: float | None = None
    again_at: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)


class Looks:
    """For several threads."""

    def __init__(
        self,
        clients: Clients,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: a monotonic one. `now`: Unix seconds."""
        self._clients, self._clock, self._now = clients, clock, now
        self._lock = threading.Lock()
        self._places: dict[str, _Place] = {}

    def latest(self, conn_id: str) -> State:
        """What is known now; starts another look if it is time. Returns within FIRST_WAIT_S; never raises."""
        with self._lock:
            place = self._places.setdefault(conn_id, _Place())
            if place.began is None and self._clock() >= place.again_at:
                place.began = self._clock()
                place.done.clear()
                threading.Thread(
                    target=self._look, args=(conn_id, place), name="singularity-cluster", daemon=True
                ).start()
            known = self._known(conn_id, place)
        if known.seen is None and known.trouble is None:
            place.done.wait(FIRST_WAIT_S)
            with self._lock:
                known = self._known(conn_id, place)
        return known

    def _known(self, conn_id: str, place: _Place) -> State:
        now = self._clock()
        trouble, age = place.trouble, now - place.seen_at
        if place.began is not None and now - place.began > LIMIT_S:
            trouble = f"the cluster of connection {conn_id} has not answered for {now - place.began:.0f} s"
        shown = place.seen if age <= (STALE_S if trouble is None else KEPT_S) else None
        return State(shown, trouble)

    def _look(self, conn_id: str, place: _Place) -> None:
        began = self._clock()
        seen, trouble = None, None
        try:
            seen = _seen(self._clients.kube(conn_id), self._now())
        except Exception as error:  # a connection that is missing or broken raises whatever its provider likes
            trouble = _sentence(conn_id, error)
            self._clients.forget(conn_id)
        with self._lock:
            now = self._clock()
            if seen is not None:
                place.seen, place.seen_at = seen, now
            place.trouble, place.began = trouble, None
            place.again_at = now + max(FRESH_S, (now - began) / SHARE)
            place.done.set()


def _seen(kube: Kube, now: float) -> Seen:
    cluster = look(kube, now, keep=(ANN_TASK,))
    told = {
        job.uid: Claim.from_dict(decode.json_value(job.annotations.get(ANN_TASK))) for job in cluster.trainings or ()
    }
    return Seen(overview(cluster), {uid: claim for uid, claim in told.items() if claim is not None})


def _sentence(conn_id: str, error: Exception) -> str:
    if isinstance(error, KubeError):
        return f"the cluster of connection {conn_id} does not answer: {error}"
    if isinstance(error, (SingularityError, SingularityProviderError)):
        return f"connection {conn_id}: {error}"
    log.warning("connection %s", conn_id, exc_info=error)
    return f"the api-server cannot use connection {conn_id!r} ({type(error).__name__}: {error})"
