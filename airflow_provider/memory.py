"""What a task instance remembers over all its tries: Airflow's task state store, under four keys.

XComs are wiped when a try starts; this is not. `store` is what Airflow puts into the context as `task_state_store`,
None where there is none (`dag.test()`): then nothing is remembered, and nothing fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .identity import Claim

STORE_KEY = "singularity_job"
"""`Claim` of the current Job and the connection it was made with."""
OUTAGE_KEY = "singularity_api_outage_since"
MANIFEST_KEY = "singularity_manifest"
"""The manifests of the current Job as text, for the tab `Rendered Templates` of the run that ends the task."""
PAST_KEY = "singularity_past"
"""List of the lineage documents of the jobs that a later try replaced, oldest first."""
MAX_PAST_BYTES = 48_000


def remember(store: Any, claim: Claim, conn_id: str) -> None:
    """Write down which Job is the current one, before and after it is created."""
    if store is not None:
        store.set(STORE_KEY, {**claim.to_dict(), "conn_id": conn_id})


def add_past(store: Any, lineage: Mapping[str, Any] | None) -> None:
    """Keep what became of a job that is about to be replaced; the newest of two documents about one job stays."""
    if store is None or lineage is None or not lineage.get("attempts"):
        return
    known = store.get(PAST_KEY)
    kept = [entry for entry in known if entry.get("uid") != lineage["uid"]] if isinstance(known, list) else []
    kept.append(dict(lineage))
    while len(kept) > 1 and len(json.dumps(kept)) > MAX_PAST_BYTES:
        kept.pop(0)
    store.set(PAST_KEY, kept)
