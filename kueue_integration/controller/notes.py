"""The newest progress of each running job, in memory; and its way into the small objects that others read.

Pods tell progress every few seconds. What they say is kept here at once, and a few threads write it out, the newest of
each job. Nothing of it is needed to act: after a restart the pods say it again, and the objects have it meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from ..contract import attempt_records, progress_objects
from ..contract.attempt_records import ProgressNote
from ..errors import AlreadyExists, KubeError, NotFound
from ..kube.api import Kube
from ..kube.resources import PROGRESS, Object
from .forever import backoff_s, forever
from .work_queue import WorkQueue

log = logging.getLogger(__name__)

WRITERS = 4
EVERY_S = 2.0
"""Seconds between two notes of a job, while jobs are few."""
SLOWEST_S = 8.0
PER_S = 50.0
"""Notes a second of all jobs together, up to SLOWEST_S."""
MOST_PER_S = 250.0
"""And beyond it: what a controller can do beside its work."""
SILENT_S = 60.0
"""A job that has said nothing for so long does not count among those that run."""


def pace_s(jobs: int) -> float:
    """Seconds between two notes of a job where so many jobs run. Pure."""
    return max(EVERY_S, min(SLOWEST_S, jobs / PER_S), jobs / MOST_PER_S)


@dataclass
class _Held:
    """What is known of one job. `job` is what its object is made of."""

    text: str
    note: ProgressNote
    job: Object | None = None
    heard_at: float = float("-inf")
    """Monotonic seconds; of an object that another replica writes, when it came."""
    written: str = ""
    written_at: float = float("-inf")
    shown: tuple[Object, Object] | None = None
    """A Job, and the same with this note."""


class Notes:
    """Thread-safe. Notes of a job are told apart by its UID."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._queue: WorkQueue[str] = WorkQueue()
        self._failures: dict[str, int] = {}
        self._pace = (float("-inf"), EVERY_S)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"notes-{number}", daemon=True) for number in range(WRITERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """What is not written yet is written first: the next controller knows no more than these objects."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=5)

    # --- what is known --------------------------------------------------------------------------------------------
    def over(self, job: Object) -> Object:
        """`job` with the newest progress that is known."""
        with self._lock:
            held = self._held.get(str(job["metadata"].get("uid")))
            if held is None:
                return job
            if held.shown is not None and held.shown[0] is job:
                return held.shown[1]
            text = held.text
        shown = progress_objects.laid_over(job, text)
        with self._lock:
            if held.text == text:
                held.shown = (job, shown)
        return shown

    def every_s(self) -> float:
        """Seconds after which a job is to say something again."""
        at, pace = self._pace
        now = time.monotonic()
        if now - at > 1.0:
            with self._lock:
                pace = pace_s(sum(now - held.heard_at < SILENT_S for held in self._held.values()))
            self._pace = (now, pace)
        return pace

    # --- news -----------------------------------------------------------------------------------------------------
    def take(self, job: Object, text: str, stored: bool = False) -> None:
        """The pods of `job` have said `text`. `stored`: it stands on the Job already, so it needs no object.

        A word that comes after a later one says nothing: steps only grow within an attempt, whatever clocks do.
        """
        uid, note = str(job["metadata"]["uid"]), attempt_records.note(text)
        if not isinstance(note, ProgressNote):
            return
        with self._lock:
            held = self._held.setdefault(uid, _Held(text, note))
            now = held.heard_at = time.monotonic()
            if (note.attempt, note.step) < (held.note.attempt, held.note.step):
                return
            held.text, held.note, held.job, held.shown = text, note, job, None
            if stored:
                held.written = text
                return
            due = held.written_at + 0.8 * self._pace[1] - now
        self._queue.add(uid, max(0.0, due))

    def seen(self, obj: Object, deleted: bool) -> None:
        """An object has changed: by us, by another replica, or by hand."""
        uid, text = progress_objects.uid_of(obj), progress_objects.note_of(obj)
        note = None if text is None or deleted else attempt_records.note(text)
        with self._lock:
            held = self._held.get(uid)
            if deleted and held is not None and held.job is None:
                del self._held[uid]  # its job is gone, or another controller makes it again
            if text is None or not isinstance(note, ProgressNote):
                return
            if held is None or progress_objects.age(note) > progress_objects.age(held.note):
                held = self._held.setdefault(uid, _Held(text, note))
                held.text = held.written = text
                held.note, held.heard_at, held.shown = note, time.monotonic(), None

    def forget(self, uid: str) -> None:
        with self._lock:
            self._held.pop(uid, None)
            self._failures.pop(uid, None)

    # --- writing --------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        forever(self._stop, self._turn, threading.current_thread().name)
        while self.flush():
            pass

    def _turn(self) -> None:
        uid = self._queue.claim(timeout_s=1.0)
        if uid is not None:
            try:
                self._write(uid)
            finally:
                self._queue.done(uid)

    def flush(self) -> bool:
        """Write the note of one job that has a newer one than its object; whether there was one."""
        with self._lock:
            uid = next((u for u, h in self._held.items() if h.job is not None and h.text != h.written), None)
        return uid is not None and self._write(uid)

    def _write(self, uid: str) -> bool:
        with self._lock:
            held = self._held.get(uid)
            if held is None or held.job is None or held.text == held.written:
                return False
            job, text = held.job, held.text
            before, held.written, held.written_at = held.written, text, time.monotonic()
        try:
            self._store(job, text)
            self._failures.pop(uid, None)
            return True
        except KubeError as error:
            count = self._failures[uid] = self._failures.get(uid, 0) + 1
            if count == 1:
                log.warning("progress of %s/%s: %s", job["metadata"]["namespace"], job["metadata"]["name"], error)
            with self._lock:
                if held.written == text:
                    held.written = before
            self._queue.add(uid, max(self._pace[1], backoff_s(count)))
            return False

    def _store(self, job: Object, text: str) -> None:
        """Nobody else's word is lost by it: the pods of a job report to one controller. Raises KubeError."""
        namespace, made = str(job["metadata"]["namespace"]), progress_objects.made_for(job, text)
        # Who wrote which field is a third of the object, and one controller writes all of it: this drops that.
        body = {progress_objects.KEY: text, "metadata": {"managedFields": [{}]}}
        try:
            self._kube.patch(PROGRESS, namespace, made["metadata"]["name"], body)
        except NotFound:
            try:
                self._kube.create(made)
            except AlreadyExists:
                self._kube.patch(PROGRESS, namespace, made["metadata"]["name"], body)
            except NotFound:
                log.debug("the namespace is gone, or the kind is not served here")
