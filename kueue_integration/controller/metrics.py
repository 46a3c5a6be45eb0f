"""The controller's numbers for Prometheus: their names, help texts, labels and buckets. docs/metrics.md lists them.

The code of each event documents what changes a counter or a histogram; `measure` does so for metrics from the history
of a Job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from . import vitals

log = logging.getLogger(__name__)

_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "singularity_fence_answers_total": ("Attempts that the fence let start.", ()),
    "singularity_checkpoints_requested_total": ("Evictions for which a checkpoint was asked for.", ()),
    "singularity_checkpoints_committed_total": ("Checkpoints committed.", ()),
    "singularity_checkpoints_damaged_total": ("Committed checkpoints that turned out not to be restorable.", ()),
    "singularity_restores_failed_total": ("Attempts that did not restore a checkpoint which is whole.", ()),
    "singularity_checkpoint_failures_total": ("Checkpoints that a job said it could not take.", ()),
    "singularity_save_trials_total": (
        "Trials of whether an attempt can be saved, by verdict; `not tried`: too dear, or it showed nothing.",
        ("verdict",)),
    "singularity_holds_released_total": ("Holds that ended without a checkpoint, by cause.", ("cause",)),
    "singularity_holds_expired_total": ("Holds that ended at their deadline.", ()),
    "singularity_readmissions_total": ("Evictions that the controller asked for, by cause.", ("cause",)),
    "singularity_requests_total": ("Answers to users' requests, by what was asked and how it went.", ("request",)),
    "singularity_planner_actions_total": (
        "Actions of the planner's policies: policy, action, and done, proposed (dry run) or refused.", ("action",)),
    "singularity_planner_policy_errors_total": ("Policies that raised or proposed nonsense, by policy.", ("policy",)),
    "singularity_conflicts_total": ("Writes refused because the object had changed.", ()),
    "singularity_repairs_total": ("Things put back that somebody had removed or spoilt by hand.", ("what",)),
    "singularity_jobs_given_up_total": ("Jobs that had used up their budget of infrastructure retries.", ()),
    "singularity_tokens_refused_total": ("Bearer tokens that were refused, by cause.", ("cause",)),
    "singularity_unreadable_total": (
        "Objects or annotations of others that could not be read, and were skipped.", ("what",)),
    "singularity_errors_total": ("Rounds of the worker that ended in an error.", ()),
    "singularity_attempts_total": ("Attempts that ended, by Kueue's reason, Finished, Failed or Deleted.", ("reason",)),
    "singularity_gpu_xids_total": ("Errors that drivers of GPUs reported as an Xid, by its number.", ("xid",)),
    "singularity_gpu_ecc_errors_total": ("Memory errors of GPUs while attempts ran.", ("kind",)),
    "singularity_steps_lost_total": ("Steps that were run and had to be run again.", ()),
    "singularity_seconds_lost_total": ("Seconds of training that a later attempt started without.", ()),
    **vitals.COUNTERS,
}
_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "singularity_leader": ("1 while this replica acts.", ()),
    "singularity_hold_policy_missing": ("1 while the hold's policy or its binding is not there.", ()),
    "singularity_guard_policies_missing": ("Guard policies, or bindings, that are not there or refuse nothing.", ()),
    "singularity_certificate_expires_seconds": (
        "Unix time at which the certificate ends that this replica shows to pods.", ()),
    "singularity_keys_missing": ("1 while the Secret with the platform's keys is not there.", ()),
    "singularity_holds_active": ("Jobs whose preemption waits for a checkpoint now.", ()),
    "singularity_checkpoint_age_seconds": ("Age of the committed checkpoint of a live job.", ("namespace", "job")),
    "singularity_gpu_utilisation_percent": ("How busy the GPUs of a running attempt have been.", ("namespace", "job")),
    "singularity_gpu_memory_peak_bytes": ("Most memory in use on a GPU of a running attempt.", ("namespace", "job")),
    "singularity_jobs": ("Training jobs by phase.", ("phase",)),
    "singularity_jobs_unsaveable": (
        "Live jobs whose last checkpoint or trial has failed, by what kind of reason it was.", ("namespace", "cause")),
    "singularity_job_device_time_promised_ratio": (
        "Share of its device time that a live job's class promises.", ("namespace", "job")),
    "singularity_job_device_time_delivered_ratio": (
        "Share of its device time that a live job was served, in the window of the tiers.", ("namespace", "job")),
    "singularity_tenant_device_time_promised_ratio": (
        "The same promise, the mean over the jobs of a LocalQueue.", ("namespace", "queue")),
    "singularity_tenant_device_time_delivered_ratio": (
        "What the same jobs of a LocalQueue were served.", ("namespace", "queue")),
    **vitals.GAUGES,
}
_LATENCY = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_WAIT = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0, 72 * 3600.0)
_HISTOGRAMS: dict[str, tuple[str, tuple[str, ...], tuple[float, ...]]] = {
    "singularity_eviction_to_barrier_seconds": (
        "From Kueue's eviction until all ranks had stopped at one step.", ("reason",), _LATENCY),
    "singularity_eviction_to_committed_seconds": (
        "From Kueue's eviction until the checkpoint was committed.", ("reason",), _LATENCY),
    "singularity_eviction_to_released_seconds": (
        "From Kueue's eviction until the quota was free for others.", ("reason",), _LATENCY),
    "singularity_admission_to_running_seconds": (
        "From admission until all programs ran, fresh or restored, with or without steps.", ("start",), _LATENCY),
    "singularity_admission_to_first_step_seconds": (
        "From admission until the first step was complete, fresh or restored.", ("start",), _LATENCY),
    "singularity_queue_wait_seconds": (
        "From being queued (again) until admission.", ("queued",), _WAIT),
    **vitals.HISTOGRAMS,
}  # fmt: skip



def series_names() -> Iterator[str]:
    """Return the names under which Prometheus knows all this."""
    yield from (*_COUNTERS, *_GAUGES)
    yield from (f"{name}_{part}" for name in _HISTOGRAMS for part in ("bucket", "sum", "count"))


Series = dict[tuple[str, ...], float]
"""Label values -> value, all series of one gauge; the key is () for a gauge without labels."""

_without_creation_times: Callable[[], None] = disable_created_metrics
_without_creation_times()


class Metrics:
    """Thread-safe. Every instance has a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = {
            n: Counter(n, text, labels, registry=self._registry) for n, (text, labels) in _COUNTERS.items()
        }
        self._gauges = {n: Gauge(n, text, labels, registry=self._registry) for n, (text, labels) in _GAUGES.items()}
        self._computed: list[Callable[[], Iterable[tuple[str, Series]]]] = []
        self._scrape = threading.Lock()
        self._histograms = {
            n: Histogram(n, text, labels, registry=self._registry, buckets=buckets)
            for n, (text, labels, buckets) in _HISTOGRAMS.items()
        }

    def add(self, name: str, label: str = "", amount: float = 1.0) -> None:
        """Count. `label` is the value of the counter's label, for those that have one."""
        counter = self._counters[name]
        (counter.labels(label) if _COUNTERS[name][1] else counter).inc(amount)

    def set(self, name: str, value: float) -> None:
        self._gauges[name].set(value)

    def observe(self, name: str, label: str, seconds: float) -> None:
        """Add a duration to a histogram. `label` as in `add`."""
        self._histograms[name].labels(label).observe(seconds)

    def compute(self, gauges: Callable[[], Iterable[tuple[str, Series]]]) -> None:
        """Ask `gauges`, too, for all series of some gauges at every scrape: series that no longer exist disappear."""
        self._computed.append(gauges)

    def value(self, name: str, label: str = "") -> float:
        """A counter, a gauge, or the number of observations of a histogram; 0 when nothing is known."""
        if name in self._histograms:
            labels = {_HISTOGRAMS[name][1][0]: label}
            return self._registry.get_sample_value(f"{name}_count", labels) or 0.0
        labelled = _COUNTERS.get(name, ("", ()))[1]
        return self._registry.get_sample_value(name, {labelled[0]: label} if labelled else {}) or 0.0

    def text(self) -> str:
        """The exposition format, version 0.0.4."""
        with self._scrape:
            for compute in self._computed:
                try:
                    for name, series in compute():
                        self._show(name, series)
                except Exception:  # the other numbers are wanted most when something is wrong
                    self.add("singularity_errors_total")
                    log.exception("gauges")
            return generate_latest(self._registry).decode()

    def _show(self, name: str, series: Series) -> None:
        gauge = self._gauges[name]
        if _GAUGES[name][1]:
            gauge.clear()
        for values, number in series.items():
            (gauge.labels(*values) if values else gauge).set(number)
