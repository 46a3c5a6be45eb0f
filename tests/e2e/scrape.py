"""The controller's numbers as Prometheus would fetch them, and what they must be by the records of a Job.

before = scrape(kube)
...                                          # one job lives its life; nothing else happens in the cluster
until_told(kube, before, job.look())         # every number has moved by what the Job's own records say
"""

from __future__ import annotations

import base64
import urllib.request
from collections import Counter
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rows import TIMEOUT_S

from kueue_integration.contract import job_names
from kueue_integration.jobs.status import JobStatus
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import POD, SECRET
from localcluster.demo.wait import wait_for

Numbers = Mapping[tuple[str, str], float]
"""(metric with its suffix, values of its labels) -> value, summed over the controller's pods.

The values are joined by "/", in the order of the labels' names.
"""


def scrape(kube: Kube) -> Numbers:
    secret = kube.get(SECRET, job_names.SYSTEM_NAMESPACE, job_names.KEYS_SECRET)
    token = base64.b64decode(secret["data"][job_names.KEYS_SCRAPES]).decode()
    found: Counter[tuple[str, str]] = Counter()
    for pod in kube.list(POD, job_names.SYSTEM_NAMESPACE, "app.kubernetes.io/component=controller"):
        if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp"):
            url, headers = f"http://{pod['status']['podIP']}:8080/metrics", {"Authorization": f"Bearer {token}"}
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
                text = answer.read().decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if not sample.name.endswith("_bucket"):
                        found[sample.name, "/".join(value for _, value in sorted(sample.labels.items()))] += (
                            sample.value
                        )
    return found


def expected(status: JobStatus) -> Numbers:
    """What the life of this one job adds to the counters and histograms, from its records."""
    told: Counter[tuple[str, str]] = Counter()

    def lasted(name: str, label: str, begun: float | None, done: float | None) -> None:
        if begun is not None and done is not None:
            told[f"singularity_{name}_seconds_count", label] += 1
            told[f"singularity_{name}_seconds_sum", label] += max(0.0, done - begun)

    for record in status.attempts:
        reason = str(record.ended_by)
        told["singularity_attempts_total", reason] += 1
        lasted("eviction_to_barrier", reason, record.evicted_at, record.barrier_at)
        lasted("eviction_to_committed", reason, record.evicted_at, record.committed_at)
        lasted("eviction_to_released", reason, record.evicted_at, record.released_at)
        start = "restored" if record.restored_from else "fresh"
        lasted("admission_to_running", start, record.admitted_at, record.running_at)
        lasted("admission_to_first_step", start, record.admitted_at, record.first_step_at)
        lasted("queue_wait", "again" if record.attempt > 1 else "first", record.queued_at, record.admitted_at)
    told["singularity_steps_lost_total", ""] += status.steps_lost
    return told


def until_told(kube: Kube, before: Numbers, status: JobStatus) -> None:
    """The numbers have moved by just that, not more and not less. Sums are compared to a millisecond."""
    wanted = expected(status)
    families = {name for name, _ in wanted}
    seen: dict[tuple[str, str], float] = {}

    def told() -> bool:
        now = scrape(kube)
        seen.clear()
        seen.update({key: now[key] - before.get(key, 0.0) for key in now if key[0] in families})
        moved = {key: value for key, value in seen.items() if value}
        return moved == pytest.approx({key: value for key, value in wanted.items() if value}, abs=1e-3)

    wait_for(told, "the controller's metrics as the records have it", TIMEOUT_S, detail=lambda: f"{seen} != {wanted}")
