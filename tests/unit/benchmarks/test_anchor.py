"""The comparison with Airflow's own operator: its pure parts, and that the Dag file makes every Dag."""

from __future__ import annotations

import json
import runpy

import pytest

from benchmarks.anchor import __main__ as cli
from benchmarks.anchor import ground, report
from benchmarks.anchor.record import SETTLE_S, JobView, Record, Sample, Waiting, cell, judge, view
from benchmarks.anchor.scenarios import CONTENDERS, SCENARIOS, dag_id

ROOM, FULL, WAITING, PREEMPTION, KILLED, CLEARED, FAILED = SCENARIOS


def sample(at: float, task: str, *jobs: JobView, try_number: int = 1) -> Sample:
    return Sample(at, task, try_number, jobs)


def one(state: str, pods: int = 0, uid: str = "a") -> JobView:
    return JobView(uid, state, pods)


def record(*samples: Sample, steps=(), logs=(), **more) -> Record:
    return Record(0.0, samples, steps, logs, **more)


def test_a_smooth_run():
    steps = [(float(n), n) for n in range(1, 61)]
    log = "\n".join(f"2026-11-20T10:00:00Z info [base] step {n}/60 loss 1.0" for n in range(1, 61))
    seen = judge(
        record(
            sample(1, "running", one("suspended")),
            sample(30, "deferred", one("active", 1)),
            sample(62, "success", one("complete")),
            sample(80, "success", one("complete")),
            steps=steps,
            logs=[log],
            live=44,
        )
    )
    assert (seen.task, seen.seconds, seen.jobs, seen.jobs_at_once, seen.left_behind) == ("success", 62, 1, 1, 0)
    assert (seen.steps_made, seen.steps_repeated, seen.steps_unwatched, seen.steps_logged) == (60, 0, 0, 60)
    assert cell(ROOM, seen) == (
        "**success** (try 1) after 62 s; 1 Job; 60 steps made of 60; log has 60 steps (44 of them while it ran)"
    )


def test_a_task_that_fails_while_its_job_goes_on():
    seen = judge(
        record(
            sample(1, "running", one("suspended")),
            sample(2, "failed", one("suspended")),
            sample(2 + SETTLE_S, "failed", one("active", 1)),
            sample(40, "failed", one("complete")),
            steps=[(5.0, 1), (30.0, 2)],
            logs=["2026 info all well\n2026 error No pods running with labels x"],
        )
    )
    assert (seen.left_behind, seen.steps_unwatched, seen.completed) == (1, 1, 1)
    assert seen.error == "No pods running with labels x"
    text = cell(FULL, seen)
    assert "**failed** (try 1) after 2 s, **although its Job completed**" in text
    assert "**Job left behind, 1 steps unwatched**" in text


def test_a_deletion_that_takes_some_seconds_leaves_nothing_behind():
    seen = judge(
        record(
            sample(1, "deferred", one("active", 1)),
            sample(2, "failed", one("active", 1)),
            sample(2 + SETTLE_S, "failed", one("deleting", 1)),
            sample(30, "failed"),
        )
    )
    assert (seen.left_behind, seen.jobs) == (0, 1)
    assert "although" not in cell(FAILED, seen)


def test_two_jobs_and_two_pods_of_one_at_once():
    seen = judge(
        record(
            sample(1, "running", one("active", 1)),
            sample(2, "up_for_retry", one("active", 2)),
            sample(3, "running", one("active", 1), one("active", 1, "b"), try_number=2),
            sample(4, "success", one("complete"), one("complete", uid="b"), try_number=2),
            steps=[(1.0, 1), (2.0, 2), (3.0, 1)],
        )
    )
    assert (seen.jobs, seen.jobs_at_once, seen.pods_at_once, seen.tries, seen.steps_repeated) == (2, 2, 2, 2, 1)
    text = cell(CLEARED, seen)
    assert "**2 Jobs at once**" in text and "3 steps made of 60, 1 of them again" in text


def test_what_waiting_costs():
    samples = [sample(1, "running", one("suspended")), sample(40, "success", one("complete"))]
    seen = judge(record(*samples, waiting=Waiting(30.0, 600, ("running",))))
    assert "while waiting 20 requests/s, worker slot held" in cell(WAITING, seen)
    assert "no worker slot held" in cell(WAITING, judge(record(*samples, waiting=Waiting(30.0, 0, ("deferred",)))))


def test_a_task_that_is_tried_again_has_not_ended_before():
    seen = judge(record(sample(1, "failed"), sample(5, "running"), sample(9, "success")))
    assert (seen.task, seen.seconds) == ("success", 9)


def test_trouble_is_told():
    seen = judge(Record(0.0, [], [], [], trouble="waited 420 s in vain for: the end"))
    assert cell(ROOM, seen) == "not played to its end: waited 420 s in vain for: the end"


def test_a_job_as_the_cluster_shows_it():
    meta = {"uid": "a", "name": "j"}
    running = {"metadata": {"ownerReferences": [{"uid": "a"}]}, "status": {"phase": "Running"}}
    other = {"metadata": {"ownerReferences": [{"uid": "b"}]}, "status": {"phase": "Running"}}
    job = {"metadata": meta, "spec": {"suspend": False}}
    assert view(job, [running, other]) == JobView("a", "active", 1)
    assert view({**job, "spec": {"suspend": True}}, []).state == "suspended"
    assert view({**job, "metadata": {**meta, "deletionTimestamp": "now"}}, []).state == "deleting"
    ended = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert view({**job, "status": ended}, []).state == "complete"


def test_requests_are_counted_by_contender():
    class Metrics:
        def get_text(self, path: str) -> str:
            start = "apiserver_flowcontrol_dispatched_requests_total{"
            return "\n".join(
                [
                    f'{start}flow_schema="anchor-theirs",priority_level="a"}} 7',
                    f'{start}flow_schema="anchor-theirs",priority_level="b"}} 1e+01',
                    f'{start}flow_schema="anchor-theirs-deferrable",priority_level="a"}} 100',
                ]
            )

    theirs, deferrable, ours = CONTENDERS
    assert [ground.requests(Metrics(), each) for each in (theirs, deferrable, ours)] == [17, 100, 0]  # type: ignore


def test_arguments(capsys):
    assert [each.name for each in cli.select("cleared,room")] == ["room", "cleared"]
    assert len(cli.select("")) == len(SCENARIOS)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--only", "nothing"])
    assert ended.value.code == 2
    assert "--only = nothing: no such scenario; there are room, full" in capsys.readouterr().err
    assert cli.main(["--list"]) == 0


def test_files_of_a_run(tmp_path):
    outcome = judge(record(sample(1, "running"), sample(9, "success", one("complete"))))
    report.write(tmp_path / "deep", {"room": {"ours": outcome}})
    found = json.loads((tmp_path / "deep" / "anchor.json").read_text())
    assert found["scenarios"]["room"]["ours"]["task"] == "success"
    rows = (tmp_path / "deep" / "anchor.md").read_text().splitlines()
    assert len(rows) == 3 and rows[2].startswith("| **Queue has room**: ") and "| - | - |" in rows[2]


def test_the_dag_file_makes_a_dag_of_every_scenario_for_every_contender(tmp_path):
    volumes = [{"name": "shared", "hostPath": {"path": "/s", "type": "Directory"}}]
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    told = {"image": "i", "env": {"A": "b"}, "queue": "q", "command": ["python3", "x"], "output": "/shared/anchor"}
    (tmp_path / "ground.json").write_text(json.dumps({**told, "volumes": volumes, "volume_mounts": mounts}))
    made = {}
    for each in CONTENDERS:
        file = tmp_path / f"{each.name}.py"
        file.write_text(ground.DAG_FILE.read_text())
        made |= runpy.run_path(str(file))
    commands = set()
    for scenario in SCENARIOS:
        for contender in CONTENDERS:
            task = made[dag_id(scenario, contender)].get_task("train")
            assert task.retries == scenario.retries and task.namespace == contender.name
            words = list(task.command) if contender.ours else [*task.cmds, *task.arguments]
            commands.add(" ".join(words).replace(dag_id(scenario, contender), "D"))
            if not contender.ours:
                assert task.deferrable == (contender.name == "theirs-deferrable") and task.wait_until_job_complete
                assert (task.discover_pods_retry_number > 1000) == scenario.patient
    assert len(commands) == 1  # the same training for all
