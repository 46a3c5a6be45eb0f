"""The newest progress of each running job, in memory; and its way into the small objects that others read.

Pods tell progress every few seconds. What they say is kept here at once, and a thread writes it out, the newest of each
job and many jobs together. Nothing of it is needed to act: after a restart the pods say it again, and the objects have
it meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import attempt_records, progress_objects
from ..contract.attempt_records import ProgressNote
from ..errors import AlreadyExists, KubeError, NotFound
from ..kube.api import Kube, Patch
from ..kube.resources import PROGRESS, Object
from .forever import backoff_s, forever

log = logging.getLogger(__name__)

ROUND_S = 0.25
"""Seconds between two looks for what is to be written."""
BATCH = 64
"""Notes that are sent together."""
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
        self._due: dict[str, float] = {}
        """When the newest note of a job is to be written, monotonic seconds."""
        self._failures: dict[str, int] = {}
        self._pace = (float("-inf"), EVERY_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is not written yet is written first: the next controller knows no more than these objects."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

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
            held.heard_at = time.monotonic()
            if (note.attempt, note.step) < (held.note.attempt, held.note.step):
                return
            held.text, held.note, held.job, held.shown = text, note, job, None
            if stored:
                held.written = text
                return
            self._due.setdefault(uid, held.written_at + 0.8 * self._pace[1])

    def seen(self, obj: Object, deleted: bool) -> None:
        """An object has changed: by us, by another replica, or by hand."""
        uid, text = progress_objects.uid_of(obj), progress_objects.note_of(obj)
        known = self._held.get(uid)
        if known is not None and known.text == text and not deleted:
            return  # our own word, as a rule
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
            self._due.pop(uid, None)
            self._failures.pop(uid, None)

    # --- writing --------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        forever(self._stop, self._turn, "notes")
        while self.flush():
            pass

    def _turn(self) -> None:
        if not self._write(self._taken(time.monotonic())):
            self._stop.wait(ROUND_S)

    def flush(self) -> bool:
        """Write notes that are newer than their objects; whether there was one, and all of them could be written."""
        batch = self._taken(float("inf"))
        self._write(batch)
        return bool(batch) and not any(uid in self._failures for uid in batch)

    def _taken(self, now: float) -> list[str]:
        """Jobs whose notes are due, BATCH of them at most."""
        with self._lock:
            found = [uid for uid, due in self._due.items() if due <= now][:BATCH]
            for uid in found:
                del self._due[uid]
        return found

    def _write(self, uids: Sequence[str]) -> bool:
        """Whether there was as much as can be sent together."""
        sent: list[tuple[str, Object, str]] = []
        with self._lock:
            for uid in uids:
                held = self._held.get(uid)
                if held is not None and held.job is not None and held.text != held.written:
                    sent.append((uid, held.job, held.text))
                    held.written_at = time.monotonic()
        if sent:
            found = self._kube.patch_all(PROGRESS, [_patch(job, text) for _, job, text in sent])
            for (uid, job, text), error in zip(sent, found, strict=True):
                self._written(uid, job, text, self._made(job, text) if isinstance(error, NotFound) else error)
        return len(uids) == BATCH

    def _written(self, uid: str, job: Object, text: str, error: KubeError | None) -> None:
        with self._lock:
            held = self._held.get(uid)
            if held is None:
                return
            if error is None:
                held.written = text
                self._failures.pop(uid, None)
                return
            count = self._failures[uid] = self._failures.get(uid, 0) + 1
            self._due[uid] = time.monotonic() + max(self._pace[1], backoff_s(count))
        if count == 1:
            log.warning("progress of %s/%s: %s", job["metadata"]["namespace"], job["metadata"]["name"], error)

    def _made(self, job: Object, text: str) -> KubeError | None:
        """Make the object, or say what refuses it."""
        try:
            self._kube.create(progress_objects.made_for(job, text))
        except AlreadyExists:
            return self._kube.patch_all(PROGRESS, [_patch(job, text)])[0]
        except NotFound:
            log.debug("the namespace is gone, or the kind is not served here")
        except KubeError as error:
            return error
        return None


def _patch(job: Object, text: str) -> Patch:
    """Nobody else's word is lost by it: the pods of a job report to one controller."""
    # Who wrote which field is a third of the object, and one controller writes all of it: this drops that.
    body = {progress_objects.KEY: text, "metadata": {"managedFields": [{}]}}
    return str(job["metadata"]["namespace"]), progress_objects.name_of(job), body
