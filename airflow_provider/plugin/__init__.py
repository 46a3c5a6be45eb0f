"""Airflow plugin: the tab `Training` on task instances and Dags, the pages of all training runs and of the cluster, and
their API. Also the listener that looks for Jobs whose task has ended without them (`listener`, `orphans`; in the
scheduler too).

The UI lives in the api-server only. What it shows comes from XComs and the task state store, live values and every
action go to the cluster through `kueue_integration`. The UI decides nothing about a job itself. Every route that names
a Dag is authorised for that Dag; actions need what Airflow asks for clearing a task.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from . import listener
from .static_files import PREFIX, bundle

OPERATORS = ["SingularityTrainOperator", "_SingularityTrainDecoratedOperator"]
"""For `applies_to`, which Airflow 3.3 accepts and ignores: there the tab is on every task and says when it is empty."""


class _ApiOnDemand:
    """Every Airflow process loads every plugin; only the api-server asks for this attribute and pays for FastAPI."""

    def __get__(self, instance: object, owner: object) -> list[dict[str, Any]]:
        from .app import app

        return [{"app": app, "url_prefix": PREFIX, "name": "Singularity"}]


class SingularityPlugin(AirflowPlugin):  # type: ignore[misc]
    """Entry point `airflow.plugins`."""

    name = "singularity"
    fastapi_apps = _ApiOnDemand()
    listeners = [listener]  # noqa: RUF012
    # Airflow drops an entry whose url_route another one has.
    react_apps = [  # noqa: RUF012 (Airflow's convention; it removes entries that it does not accept)
        {
            "name": "Training",
            "bundle_url": bundle("task"),
            "destination": "task_instance",
            "url_route": "training",
            "applies_to": {"operator_name": OPERATORS},
        },
        {"name": "Training", "bundle_url": bundle("dag"), "destination": "dag", "url_route": "training_runs"},
        {
            "name": "Training",
            "bundle_url": bundle("nav"),
            "destination": "nav",
            "url_route": "training_all",
            "nav_top_level": True,
            "icon": f"{PREFIX.strip('/')}/static/icon.svg",
            "icon_dark_mode": f"{PREFIX.strip('/')}/static/icon_dark.svg",
        },
        {
            "name": "Training cluster",
            "bundle_url": bundle("nav", "cluster.js"),
            "destination": "nav",
            "url_route": "training_cluster",
            "category": "browse",
            "icon": f"{PREFIX.strip('/')}/static/icon.svg",
            "icon_dark_mode": f"{PREFIX.strip('/')}/static/icon_dark.svg",
        },
    ]
