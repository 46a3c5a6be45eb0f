"""The alerts of the chart, as Prometheus itself evaluates them: each fires when it should, none on a healthy cluster.

And each has a runbook, and each metric in them is one of the controller's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendered import CHART, HELM, NO_HELM, render
from shell_blocks import ROOT

from kueue_integration.controller import metrics

RULES = CHART / "alerts.yaml"
PAGE = ROOT / "docs/operations/alerts.md"
PROMTOOL = os.environ.get("SINGULARITY_PROMTOOL") or shutil.which("promtool")
NO_PROMTOOL = "no promtool: SINGULARITY_PROMTOOL is printed by `python -m localcluster.prepare --env`"
HEALTHY = {
    'singularity_leader{pod="a"}': "1x120",
    'singularity_leader{pod="b"}': "0x120",
    'singularity_holds_void{pod="a"}': "0x120",
    'singularity_holds_void{pod="b"}': "0x60 1x60",  # a replica that is cut off sees an old Lease
    'singularity_canary_age_seconds{pod="a"}': "1x120",
    'singularity_informer_age_seconds{pod="a", kind="pods"}': "40x110 90x10",
    'singularity_task_seconds_sum{pod="a", task="plan"}': "0+60x120",
    'singularity_task_seconds_count{pod="a", task="plan"}': "0+10x120",
    'singularity_api_errors_total{pod="a", verb="patch"}': "0+1x120",
    'singularity_api_request_seconds_count{pod="a", verb="patch"}': "0+100x120",
    'singularity_api_request_seconds_bucket{pod="a", verb="patch", le="0.5"}': "0+100x120",
    'singularity_api_request_seconds_bucket{pod="a", verb="patch", le="+Inf"}': "0+100x120",
    'singularity_hold_policy_missing{pod="a"}': "0x120",
    'singularity_guard_policies_missing{pod="a"}': "0x120",
    'singularity_certificate_expires_seconds{pod="a"}': "7776000x120",
    'singularity_keys_missing{pod="a"}': "0x120",
    'singularity_errors_total{pod="a"}': "0+0x60 3x60",
    'singularity_jobs{pod="a", phase="Starting"}': "1x20 0x100",
    'singularity_holds_expired_total{pod="a"}': "4x120",
    'singularity_steps_lost_total{pod="a"}': "9x120",
    'singularity_seconds_lost_total{pod="a"}': "9x120",
    'singularity_checkpoint_age_seconds{pod="a", namespace="n", job="j"}': "0+60x120",
    'singularity_restores_failed_total{pod="a"}': "0x60 1x60",
    'singularity_gpu_xids_total{pod="a", xid="31"}': "0+1x120",
    'singularity_tokens_refused_total{pod="a", cause="form"}': "0+1x120",
}
ALIVE = {'singularity_leader{pod="a"}': "1x120", 'singularity_holds_void{pod="a"}': "0x120"}
WHEN_GONE = dict(zip(ALIVE, ("SingularityNoLeader", "SingularityHoldsVoid"), strict=True))
"""What a controller always tells -> the alert that fires when it is silent."""
FIRES: dict[str, list[dict[str, str]]] = {
    "SingularityNoLeader": [
        {'singularity_leader{pod="a"}': "1x10 stale"},  # the controller is gone, and its series with it
        {'singularity_leader{pod="a"}': "0x120", 'singularity_leader{pod="b"}': "0x120"},
        {'singularity_leader{pod="a"}': "1x120", 'singularity_leader{pod="b"}': "1x120"},
        {},
    ],
    "SingularityHoldsVoid": [
        {'singularity_holds_void{pod="a"}': "0x60 1x60", 'singularity_holds_void{pod="b"}': "1x120"},
        {'singularity_holds_void{pod="a"}': "0x10 stale"},
        {},
    ],
    "SingularityHoldPolicyMissing": [{'singularity_hold_policy_missing{pod="a"}': "1x120"}],
    "SingularityGuardPoliciesMissing": [{'singularity_guard_policies_missing{pod="a"}': "2x120"}],
    "SingularityErrors": [{'singularity_errors_total{pod="a"}': "0+2x120"}],
    "SingularityCopiesOld": [{'singularity_informer_age_seconds{pod="a", kind="pods"}': "0x60 0+60x60"}],
    "SingularityControllerSlow": [{'singularity_canary_age_seconds{pod="a"}': "0x60 8x60"}],
    "SingularityPlansSlow": [
        {
            'singularity_task_seconds_sum{pod="a", task="plan"}': "0+62x120",
            'singularity_task_seconds_count{pod="a", task="plan"}': "0+2x120",
        }
    ],
    "SingularityApiErrors": [
        {
            'singularity_api_errors_total{pod="a", verb="patch"}': "0+6x120",
            'singularity_api_request_seconds_count{pod="a", verb="patch"}': "0+100x120",
        }
    ],
    "SingularityApiSlow": [
        {
            'singularity_api_request_seconds_bucket{pod="a", verb="patch", le="1.0"}': "0+90x120",
            'singularity_api_request_seconds_bucket{pod="a", verb="patch", le="5.0"}': "0+100x120",
            'singularity_api_request_seconds_bucket{pod="a", verb="patch", le="+Inf"}': "0+100x120",
        }
    ],
    "SingularityJobsDoNotStart": [{'singularity_jobs{pod="a", phase="Restoring"}': "1x120"}],
    "SingularityHoldsExpired": [{'singularity_holds_expired_total{pod="a"}': "0x100 1x20"}],
    "SingularityWorkLost": [
        {'singularity_steps_lost_total{pod="a"}': "0x100 7x20"},
        {'singularity_seconds_lost_total{pod="a"}': "0x100 300x20"},
    ],
    "SingularityJobsUnsaveable": [{'singularity_jobs_unsaveable{pod="a", namespace="n", cause="program"}': "1x120"}],
    "SingularityCheckpointOld": [{'singularity_checkpoint_age_seconds{namespace="n", job="j"}': "90000x120"}],
    "SingularityRestoresFail": [{'singularity_restores_failed_total{pod="a"}': "0x100 3x20"}],
    "SingularityCheckpointsDamaged": [{'singularity_checkpoints_damaged_total{pod="a"}': "0x100 1x20"}],
    "SingularityJobsGivenUp": [{'singularity_jobs_given_up_total{pod="a"}': "0x100 1x20"}],
    "SingularityGpuXid": [
        {'singularity_gpu_xids_total{pod="a", xid="79"}': "1x100 2x20"},
        {'singularity_gpu_xids_total{pod="a", xid="48"}': "_x100 1x20"},  # the first one makes the series
    ],
    "SingularityPlannerErrors": [{'singularity_planner_policy_errors_total{pod="a", policy="cordon"}': "_x100 1x20"}],
    "SingularityCertificateEnds": [
        {'singularity_certificate_expires_seconds{pod="a"}': "1209000x120"},  # promtool's clock begins at 0
        {'singularity_certificate_expires_seconds{pod="a"}': "0x120"},
    ],
    "SingularityKeysMissing": [{'singularity_keys_missing{pod="a"}': "0x100 1x20"}],
    "SingularityTokensRefused": [{'singularity_tokens_refused_total{pod="a", cause="form"}': "0x110 200x10"}],
}
"""Alert -> scenes of two hours, a sample a minute, at whose end it fires."""


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def scene(series: dict[str, str], name: str, expected: list[str]) -> dict[str, Any]:
    """A test of promtool that says which alerts fire after two hours, and that no other does."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "118m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in expected],
            }
        ],
    }


def play(tmp_path: Path, scenes: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "scenes.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "5m", "tests": scenes}))
    command = [str(PROMTOOL), "test", "rules", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)
def test_each_alert_fires_when_it_should_and_none_on_a_healthy_cluster(tmp_path: Path) -> None:
    scenes = [scene(HEALTHY, "healthy", []), scene({}, "gone", list(WHEN_GONE.values()))]
    for alert, cases in FIRES.items():
        for number, case in enumerate(cases):
            lives = {key: value for key, value in ALIVE.items() if WHEN_GONE[key] != alert}
            scenes.append(scene({**lives, **case}, f"{alert} {number}", [alert]))
    done = play(tmp_path, scenes)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)
def test_a_wrong_expectation_is_found(tmp_path: Path) -> None:
    assert play(tmp_path, [scene(HEALTHY, "healthy", ["SingularityNoLeader"])]).returncode != 0


def test_every_alert_has_a_case_a_runbook_and_a_place_on_the_page() -> None:
    page, runbooks = PAGE.read_text(), (ROOT / "docs/operations/runbooks.md").read_text()
    assert set(FIRES) == {rule["alert"] for rule in rules()}
    for rule in rules():
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert path == "docs/operations/runbooks.md" and f"{{#{anchor}}}" in runbooks, rule["alert"]
        assert f"## {rule['alert']}\n" in page and f"(runbooks.md#{anchor})" in page, rule["alert"]


def test_alerts_name_metrics_of_the_controller_only() -> None:
    named = set(re.findall(r"\bsingularity_\w+", RULES.read_text()))
    assert named and named <= set(metrics.series_names())


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_the_chart_makes_a_rule_of_them_that_links_to_your_runbooks() -> None:
    base = "https://docs.example/operations/runbooks.html"
    made = render("metrics.alerts.enabled=true", f"metrics.alerts.runbooks={base}", "metrics.alerts.labels.team=ml")
    found = made["PrometheusRule", "singularity"]
    assert found["metadata"]["labels"]["team"] == "ml"
    (group,) = found["spec"]["groups"]
    assert [rule["expr"] for rule in group["rules"]] == [rule["expr"] for rule in rules()]
    assert {rule["annotations"]["runbook_url"].partition("#")[0] for rule in group["rules"]} == {base}
    assert ("PrometheusRule", "singularity") not in render()


BY_PEOPLE = {"upgrade-a-node", "upgrade", "deferred-task", "triggerer"}
"""What nobody is paged for: somebody does it on purpose, or Airflow shows it."""


def test_each_runbook_is_reached_from_an_alert() -> None:
    """By the alert's link, or by links of the runbooks that it leads to."""
    parts = re.split(r"^## .*\{#([\w-]+)\}\n", (ROOT / "docs/operations/runbooks.md").read_text(), flags=re.MULTILINE)
    links = {name: re.findall(r"\(#([\w-]+)\)", text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    reached: set[str] = set()
    fresh = set(re.findall(r"runbooks\.md#([\w-]+)", RULES.read_text()))
    while fresh:
        reached |= fresh
        fresh = {target for name in fresh for target in links[name]} - reached
    assert links.keys() - reached == BY_PEOPLE
