"""Times as Kubernetes writes them (RFC 3339 text) and as this package counts them (Unix seconds)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from singularity_proxy.protocol import decode
from singularity_proxy.protocol.decode import Unreadable

log = logging.getLogger(__name__)

TOLERATED_S = 2.0
"""Smaller differences between clocks are neither measured well enough nor do they matter."""


class ServerClock:
    """The API server's time, read from what it writes on our own Lease: the hold policy compares with that clock.

    Thread-safe: one writer, and a float is read at once.
    """

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self._local = local
        self.offset = 0.0
        """Seconds that the API server is ahead of this machine; 0 while they agree within TOLERATED_S."""

    def now(self) -> float:
        """Unix seconds."""
        return self._local() + self.offset

    def local(self) -> float:
        return self._local()

    def learn(self, written: Mapping[str, Any], before: float, after: float) -> None:
        """`written` is what the API server answered to a change that was made between `before` and `after`."""
        times = [m["time"] for m in (written.get("metadata") or {}).get("managedFields") or () if m.get("time")]
        if not times:
            return
        stamp = parse(str(max(times)))  # cut to a whole second: it was made in [stamp, stamp + 1)
        least, most = stamp - after, stamp + 1 - before
        offset = (least + most) / 2 if least > TOLERATED_S or most < -TOLERATED_S else 0.0
        if abs(offset - self.offset) > TOLERATED_S:
            log.warning("this machine's clock differs from the API server's by %.0f s: going by the latter", offset)
            self.offset = offset


def to_text(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(round(seconds, 3), tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_micro(seconds: float) -> str:
    """RFC 3339 in UTC with exactly six digits: the MicroTime of a Lease."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def to_whole(seconds: float) -> str:
    """RFC 3339 in UTC without a fraction: metav1.Time, as conditions have it."""
    return datetime.fromtimestamp(int(seconds), tz=timezone.utc).isoformat().replace("+00:00", "Z")


def parse(text: str) -> float:
    """Unix seconds of an RFC 3339 time. Raises ValueError."""
    found = decode.moment(text)
    if isinstance(found, Unreadable):
        raise ValueError(f"{text[:40]!r} is {found.why}")
    return found


def transition(condition: Mapping[str, Any] | None) -> float | None:
    """Unix seconds of `lastTransitionTime`, None if there is none."""
    text = (condition or {}).get("lastTransitionTime")
    return parse(str(text)) if text else None


def observed(condition: Mapping[str, Any] | None, now: float) -> float:
    """When `condition` changed, as exactly as it is known.

    Kubernetes cuts the time to whole seconds: it happened in [t, t + 1), and not after we saw it at `now`.
    """
    changed = transition(condition)
    return now if changed is None else max(changed, min(now, changed + 0.999))
