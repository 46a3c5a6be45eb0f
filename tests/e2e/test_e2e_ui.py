"""The Training tab in a real Chromium on a real Airflow, with a real job behind it: what it shows, what its buttons do.

The pictures go to build/e2e/ui; those of the README are made by this test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import SLOW_MS, open_page
from dag_run import Run
from playwright.sync_api import Page, expect

from kueue_integration.contract import branches
from kueue_integration.jobs.status import describe
from kueue_integration.kube.resources import JOB
from localcluster.demo.stage import CHECKOUT, NAMESPACE, Stage
from localcluster.demo.wait import wait_for
from singularity_proxy.protocol.messages import Origin

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.full, pytest.mark.timeout(2400)]
PICTURES = CHECKOUT / "build" / "e2e" / "ui"


def test_tab_shows_the_job_and_its_buttons_work(
    stage: Stage, digits: str, start_run: Callable[[str], Run], say: Callable[[str], None]
) -> None:
    run = start_run("ui")
    run.until_state("deferred")
    job = run.job()
    url = f"{stage.airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/train/plugin/training"
    PICTURES.mkdir(parents=True, exist_ok=True)
    with open_page(say) as (page, errors):
        page.goto(url)
        phase(page, "Running")
        wait_for(lambda: describe(stage.kube, NAMESPACE, job).step >= 20, "20 steps of training", 300)
        save(page, run, job)
        say("ui: checkpoint made, training goes on")
        expect(page.get_by_test_id("training-loss")).to_be_visible(timeout=SLOW_MS)
        ask(page, "resize", "1")
        expect(page.get_by_test_id("training-attempts").locator("tbody tr")).to_have_count(2, timeout=2 * SLOW_MS)
        phase(page, "Running")
        say("ui: resized to one pod")
        ask(page, "migrate", "spot")
        newest = page.get_by_test_id("training-attempts").locator("tbody tr").first
        expect(newest).to_contain_text("spot", timeout=2 * SLOW_MS)
        phase(page, "Running")
        # The three attempts make two moves, drawn as `singularityctl trace` draws them.
        for cell in ("dump", "queue", "fetch", "restore", "first step"):
            phases = page.get_by_test_id("training-trace").get_by_role("cell", name=cell, exact=True)
            expect(phases).to_have_count(1, timeout=SLOW_MS)
        expect(page.get_by_test_id("training-trace-head")).to_contain_text("attempt 2 to 3")
        page.get_by_test_id("training-trace-move").select_option("1")
        expect(page.get_by_test_id("training-trace-head")).to_contain_text("attempt 1 to 2")
        say("ui: migrated to spot")
        page.get_by_test_id("training-pause").click()
        phase(page, "Suspended")
        page.get_by_test_id("training-resume").click()
        phase(page, "Running")
        say("ui: paused and resumed")
        in_both_themes(page)
        assert run.until_run_ends() == "success"
        phase(page, "Succeeded")
        expect(page.get_by_test_id("training-lost")).to_have_text("0")
        expect(page.get_by_test_id("training-pause")).to_have_count(0)
        walk_the_lists(page, stage, run)
        assert errors == []
    airflow_kept_it(stage, run, job, url)


def save(page: Page, run: Run, job: str) -> None:
    """The button makes a checkpoint; the lineage has the job while its task is deferred."""
    page.get_by_test_id("training-checkpoint").click()
    expect(page.get_by_test_id("training-success")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_test_id("training-checkpoints").locator("tbody tr")).to_have_count(1, timeout=SLOW_MS)
    lineage = run.api.xcom(run.dag_id, run.run_id, "train", "lineage")
    assert (lineage["name"], len(lineage["attempts"])) == (job, 1)
    assert run.task_state() == "deferred"


def ask(page: Page, verb: str, value: str) -> None:
    """A verb whose dialog asks for a value."""
    page.get_by_test_id(f"training-{verb}").click()
    page.get_by_test_id("training-dialog").locator("input").fill(value)
    page.get_by_test_id("training-send").click()


def in_both_themes(page: Page) -> None:
    picture(page, "tab-light.png")
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    expect(page.get_by_test_id("training-timeline")).to_be_visible(timeout=SLOW_MS)
    picture(page, "tab-dark.png")


def walk_the_lists(page: Page, stage: Stage, run: Run) -> None:
    """From the runs of the Dag to all runs, and from there back to the tab."""
    page.goto(f"{stage.airflow.url}/dags/{run.dag_id}/plugin/training_runs")
    expect(page.get_by_test_id("training-runs-table").locator("tbody tr")).to_have_count(1, timeout=SLOW_MS)
    page.goto(f"{stage.airflow.url}/plugin/training_all")
    expect(page.get_by_test_id("training-runs")).to_be_visible(timeout=SLOW_MS)
    picture(page, "runs-dark.png")
    page.get_by_label("filter").fill(run.dag_id)
    page.get_by_test_id("training-runs-table").get_by_role("link", name="train").first.click()
    expect(page.get_by_test_id("training-tab")).to_be_visible(timeout=SLOW_MS)


def airflow_kept_it(stage: Stage, run: Run, job: str, url: str) -> None:
    """The audit log has the verbs; the task has its manifest, its link, and what its sensor has seen."""
    audit = stage.airflow.api.call("GET", f"eventLogs?dag_id={run.dag_id}&run_id={run.run_id}&limit=100")["event_logs"]
    verbs = ("checkpoint", "resize", "migrate", "pause", "resume")
    assert {f"training_{verb}" for verb in verbs} <= {e["event"] for e in audit}
    task = f"dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/train"
    assert f"name: {job}" in stage.airflow.api.call("GET", task)["rendered_fields"]["manifest"]
    assert stage.airflow.api.call("GET", f"{task}/links")["extra_links"]["Training"] == url
    # The sensor beside it has seen one of the checkpoints while the training went on.
    saved = run.api.xcom(run.dag_id, run.run_id, "saved", "return_value")
    lineage = run.api.xcom(run.dag_id, run.run_id, "train", "lineage")
    assert saved["step"] >= 20
    assert saved["id"] in [checkpoint["id"] for checkpoint in lineage["checkpoints"]]


@pytest.mark.full
def test_rewind_and_fork_are_clicked_beside_a_checkpoint(
    stage: Stage, digits: str, start_run: Callable[[str], Run], say: Callable[[str], None]
) -> None:
    """Two checkpoints; a second job goes on from the newer one, and the job itself goes back to the older one."""
    run = start_run("ui")
    run.until_state("deferred")
    job = run.job()
    with open_page(say) as (page, errors):
        page.goto(f"{stage.airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/train/plugin/training")
        phase(page, "Running")
        wait_for(lambda: describe(stage.kube, NAMESPACE, job).step >= 20, "20 steps of training", 300)
        save(page, run, job)
        page.get_by_test_id("training-checkpoint").click()
        rows = page.get_by_test_id("training-checkpoints").locator("tbody tr")
        expect(rows).to_have_count(2, timeout=SLOW_MS)
        newer, older = (entry["id"] for entry in reversed(describe(stage.kube, NAMESPACE, job).checkpoints))
        fork_it(page, stage, job, newer)
        say("ui: forked")

        expect(rows.last).to_contain_text(older)
        rows.last.get_by_test_id("training-rewind").click()
        expect(page.get_by_test_id("training-dialog").locator("input")).to_have_value(older)
        page.get_by_test_id("training-send").click()
        answered(page, "rewind: ")
        note = page.get_by_test_id("training-rewind-note")
        expect(note).to_contain_text(f"to checkpoint {older}", timeout=2 * SLOW_MS)
        expect(rows.filter(has_text=newer)).to_contain_text("side branch", timeout=SLOW_MS)
        expect(rows.filter(has_text=older)).to_contain_text("current")
        wait_for(lambda: describe(stage.kube, NAMESPACE, job).attempt == 2, "the attempt after the rewind", 300)
        phase(page, "Running")
        rewinds = describe(stage.kube, NAMESPACE, job).rewinds
        assert [(back.checkpoint, back.attempt) for back in rewinds] == [(older, 1)]
        assert errors == []
    audit = stage.airflow.api.call("GET", f"eventLogs?dag_id={run.dag_id}&run_id={run.run_id}&limit=100")["event_logs"]
    assert {"training_rewind", "training_fork"} <= {each["event"] for each in audit}
    run.api.mark_run(run.dag_id, run.run_id, "failed")
    assert run.until_run_ends() == "failed"


def answered(page: Page, words: str) -> None:
    """Beside the answers of other buttons."""
    expect(page.get_by_test_id("training-success").filter(has_text=words)).to_be_visible(timeout=SLOW_MS)


def fork_it(page: Page, stage: Stage, job: str, checkpoint: str) -> None:
    """The second job is there, and begins with the checkpoint; the test needs no more of it."""
    rows = page.get_by_test_id("training-checkpoints").locator("tbody tr")
    rows.filter(has_text=checkpoint).get_by_test_id("training-fork").click()
    page.get_by_test_id("training-dialog").locator("input").fill("ui-twin")
    page.get_by_test_id("training-send").click()
    try:
        answered(page, "fork: job ui-twin goes on")
        assert branches.start_from(stage.kube.get_job(NAMESPACE, "ui-twin")) == Origin(job, checkpoint)
    finally:
        if stage.kube.find(JOB, NAMESPACE, "ui-twin") is not None:
            stage.kube.delete(JOB, NAMESPACE, "ui-twin")


def test_tab_of_another_task_says_that_it_is_empty(
    stage: Stage, start_run: Callable[[str], Run], say: Callable[[str], None]
) -> None:
    run = start_run("unrelated")
    assert run.until_run_ends() == "success"
    with open_page(say) as (page, errors):
        failed: list[str] = []
        page.on("response", lambda r: failed.append(r.url) if r.status >= 400 and "/singularity/" in r.url else None)
        page.goto(f"{stage.airflow.url}/dags/unrelated/runs/{run.run_id}/tasks/train/plugin/training")
        expect(page.get_by_test_id("training-empty")).to_be_visible(timeout=SLOW_MS)
        assert errors == []
        assert failed == []


def phase(page: Page, name: str) -> None:
    expect(page.get_by_test_id("training-tab").get_by_test_id("training-phase")).to_have_text(name, timeout=2 * SLOW_MS)


def picture(page: Page, name: str) -> None:
    page.screenshot(path=Path(PICTURES, name))
