"""Two teams share a cohort: who has nothing to do lends its quota, who comes back gets it back at once.

Both ClusterQueues (`queues/two-teams.yaml`: `kubectl apply -f` it once) own half of the machines. `team_a_training`
wants all of them and may have them while team B is idle. When `team_b_training` starts, Kueue reclaims team B's half.
Team A's job is checkpointed, goes on in one pod with both ranks in it, and grows back when team B has finished. No step
is lost.
"""

from __future__ import annotations

from datetime import datetime, timezone

import digits
from airflow.sdk import DAG, Param, task
from digits import POD_SHARED, RUN_FOLDER

from airflow_provider.operators import SingularityTrainOperator

TEAMS = {"team_a": {"workers": 2, "min_workers": 1}, "team_b": {"workers": 1}}


def team_dag(team: str, size: dict[str, int]) -> DAG:
    """The training of one team."""
    with DAG(
        dag_id=f"{team}_training",
        description=f"Training of {team.replace('_', ' ')} on its half of a cohort",
        schedule=None,
        start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
        catchup=False,
        tags=["singularity", team.replace("_", "-")],
        doc_md=__doc__,
        params={"steps": Param(300, type="integer", minimum=1, description="training steps")},
    ) as dag:

        @task
        def prepare(folder: str) -> str:
            """Data for the training; returns its folder as the pods see it."""
            return digits.write_digits(folder)

        train = SingularityTrainOperator(
            task_id="train",
            name=team.replace("_", "-"),
            queue_name=team.replace("_", "-"),
            priority_class="low",
            checkpoint_budget_s=600,  # the longest that the other team waits; seconds as a rule
            pod_resources={"cpu": "250m"},
            script="scripts/train_digits.py",
            script_args=[
                "--data", f"{POD_SHARED}/{RUN_FOLDER}/digits.npz",
                "--output", f"{POD_SHARED}/{RUN_FOLDER}/output",
                "--steps", "{{ params.steps }}",
            ],
            **size,
        )  # fmt: skip
        prepare(RUN_FOLDER) >> train
    return dag


team_a, team_b = (team_dag(team, size) for team, size in TEAMS.items())
