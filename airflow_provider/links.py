"""Buttons of a task instance: the Training tab, and what a dashboard of the cluster shows of its Job.

Dashboards differ, so the connection says where its own are, in its extra:

    {"singularity": {"job_url": "https://dash.example/#/job/{namespace}/{name}",
                     "workload_url": "https://dash.example/kueue/{namespace}/{workload}",
                     "logs_url": "https://logs.example/search?q=namespace:{namespace}+job:{name}",
                     "outputs_url": "https://files.example/?url={outputs}"}}

`{namespace}`, `{name}`, `{uid}`, `{workload}` and `{outputs}` are filled in. A link without an entry, or whose values
are not known yet, is empty. Links are made by the worker, after it has submitted and again at the end.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from .compat import TABS, BaseHook, conf

EXTRA = "singularity"
_PLACEHOLDER = re.compile(r"\{(namespace|name|uid|workload|outputs)\}")


def filled(template: str, job: dict[str, str]) -> str:
    """`template` with the values of `job`, quoted for a URL; "" when one that it needs is not known."""
    if any(not job.get(name) for name in _PLACEHOLDER.findall(template)):
        return ""
    return _PLACEHOLDER.sub(lambda found: quote(job[found.group(1)], safe=""), template)


class TrainingLink(BaseOperatorLink):  # type: ignore[misc]
    """The tab `Training` of the task instance, where Airflow has tabs (3.1)."""

    name = "Training"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        if not TABS:
            return ""
        base = str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
        mapped = "" if ti_key.map_index is None or ti_key.map_index < 0 else f"/mapped/{ti_key.map_index}"
        dag, run, task = (quote(part, safe="") for part in (ti_key.dag_id, ti_key.run_id, ti_key.task_id))
        return f"{base}/dags/{dag}/runs/{run}/tasks/{task}{mapped}/plugin/training"


class _DashboardLink(BaseOperatorLink):  # type: ignore[misc]
    """Subclasses say which entry of the connection's extra."""

    entry = ""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        job = getattr(operator, "shown_job", None)
        if not job:
            return ""
        try:
            known = BaseHook.get_connection(operator.kubernetes_conn_id).extra_dejson.get(EXTRA)
        except Exception:  # a default connection need not be there: then $KUBECONFIG or the pod's own cluster counts
            return ""
        template = known.get(self.entry) if isinstance(known, dict) else None
        return filled(template, job) if isinstance(template, str) else ""


class JobLink(_DashboardLink):
    """The Job in the cluster's dashboard."""

    name = "Kubernetes Job"
    entry = "job_url"


class WorkloadLink(_DashboardLink):
    """Kueue's Workload in a dashboard."""

    name = "Kueue Workload"
    entry = "workload_url"


class LogsLink(_DashboardLink):
    """The output of all ranks where the cluster collects logs."""

    name = "All logs"
    entry = "logs_url"


class OutputsLink(_DashboardLink):
    """The folder with the outputs, once they are complete: as the connection says, else in the console of the cloud."""

    name = "Outputs"
    entry = "outputs_url"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        own = super().get_link(operator, ti_key=ti_key)
        return own or console((getattr(operator, "shown_job", None) or {}).get("outputs") or "")


def console(url: str) -> str:
    """Page of a cloud's console that shows a folder of its object store; "" for any other URL."""
    scheme, _, rest = url.partition("://")
    bucket, _, folder = rest.partition("/")
    if scheme == "gs":
        return f"https://console.cloud.google.com/storage/browser/{quote(bucket)}/{quote(folder)}"
    if scheme == "s3":
        return f"https://s3.console.aws.amazon.com/s3/buckets/{quote(bucket)}?prefix={quote(folder, safe='')}/"
    return ""


LINKS = (TrainingLink, JobLink, WorkloadLink, LogsLink, OutputsLink)
