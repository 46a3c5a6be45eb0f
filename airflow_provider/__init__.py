"""Airflow provider: operators, triggers and what they need in workers and triggerers.

Turns a task into a `TrainSpec`, waits for the Job, tells its story. Never imports torch; talks to the cluster only
through `kueue_integration` and the ordinary `kubernetes` connection. How a checkpoint is taken is not known here.
"""

from __future__ import annotations

from typing import Any

from singularity_proxy.protocol import VERSION as VERSION

PACKAGE = "airflow-provider-singularity"
_GUIDES = ("/docs/operator.md", "/docs/start/first-dag.md")
"""In the checkout and the sdist."""
_TRIGGERS = ("airflow_provider.triggers", "airflow_provider.assets", "airflow_provider.awaited")
_LINKS = ("TrainingLink", "JobLink", "WorkloadLink", "LogsLink", "OutputsLink")


def get_provider_info() -> dict[str, Any]:
    """Entry point `apache_airflow_provider`; valid against `airflow/provider_info.schema.json`.

    There are no `connection-types` and no `hooks`. All goes over Airflow's connection type `kubernetes`, which the
    provider `cncf.kubernetes` brings.
    """
    return {
        "package-name": PACKAGE,
        "name": "Singularity",
        "description": "Training steps on Kueue that can be preempted, moved and resized without losing a step",
        "versions": [VERSION],
        "integrations": [
            {
                "integration-name": "Singularity",
                # Of what the operators speak to. The provider's own pages are in the sdist; no address serves them yet.
                "external-doc-url": "https://kueue.sigs.k8s.io/",
                "how-to-guide": list(_GUIDES),
                "tags": ["software"],
            }
        ],
        "operators": [{"integration-name": "Singularity", "python-modules": ["airflow_provider.operators"]}],
        "task-decorators": [
            {"name": "singularity_train", "class-name": "airflow_provider.decorators.singularity_train_task"}
        ],
        "sensors": [{"integration-name": "Singularity", "python-modules": ["airflow_provider.sensors"]}],
        "extra-links": [f"airflow_provider.links.{name}" for name in _LINKS],
        "plugins": [{"name": "singularity", "plugin-class": "airflow_provider.plugin.SingularityPlugin"}],
        "config": {
            "singularity": {
                "description": "What Airflow's servers do for training tasks: the tab Training, and looking for Jobs "
                "whose task has ended.",
                "options": {
                    "server_connections": {
                        "description": "Connections, with commas between them, that the api-server and the scheduler "
                        "may use for tasks whose kubernetes_conn_id is a template or another task's result. One that "
                        "the Dag's file names as a plain word needs no entry.",
                        "version_added": VERSION,
                        "type": "string",
                        "example": "cluster_a, cluster_b",
                        "default": "",
                    },
                    "server_exec_plugins": {
                        "description": "Whether the api-server and the scheduler run the programs that a connection's "
                        "kubeconfig logs in with (users[].user.exec, auth-provider).",
                        "version_added": VERSION,
                        "type": "boolean",
                        "example": None,
                        "default": "False",
                    },
                },
            }
        },
        "triggers": [{"integration-name": "Singularity", "python-modules": list(_TRIGGERS)}],
    }
