"""A trial shows on the cluster that a job cannot be saved, before anybody asks; a clean move costs no second of work.

Not in `make test`: when there is a trial and what it shows are unit tests, the verbs are `test_e2e_verbs`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rows import TIMEOUT_S, Rows
from scrape import scrape
from shell import Shell

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import EVENT
from kueue_integration.requests import verbs
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(900)]
NAMESPACE = "trial"
TRACED = Path(__file__).parent / "scripts" / "traced.py"
TRIAL_S = 120
"""`saveTrial` of the chart."""


def test_a_trial_says_no_where_people_look_and_a_clean_move_loses_no_second(rows: Rows) -> None:
    rows.queue("q", {"ondemand": "150m", "spot": "50m"})
    before = scrape(rows.kube).get(("singularity_jobs_unsaveable", "program/trial"), 0.0)
    files = {TRACED.name: TRACED.read_text()}
    traced = rows.train("traced", "q", script=TRACED.name, files=files, workers=2, world_size=2)
    clean = rows.train("clean", "q", workers=1, world_size=1)
    clean.until_steps(5)
    for flavor in ("spot", "ondemand"):
        asked = verbs.migrate(rows.kube, NAMESPACE, "clean", flavor=flavor)
        assert verbs.wait(rows.kube, asked, TIMEOUT_S).state == "done"
        status = clean.until_steps(3)
        assert (status.attempts[-1].flavor, status.steps_lost, status.seconds_lost) == (flavor, 0, 0)
    last = clean.finish()
    assert (last.steps_lost, last.seconds_lost) == (0, 0)

    told = traced.until(lambda s: s.saveable and s.saveable.at, "the trial", TRIAL_S + TIMEOUT_S).saveable
    assert told is not None and (told.verdict, told.by, told.cause, told.attempt) == ("no", "trial", "program", 1)
    assert "traced.py" in told.why
    report = json.loads(Shell(rows.stage.cluster).run("top", "-n", NAMESPACE, "-o", "json"))
    assert [(seen["job"], seen["why"]) for seen in report["unsaveable"]] == [("traced", told.why)]

    def events() -> list[str]:
        found = rows.kube.list(EVENT, NAMESPACE)
        return [e["message"] for e in found if e["reason"] == job_names.EVENT_UNSAVEABLE]

    wait_for(events, "the Event", TIMEOUT_S)
    assert [text for text in events() if told.why[:80] in text] and len(events()) == 1
    now = scrape(rows.kube)
    assert now[("singularity_jobs_unsaveable", "program/trial")] == before + 1
    assert traced.look().attempt == 1
