"""The Grafana dashboards of the chart: `python docs/dashboards.py` writes charts/singularity/dashboards/*.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "charts" / "singularity" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHT, WIDTH = 8, 12


class Panel(NamedTuple):
    """`shows`: legend -> expression, drawn over time. `unit`: Grafana's name of it."""

    title: str
    shows: Mapping[str, str]
    unit: str = "short"


def quantiles(metric: str, by: str = "", where: str = "") -> dict[str, str]:
    """Return half and nearly all of a histogram's durations, `by` one of its labels."""
    labels, legend = (f"le,{by}", f" {{{{{by}}}}}") if by else ("le", "")
    rate = f"sum by ({labels}) (rate({metric}_bucket{where}[$__rate_interval]))"
    return {f"p{q}{legend}": f"histogram_quantile({q / 100}, {rate})" for q in (50, 95)}


JOBS = (
    Panel("Jobs by phase", {"{{phase}}": "sum by (phase) (singularity_jobs)"}),
    Panel("Queue wait", quantiles("singularity_queue_wait_seconds", "queued"), "s"),
    Panel("Eviction to barrier", quantiles("singularity_eviction_to_barrier_seconds"), "s"),
    Panel("Eviction to committed checkpoint", quantiles("singularity_eviction_to_committed_seconds"), "s"),
    Panel("Eviction to quota released", quantiles("singularity_eviction_to_released_seconds", "reason"), "s"),
    Panel("Admission to running", quantiles("singularity_admission_to_running_seconds", "start"), "s"),
    Panel("Admission to first step", quantiles("singularity_admission_to_first_step_seconds", "start"), "s"),
    Panel("Attempts ended per hour", {"{{reason}}": "sum by (reason) (increase(singularity_attempts_total[1h]))"}),
    Panel("Steps lost per hour", {"steps": "sum(increase(singularity_steps_lost_total[1h]))"}),
    Panel("Training lost per hour", {"seconds": "sum(increase(singularity_seconds_lost_total[1h]))"}, "s"),
    Panel("Jobs that cannot be saved", {"{{cause}}": "sum by (cause) (singularity_jobs_unsaveable)"}),
    Panel(
        "Age of the checkpoint, oldest 10",
        {"{{namespace}}/{{job}}": "topk(10, singularity_checkpoint_age_seconds)"},
        "s",
    ),
    Panel(
        "Checkpoints per hour",
        {
            "asked for": "sum(increase(singularity_checkpoints_requested_total[1h]))",
            "committed": "sum(increase(singularity_checkpoints_committed_total[1h]))",
            "failed": "sum(increase(singularity_checkpoint_failures_total[1h]))",
            "not restored": "sum(increase(singularity_restores_failed_total[1h]))",
            "damaged": "sum(increase(singularity_checkpoints_damaged_total[1h]))",
        },
    ),
    Panel("Utilisation of GPUs", {"{{namespace}}/{{job}}": "topk(10, singularity_gpu_utilisation_percent)"}, "percent"),
    Panel("Xids per hour", {"Xid {{xid}}": "sum by (xid) (increase(singularity_gpu_xids_total[1h]))"}),
)
CONTROL = (
    Panel("Leaders (must be 1)", {"leaders": "sum(singularity_leader)", "{{pod}}": "singularity_leader"}),
    Panel("Age of the Lease", {"{{pod}}": "singularity_lease_age_seconds"}, "s"),
    Panel(
        "Holds are void, policies or keys are missing (must be 0)",
        {
            "void": "min(singularity_holds_void)",
            "hold policy": "max(singularity_hold_policy_missing)",
            "guard policies": "max(singularity_guard_policies_missing)",
            "keys": "max(singularity_keys_missing)",
        },
    ),
    Panel(
        "Holds",
        {
            "active": "sum(singularity_holds_active)",
            "expired per hour": "sum(increase(singularity_holds_expired_total[1h]))",
            "released without a checkpoint per hour: {{cause}}":
                "sum by (cause) (increase(singularity_holds_released_total[1h]))",
        },
    ),
    Panel("Age of the copies", {"{{kind}}": "max by (kind) (singularity_informer_age_seconds)"}, "s"),
    Panel("How late tasks are", {"{{pod}}": "singularity_canary_age_seconds"}, "s"),
    Panel("Tasks that wait", {"{{queue}}": "sum by (queue) (singularity_queue_depth)"}),
    Panel("Time of a look", quantiles("singularity_task_seconds", where='{task="job"}'), "s"),
    Panel(
        "Requests per second",
        {"{{verb}}": "sum by (verb) (rate(singularity_api_request_seconds_count[$__rate_interval]))"},
    ),
    Panel("Latency of the API server", quantiles("singularity_api_request_seconds", "verb"), "s"),
    Panel(
        "Errors of the API server per minute",
        {"{{verb}}": "sum by (verb) (increase(singularity_api_errors_total[1m]))"},
    ),
    Panel(
        "Errors and repairs per hour",
        {
            "errors": "sum(increase(singularity_errors_total[1h]))",
            "conflicts": "sum(increase(singularity_conflicts_total[1h]))",
            "unreadable: {{what}}": "sum by (what) (increase(singularity_unreadable_total[1h]))",
            "put back: {{what}}": "sum by (what) (increase(singularity_repairs_total[1h]))",
            "bad tokens: {{cause}}": "sum by (cause) (increase(singularity_tokens_refused_total[1h]))",
        },
    ),
    Panel("Answers of the fence per hour", {"let in": "sum(increase(singularity_fence_answers_total[1h]))"}),
    Panel("Until the certificate ends", {"left": "min(singularity_certificate_expires_seconds) - time()"}, "s"),
)  # fmt: skip
PLANNER = (
    Panel("Actions per hour", {"{{action}}": "sum by (action) (increase(singularity_planner_actions_total[1h]))"}),
    Panel(
        "Errors of policies per hour",
        {"{{policy}}": "sum by (policy) (increase(singularity_planner_policy_errors_total[1h]))"},
    ),
    Panel("Time of a plan", quantiles("singularity_task_seconds", where='{task="plan"}'), "s"),
    Panel("Plans per minute", {"plans": 'sum(increase(singularity_task_seconds_count{task="plan"}[1m]))'}),
    Panel(
        "Evictions that we asked for per hour",
        {"{{cause}}": "sum by (cause) (increase(singularity_readmissions_total[1h]))"},
    ),
    Panel("Requests answered per hour", {"{{request}}": "sum by (request) (increase(singularity_requests_total[1h]))"}),
    Panel(
        "Device time of queues: delivered less promised",
        {
            "{{namespace}}/{{queue}}":
                "singularity_tenant_device_time_delivered_ratio - singularity_tenant_device_time_promised_ratio",
        },
        "percentunit",
    ),
    Panel(
        "Jobs furthest behind their promise",
        {
            "{{namespace}}/{{job}}":
                "bottomk(10, singularity_job_device_time_delivered_ratio - singularity_job_device_time_promised_ratio)",
        },
        "percentunit",
    ),
)  # fmt: skip
DASHBOARDS = {
    "jobs": ("Singularity: training jobs", "singularity-training", JOBS),
    "control-plane": ("Singularity: control plane", "singularity-control-plane", CONTROL),
    "planner": ("Singularity: planner", "singularity-planner", PLANNER),
}


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "expr": expr, "legendFormat": legend, "datasource": SOURCE}
        for place, (legend, expr) in enumerate(panel.shows.items())
    ]
    place = {"h": HEIGHT, "w": WIDTH, "x": number % 2 * WIDTH, "y": number // 2 * HEIGHT}
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def dashboard(title: str, uid: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """Return what Grafana imports."""
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    return {
        "title": title,
        "uid": uid,
        "schemaVersion": 39,
        "tags": ["kueue", "training"],
        "editable": True,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def files() -> dict[Path, str]:
    """Return the text of each file."""
    return {FOLDER / f"{name}.json": json.dumps(dashboard(*of), indent=1) + "\n" for name, of in DASHBOARDS.items()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
