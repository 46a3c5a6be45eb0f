"""The scheduler looks round once a minute for what no listener tells of: a deferred task that a user has cleared.

Its trigger ends the Job, but where no triggerer runs nobody does, and the next try may start late or never. A scheduler
that starts also looks after tasks that ended shortly before: what it had still to do for them died with the one before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.utils.session import create_session

from . import data, orphans

log = logging.getLogger(__name__)

EVERY_S = 60.0
"""Longer than `orphans.GRACE_S`: to hear of a run again starts its delay again."""
BEFORE_START = timedelta(hours=1)
SCHEDULER = "SchedulerJob"
"""What Airflow calls the process in its table of schedulers, triggerers and dag-processors."""


def look(since: datetime | None, tell: Callable[[str, str], object]) -> None:
    """Tell of every Dag run with a task that was cleared since its Job was made, or that has ended after `since`."""
    with create_session() as session:
        runs = data.runs_of_cleared(session)
        if since is not None:
            runs |= data.runs_of_ended(session, since)
    for dag_id, run_id in sorted(runs):
        tell(dag_id, run_id)


def start(
    component: Any, every_s: float = EVERY_S, tell: Callable[[str, str], object] | None = None
) -> threading.Event:
    """Look round for as long as this process lives, if `component`, its row of Airflow's table, is a scheduler's.

    It does not say yet what it is, and is asked after the first pause. Returns what ends it.
    """
    over = threading.Event()
    told = tell or orphans.sweeper.later

    def work() -> None:
        since: datetime | None = datetime.now(UTC) - BEFORE_START
        while not over.wait(every_s):
            if getattr(component, "job_type", None) != SCHEDULER:
                return
            try:
                look(since, told)
                since = None
            except Exception as error:  # whatever the database says: the next look may work
                log.warning("Cleared tasks were not looked for: %s: %s", type(error).__name__, error)

    threading.Thread(target=work, name=f"singularity-patrol-{id(over)}", daemon=True).start()
    return over
