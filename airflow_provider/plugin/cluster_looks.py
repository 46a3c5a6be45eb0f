"""One look at a cluster at a time, whoever asks: the page of the cluster does not wait for it, nor does the API server.

A look is a few lists of all Workloads and jobs. So open pages share what was seen some seconds ago. When it is older,
one thread looks again, while they go on showing the former report. A large cluster is looked at less often: all looks
together take at most SHARE of the time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from kueue_integration.errors import KubeError, SingularityError
from kueue_integration.kube.client import Kube
from kueue_integration.overview.look import look
from kueue_integration.overview.report import Overview, overview
from singularity_proxy.protocol import decode

from ..exceptions import SingularityProviderError
from ..identity import ANN_TASK, Claim
from .actions import Clients
from .flights import BusyError, Flights

log = logging.getLogger(__name__)

FRESH_S = 4.0
SHARE = 0.1
STALE_S = 60.0
"""A report of before is not shown as if it were of now, unless the cluster does not answer,"""
KEPT_S = 600.0
"""and then for this long."""
LIMIT_S = 15.0
"""A look that takes longer is reported."""


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
    look: Future[None] | None = None
    """The one that is under way, or was last."""


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
        self._flights = Flights(most=1)
        self._places: dict[str, _Place] = {}

    def latest(self, conn_id: str) -> State:
        """What is known now; starts another look if it is time. Neither waits nor raises."""
        with self._lock:
            place = self._places.setdefault(conn_id, _Place())
            over = place.look is None or place.look.done()
            if place.began is None and over and self._clock() >= place.again_at:
                try:
                    place.look = self._flights.start(conn_id, lambda: self._look(conn_id, place))
                    place.began = self._clock()
                except BusyError as error:
                    place.trouble = str(error)
            return self._known(conn_id, place)

    def under_way(self, conn_id: str) -> Future[None] | None:
        """The end of the look that `latest` has started."""
        with self._lock:
            place = self._places.get(conn_id)
            return None if place is None else place.look

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


def _seen(kube: Kube, now: float) -> Seen:
    cluster = look(kube, now, keep=(ANN_TASK,))
    told = {job.uid: Claim.from_dict(decode.json_value(job.kept.get(ANN_TASK))) for job in cluster.trainings or ()}
    return Seen(overview(cluster), {uid: claim for uid, claim in told.items() if claim is not None})


def _sentence(conn_id: str, error: Exception) -> str:
    if isinstance(error, KubeError):
        return f"the cluster of connection {conn_id} does not answer: {error}"
    if isinstance(error, (SingularityError, SingularityProviderError)):
        return f"connection {conn_id}: {error}"
    log.warning("connection %s", conn_id, exc_info=error)
    return f"the api-server cannot use connection {conn_id!r} ({type(error).__name__}: {error})"
