"""A task that has ended for good leaves no Job that runs on with nobody waiting for it.

Operator and trigger delete their Jobs while they run. This module is for the time when neither runs. The worker was
killed with no retry left, or the triggerer was away when a user marked the task.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow.utils.session import create_session

from kueue_integration.kube.resources import Object, is_true

from .. import ending, submission
from ..identity import Claim, TaskKey
from ..memory import CLEARED_KEY
from ..triggers import CLEARED_STATES, USER_STATES
from . import connection, data

log = logging.getLogger(__name__)

GRACE_S = 20.0
"""The trigger of a task that a user has marked deletes the Job and says so in the task log: it comes first."""
TRIES = 30
"""How often a cluster that does not answer is asked, GRACE_S apart,"""
SLOW_S, SLOW_TRIES = 600.0, 144
"""and how often after that, for a day."""


def delete_orphans(dag_id: str, run_id: str) -> int:
    """Delete the unfinished Jobs of the run's tasks that have ended; how many. Raises what the cluster's hook raises.

    A user may safely clear the task at this moment. The Jobs were listed before the state was asked for, and a cleared
    task never takes up a Job from before.
    """
    with create_session() as session:
        claims = data.claims(session, dag_id, run_id)
    deleted, trouble = 0, list[Exception]()
    for key, claim in claims:
        try:
            deleted += _delete_of(key, claim)
        except connection.RefusedError as error:  # asking again would not change it
            log.warning("Jobs that %s may have left were not looked for: %s", key, error)
        except Exception as error:  # what is wrong with the cluster of one task is not with those of the others
            trouble.append(error)
    if trouble:
        raise trouble[0]
    return deleted


def _delete_of(key: TaskKey, claim: Mapping[str, Any]) -> int:
    with create_session() as session:
        conn_id = connection.of(session, key, claim["conn_id"])
    kube, _ = connection.connect(conn_id)
    owned = submission.owned_jobs(kube, claim["namespace"], key, {claim.get("deployment", "")})
    alive = [job for job in owned if not _over(job) and not getattr(Claim.of_job(job), "detached", False)]
    deleted = 0
    for job in _unwanted(key, alive) if alive else []:
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        became = ending.give_up(kube, claim["namespace"], name, uid)
        if became:
            deleted += 1
            log.warning("%s: nobody waits for Job %s/%s: %s", key, claim["namespace"], name, became)
    return deleted


def _unwanted(key: TaskKey, alive: list[Object]) -> list[Object]:
    """Those that the task does not wait for: all, if it has ended; the ones of before, if it was cleared and its next
    try has not started, which may be never."""
    with create_session() as session:
        state, now = data.state(session, key), data.current_try(session, key)
        cleared = data.stored(session, key, CLEARED_KEY)
    if state in USER_STATES:
        return alive
    if now is None or state not in CLEARED_STATES:
        return []
    now = replace(now, cleared_try=cleared if isinstance(cleared, int) else 0)
    return [job for job in alive if (made := Claim.of_job(job)) is not None and now.cleared_since(made.made_by)]


def _over(job: Object) -> bool:
    return is_true(job, "Complete") or is_true(job, "Failed") or bool(job["metadata"].get("deletionTimestamp"))


class Sweeper:
    """Looks after a run some time after it heard of it, in a thread that lives while there is something to do."""

    def __init__(
        self,
        look: Callable[[str, str], object] = delete_orphans,
        grace_s: float = GRACE_S,
        tries: int = TRIES,
        slow_s: float = SLOW_S,
        slow_tries: int = SLOW_TRIES,
    ) -> None:
        self._look, self._grace_s, self._slow_s = look, grace_s, slow_s
        self._slow_tries, self._tries = slow_tries, tries + slow_tries
        self._lock = threading.Lock()
        self._due: dict[tuple[str, str], tuple[float, int]] = {}
        """Run -> when to look, and how many tries are left."""
        self._thread: threading.Thread | None = None

    def later(self, dag_id: str, run_id: str) -> None:
        """Returns at once. To hear of a run again starts its delay again."""
        self._put(dag_id, run_id, self._tries)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # not alive in a forked process either
                self._thread = threading.Thread(target=self._work, name="singularity-orphans", daemon=True)
                self._thread.start()

    def _put(self, dag_id: str, run_id: str, tries: int) -> None:
        with self._lock:
            self._due.pop((dag_id, run_id), None)
            wait = self._grace_s if tries > self._slow_tries else self._slow_s
            self._due[dag_id, run_id] = (time.monotonic() + wait, tries)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._thread = None
                    return
                (dag_id, run_id), (due, tries) = min(self._due.items(), key=lambda each: each[1][0])
                wait = min(due - time.monotonic(), self._grace_s)  # one that is due before may come meanwhile
                if wait <= 0:
                    del self._due[dag_id, run_id]
            if wait > 0:
                time.sleep(wait)
                continue
            try:
                self._look(dag_id, run_id)
            except Exception as error:  # whatever the connection's provider likes to raise
                what = f"{type(error).__name__}: {error}"
                log.warning("Jobs that run %s of %s may have left were not looked for: %s", run_id, dag_id, what)
                if tries > 1:
                    self._put(dag_id, run_id, tries - 1)


sweeper = Sweeper()
