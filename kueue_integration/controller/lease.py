"""The Lease: which replica acts, and the clock of the hold policy.

The policy lets every suspend through when the Lease is older than its duration. It is renewed only while the worker is
alive, so a controller that hangs voids the holds just as a dead one does. A leader stops acting before that: a second
replica takes over while the holds still stand, so a leader that dies costs no checkpoint. Each renewal also writes the
Jobs whose hold is over, or about to be, whatever their annotations say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from copy import deepcopy

from ..contract import job_names
from ..errors import Conflict, KubeError, NotFound
from ..kube import server_time
from ..kube.client import Kube
from ..kube.resources import LEASE, Object
from .forever import forever

log = logging.getLogger(__name__)


class LeaseKeeper:
    """`alive()` says whether the worker has shown life lately; `on_change(leads)` runs in the keeper's thread, and
    `on_repair()` when the Lease had to be created again. `overdue()` gives the Jobs that the policy lets go."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        identity: str,
        duration_s: int,
        renew_s: float,
        alive: Callable[[], bool],
        on_change: Callable[[bool], None],
        on_repair: Callable[[], None] = lambda: None,
        server: server_time.ServerClock | None = None,
        overdue: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._kube = kube
        self._overdue = overdue
        self._server = server or server_time.ServerClock()
        self._namespace, self._name, self._identity = namespace, name, identity
        self._duration_s, self._renew_s = duration_s, renew_s
        self._alive, self._on_change, self._on_repair = alive, on_change, on_repair
        self._lived = False
        """Whether the worker has shown life since this process began. Before that, silence is no failure."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._leads = False
        self._renewed = float("-inf")
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = self._well = time.monotonic()
        self._margin_s = min(2 * renew_s, duration_s / 2)
        """Of the Lease's duration, for a take-over: nobody acts, and the holds still stand."""
        self._acts_s = self._lasts_s = duration_s - self._margin_s

    @property
    def leads(self) -> bool:
        """Whether this replica may act now. False as soon as another one could have taken over."""
        return self._leads and time.monotonic() - self._renewed < self._acts_s

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Give the Lease up, so that the next replica need not wait; its time stays: running holds go on."""
        self._stop.set()
        self._thread.join(timeout=5)
        if self.leads:
            try:
                lease = self._kube.get_lease(self._namespace, self._name)
                if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                    lease["spec"]["holderIdentity"] = ""
                    self._kube.update_lease(lease)
            except KubeError as error:
                log.warning("lease not given up: %s", error)
        self._leads = False

    def age(self) -> float:
        """Seconds since the Lease was renewed, as this replica has seen it; since our start while it has seen none."""
        return time.monotonic() - max(self._renewed, self._seen_at)

    def idle_for(self) -> float:
        """Seconds since the last good state: this replica led, another replica led, or the API server gave no answer,
        so that none could lead. A thread that hangs counts as idle, too."""
        return time.monotonic() - self._well

    def _run(self) -> None:
        forever(self._stop, self._round, "lease", pause_s=self._renew_s, longest_s=self._renew_s)

    def _round(self) -> None:
        """A slow answer takes its time from the pause, not from the Lease."""
        began = time.monotonic()
        self.tick()
        self._stop.wait(max(0.0, self.next_round(began) - time.monotonic()))

    def next_round(self, began: float) -> float:
        """Return when the round after the one that began then is due, in monotonic seconds.

        Who looks on sees a renewal soon after it was written, and comes in the moment in which it may take over: what
        is late then, on a busy machine or by a slow API server, is missing at the end of the holds.
        """
        if self.leads:
            return began + self._renew_s
        usual, free_at = began + self._renew_s / 2, self._seen_at + self._lasts_s
        return min(usual, free_at) if free_at > time.monotonic() else usual

    def tick(self) -> None:
        """One round: renew, take over, or look on."""
        alive = self._alive()
        self._lived |= alive
        try:
            lease = self._lease()
            if not alive:
                self._may_take(lease)  # to see whether another one leads
                if self._lived:
                    log.error("no worker takes a task: the lease is not renewed, holds end with it")
                else:
                    log.info("the lease is not taken yet: the worker has to know all objects first")
                self._change(self.leads)
            elif self._may_take(lease):
                if not self._leads:  # what is written without a time tells the API server's, before ours holds or voids
                    lease = self._write(self._claim(lease))
                started = time.monotonic()
                self._write(self._renewal(lease))
                self._change(self.leads)  # expired while the API server was slow: what came meanwhile was dropped
                self._renewed = started
                self._change(True)
            else:
                self._change(False)
        except Conflict:
            self._change(self.leads)  # another replica was faster; the next round sees who
        except KubeError as error:
            log.warning("lease: %s", error)
            self._change(self.leads)
            self._well = time.monotonic()  # to end this process would not help
        if self.leads or self._follows():
            self._well = time.monotonic()

    def _follows(self) -> bool:
        """Whether another replica holds the Lease and renews it, as far as we have seen."""
        holder, _ = self._seen
        return holder not in ("", self._identity) and time.monotonic() - self._seen_at <= self._lasts_s

    def _lease(self) -> Object:
        """The Lease. If somebody has deleted it, it is created again: without it nothing is held."""
        try:
            return self._kube.get_lease(self._namespace, self._name)
        except NotFound:
            # An object that is created without any field gets no managedFields, then or later. They are our clock.
            labels = {"app.kubernetes.io/name": "singularity"}
            meta = {"namespace": self._namespace, "name": self._name, "labels": labels}
            made = self._kube.create_lease({"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": meta})
            log.warning("Lease %s/%s was gone: made again", self._namespace, self._name)
            self._on_repair()
            return made

    def _change(self, leads: bool) -> None:
        if leads != self._leads:
            self._leads = leads
            log.info("this replica %s", "acts" if leads else "looks on")
            try:
                self._on_change(leads)
            except Exception:  # nothing that follows from it may cost the Lease
                log.exception("after the change of who acts")

    def _may_take(self, lease: Object) -> bool:
        """Free, ours, or not renewed while its holder may act, as *we* saw it: clocks of replicas need not agree."""
        spec = lease.get("spec") or {}
        holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        if (holder, renewed) != self._seen:
            self._seen, self._seen_at = (holder, renewed), time.monotonic()
        if holder in ("", self._identity):
            return True
        self._lasts_s = float(spec.get("leaseDurationSeconds") or self._duration_s) - self._margin_s
        return time.monotonic() - self._seen_at >= self._lasts_s

    def _write(self, lease: Object) -> Object:
        before = self._server.local()
        written = self._kube.update_lease(lease)
        self._server.learn(written, before, self._server.local())
        return written

    def _claim(self, lease: Object) -> Object:
        new = deepcopy(lease)
        spec = new.setdefault("spec", {})
        if spec.get("holderIdentity") != self._identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec.update(holderIdentity=self._identity, acquireTime=server_time.to_micro(self._server.now()))
        return new

    def _renewal(self, lease: Object) -> Object:
        held = (lease.get("spec") or {}).get("holderIdentity") == self._identity
        new = deepcopy(lease) if held else self._claim(lease)
        annotations = new["metadata"].setdefault("annotations", {})
        try:
            overdue = " ".join(self._overdue())
        except Exception:  # a Lease that is not renewed voids every hold
            log.exception("overdue holds are not known, the last list stands")
            overdue = str(annotations.get(job_names.ANN_OVERDUE) or "")
        if overdue:
            annotations[job_names.ANN_OVERDUE] = overdue
        else:
            annotations.pop(job_names.ANN_OVERDUE, None)
        spec = new["spec"]
        spec.update(renewTime=server_time.to_micro(self._server.now()), leaseDurationSeconds=self._duration_s)
        return new
