"""The list of all training runs, for the price of what has changed since somebody looked last.

A document is read once per process, also of a job that lives: its line changes with the time, what it is made of does
not. And an open page asks every few seconds: `version` tells whether there is anything new before any document is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from singularity_proxy.protocol import decode

from .. import VERSION, compat
from ..lineage import facts, line
from .data import as_text, decoded

MAX_RUNS = 1000
MAX_KEPT = 10_000
"""Lines that are remembered, about 1 KB each; of a job that lives also what is known of its attempts."""
CHUNK = 200
"""Documents in one query."""
MINUTE_S = 60.0
ENDED = frozenset(("success", "failed", "skipped", "removed", "upstream_failed"))


Facts = dict[str, Any] | decode.Unreadable
log = logging.getLogger(__name__)


class Listed(NamedTuple):
    """A training task instance: where its document is, and which of its states it is of."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    dag_run_id: int
    written: str
    state: str | None

    @property
    def place(self) -> tuple[int, str, int]:
        """What finds its document."""
        return self.dag_run_id, self.task_id, self.map_index


def listed(session: Session, dag_ids: Collection[str], dag_id: str | None, limit: int) -> list[Listed]:
    """The training task instances of `dag_ids`, or of the one `dag_id` among them, newest first."""
    query = (
        select(
            XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.map_index, XComModel.dag_run_id,
            XComModel.timestamp, TaskInstance.state,
        )
        .join(
            TaskInstance,
            (TaskInstance.dag_id == XComModel.dag_id)
            & (TaskInstance.run_id == XComModel.run_id)
            & (TaskInstance.task_id == XComModel.task_id)
            & (compat.map_index_column(TaskInstance) == XComModel.map_index),
        )
        .join(DagRun, DagRun.id == XComModel.dag_run_id)
        .where(XComModel.key == "lineage", XComModel.dag_id.in_(dag_ids))
        .order_by(DagRun.run_after.desc(), XComModel.timestamp.desc())
        .limit(min(limit, MAX_RUNS))
    )  # fmt: skip
    if dag_id is not None:
        query = query.where(XComModel.dag_id == dag_id)
    return [Listed(*row[:5], row[5].isoformat(), row[6]) for row in session.execute(query)]


def dags(session: Session, dag_ids: Collection[str], dag_id: str | None = None) -> list[str]:
    """Those of `dag_ids`, or the one `dag_id` among them, that have training task instances."""
    query = select(XComModel.dag_id).distinct().where(XComModel.key == "lineage", XComModel.dag_id.in_(dag_ids))
    return list(session.scalars(query if dag_id is None else query.where(XComModel.dag_id == dag_id)))


def version(rows: Iterable[Listed], now: float) -> str:
    """Another text whenever the list may look different. The goodput of a job that lives changes by the minute."""
    rows = list(rows)
    alive = any(row.state not in ENDED for row in rows)
    text = json.dumps([VERSION, int(now // MINUTE_S) if alive else None, rows])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Lines:
    """`lineage.condensed` of documents, each of which is read once. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        """Who reads: whoever comes meanwhile finds what has been read."""
        self._kept: dict[tuple[int, str, int], tuple[str, Facts]] = {}
        """By place: when the document was written, and what it says."""

    def of(self, session: Session, rows: Sequence[Listed]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """One entry for each of `rows`: the line, and where it belongs; and those whose document cannot be read, with
        the reason as `why`."""
        with self._reading:
            known = self._known(rows)
            fresh = list(self._read(session, [row for row in rows if row.place not in known]))
            with self._lock:
                if len(self._kept) + len(fresh) > MAX_KEPT:
                    self._kept.clear()
                self._kept |= {row.place: (row.written, found) for row, found in fresh}
        known |= {row.place: found for row, found in fresh}
        for row, found in fresh:
            if isinstance(found, decode.Unreadable):
                log.warning("XCom lineage of %s is left out: %s", row[:4], found.why)
        lines, unreadable, now = [], [], time.time()
        for row in rows:
            seen = known.get(row.place)  # None: deleted meanwhile
            place = {**dict(zip(("dag_id", "run_id", "task_id", "map_index"), row, strict=False)), "state": row.state}
            if isinstance(seen, decode.Unreadable):
                unreadable.append({**place, "why": seen.why})
            elif seen is not None:
                lines.append({**line(seen, now), **place})
        return lines, unreadable

    def _known(self, rows: Sequence[Listed]) -> dict[tuple[int, str, int], Facts]:
        with self._lock:
            kept = ((row, self._kept.get(row.place)) for row in rows)
            return {row.place: each[1] for row, each in kept if each is not None and each[0] == row.written}

    def _read(self, session: Session, rows: Sequence[Listed]) -> Iterable[tuple[Listed, Facts]]:
        """Rows with what their documents say. One that was written anew meanwhile stands under the time it has now."""
        place = tuple_(XComModel.dag_run_id, XComModel.task_id, XComModel.map_index)
        wanted = {row.place: row for row in rows}
        for start in range(0, len(wanted), CHUNK):
            some = list(wanted)[start : start + CHUNK]
            query = select(
                XComModel.dag_run_id,
                XComModel.task_id,
                XComModel.map_index,
                XComModel.timestamp,
                as_text(XComModel.value).label("value"),
            ).where(XComModel.key == "lineage", place.in_(some))
            for found in session.execute(query):
                row = wanted[found[0], found[1], found[2]]
                yield row._replace(written=found.timestamp.isoformat()), facts(decoded(found.value))
