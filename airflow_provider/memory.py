"""What a task instance remembers over all its tries: Airflow's task state store, under a few keys.

XComs are wiped when a try starts; this is not. `store` is what Airflow puts into the context as `task_state_store`,
None where there is none (`dag.test()`): then nothing is remembered, and nothing fails.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import compat
from .identity import Claim, TaskKey

STORE_KEY = "singularity_job"
"""`Claim` of the current Job and the connection it was made with."""
CLEARED_KEY = "singularity_cleared_try"
"""Number of the latest try that a user cleared while it ran. The scheduler writes it, no task does."""
OUTAGE_KEY = "singularity_api_outage_since"
MANIFEST_KEY = "singularity_manifest"
"""The manifests of the current Job as text, for the tab `Rendered Templates` of the run that ends the task."""
START_KEY = "singularity_start"
"""Which checkpoint the current Job began with, and for which Job that was chosen; stands before that Job does."""
OUTCOME_KEY = "singularity_outcome"
"""The trigger's event that ended the current Job: stands before the Job is deleted."""
RESULT_KEY = "singularity_result"
"""The value that the task returned then; apart from the event, because both can be long."""
PAST_KEY = "singularity_past"
"""List of the lineage documents of the jobs that a later try replaced, oldest first."""
MAX_PAST_BYTES = 48_000


SHOWN_KEYS = (STORE_KEY, PAST_KEY)
"""What servers read."""


class Notes:
    """In place of a task state store that Airflow does not have, or whose values are not in its database: XComs.

    Airflow forgets them when the next try begins. What that one has to know stands on the Jobs in the cluster.
    """

    def __init__(self, ti: Any, own: Any = None) -> None:
        self._ti, self._own = ti, own

    @property
    def lasts(self) -> bool:
        """Whether the next try finds what this one has written."""
        return self._own is not None

    def get(self, key: str) -> Any:
        if self._own is not None:
            return self._own.get(key)
        key_of = TaskKey.of(self._ti)
        return self._ti.xcom_pull(task_ids=key_of.task_id, key=key, map_indexes=key_of.map_index)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        if self._own is not None:
            self._own.set(key, value, retention=retention)
        if self._own is None or key in SHOWN_KEYS:
            self._ti.xcom_push(key=key, value=value)

    def delete(self, key: str) -> None:
        if self._own is not None:
            self._own.delete(key)


def store_of(context: Any) -> Any:
    """Where the task of `context` keeps what servers and its later tries have to know; None in a `dag.test()` that has
    no task state store."""
    own = context.get("task_state_store") if compat.HAS_STORE else None
    if own is None:
        return None if compat.HAS_STORE else Notes(context["ti"])
    return own if compat.store_in_database() else Notes(context["ti"], own)


def lasts(store: Any) -> bool:
    """Whether a later try finds what is written down there."""
    return store is not None and bool(getattr(store, "lasts", True))


def write_down(store: Any, key: str, value: Any) -> None:
    """Write `value` down for as long as there is the Dag run: a training may take longer than what Airflow keeps by
    default (30 days)."""
    store.set(key, value, retention=compat.NEVER_EXPIRE)


class Remembered(NamedTuple):
    """The claim on the current Job, and where it was made: "" for what is unknown."""

    claim: Claim | None
    conn_id: str = ""
    server: str = ""
    """`server_id` of the API server that the connection led to."""


def server_id(url: str) -> str:
    """Tells API servers apart, and no reader of the store where they are."""
    return hashlib.sha256(url.encode()).hexdigest()[:16] if url else ""


def remember(store: Any, claim: Claim, conn_id: str, server_url: str) -> None:
    """Write down which Job is the current one, before and after it is created."""
    if store is not None:
        write_down(store, STORE_KEY, {**claim.to_dict(), "conn_id": conn_id, "server": server_id(server_url)})


def remembered(store: Any, key: TaskKey) -> Remembered:
    """What is known of the current Job of `key`."""
    found = None if store is None else store.get(STORE_KEY)
    claim = Claim.from_dict(found)
    if found is None or claim is None or claim.key != key:
        return Remembered(None)
    where = (found.get(name) for name in ("conn_id", "server"))
    return Remembered(claim, *(word if isinstance(word, str) else "" for word in where))


def cleared_try(store: Any) -> int:
    """The latest try that was cleared while it ran, 0 for none."""
    found = None if store is None else store.get(CLEARED_KEY)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def keep_outcome(store: Any, event: Mapping[str, Any], result: Any) -> None:
    """Write down how a Job ended: a worker that is lost after it has deleted the Job leaves nothing else behind.

    Raises what the store raises.
    """
    if lasts(store):
        write_down(store, RESULT_KEY, {"uid": event["job"]["uid"], "value": compat.serialised(result)})
        write_down(store, OUTCOME_KEY, dict(event))


def outcome(store: Any, uid: str) -> dict[str, Any] | None:
    """The event that ended the Job with this uid, with the task's return value as `result`; None when none is kept."""
    event = None if store is None else store.get(OUTCOME_KEY)
    if not isinstance(event, dict) or not isinstance(event.get("job"), dict) or event["job"].get("uid") != uid:
        return None
    words = [event.get(name) for name in ("status", "message")] + [event["job"].get(n) for n in ("namespace", "name")]
    lineage, result = event.get("lineage"), store.get(RESULT_KEY)
    if not all(isinstance(word, str) for word in words) or not (lineage is None or isinstance(lineage, dict)):
        return None
    if not isinstance(result, dict) or result.get("uid") != uid:
        return None
    try:
        value = compat.deserialised(result.get("value"))
    except Exception:  # spoiled by somebody, or of another version of Airflow
        return None
    return {**event, "lineage": lineage, "result": value}


def add_past(store: Any, lineage: Mapping[str, Any] | None) -> None:
    """Keep what became of a job that is about to be replaced; the newest of two documents about one job stays."""
    if store is None or lineage is None or not lineage.get("attempts"):
        return
    known = store.get(PAST_KEY)
    known = known if isinstance(known, list) else []
    kept = [entry for entry in known if isinstance(entry, dict) and entry.get("uid") != lineage["uid"]]
    kept.append(dict(lineage))
    while len(kept) > 1 and len(json.dumps(kept)) > MAX_PAST_BYTES:
        kept.pop(0)
    write_down(store, PAST_KEY, kept)
