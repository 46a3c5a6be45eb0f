"""Times as Kubernetes writes them (RFC 3339 text) and as this package counts them (Unix seconds)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any


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
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.timestamp()


def transition(condition: Mapping[str, Any] | None) -> float | None:
    """Unix seconds of `lastTransitionTime`, None if there is none."""
    text = (condition or {}).get("lastTransitionTime")
    return parse(str(text)) if text else None


def observed(condition: Mapping[str, Any] | None, now: float) -> float:
    """When `condition` changed, as exactly as can be told.

    Kubernetes cuts the time to whole seconds: it happened in [t, t + 1), and not after we saw it at `now`.
    """
    changed = transition(condition)
    return now if changed is None else max(changed, min(now, changed + 0.999))
