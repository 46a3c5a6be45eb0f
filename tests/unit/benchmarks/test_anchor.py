"""The comparison with Airflow's own operator: its pure parts, and that the Dag file makes every Dag."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterable

import pytest

from benchmarks.anchor import __main__ as cli
from benchmarks.anchor import ground, report
from benchmarks.anchor.record import SETTLE_S, JobView, Record, Sample, Waiting, cell, first_error, judge, view
from benchmarks.anchor.scenarios import CONTENDERS, SCENARIOS, contenders, dag_id

SCENARIO = {scenario.name: scenario for scenario in SCENARIOS}


def sample(at: float, task: str, *jobs: JobView, try_number: int = 1) -> Sample:
    return Sample(at, (task,), try_number, jobs)


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
    assert cell(SCENARIO["room"], seen) == (
        "**success** (try 1) after 62 s; 1 Job; 60 steps made of 60; log has 60 steps (44 of them while it ran); "
        "ended 0 s after its Job"
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
    text = cell(SCENARIO["full"], seen)
    assert "**failed** (try 1) after 2 s, **although its Job completed**" in text
    assert "**Job left behind, 1 steps unwatched**" in text


def test_the_first_error_comes_with_its_exception():
    failed = "2026-11-22T08:00:00Z info fine\n2026-11-22T08:00:01Z error Task failed with exception"
    known = first_error(["", f"{failed}\nAirflowException: No pods"])
    assert known == "Task failed with exception: AirflowException: No pods"
    assert first_error([f"{failed}\n2026-11-22T08:00:02Z info more"]) == "Task failed with exception"
    assert first_error(["2026 error alone"]) == "alone" and first_error(["2026 info fine"]) == ""


def test_a_task_that_fails_twice_while_both_its_jobs_go_on():
    seen = judge(record(sample(2, "failed", *two_jobs(), try_number=2)))
    assert cell(SCENARIO["full-retried"], seen).startswith(
        "**failed** (try 2) after 2 s, **although 2 Jobs completed**; 2 Jobs"
    )


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
    assert "although" not in cell(SCENARIO["marked-failed"], seen)


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
    text = cell(SCENARIO["cleared"], seen)
    assert (seen.jobs_at_once_s, seen.pods_at_once_s) == (1.0, 1.0)
    assert "**2 Jobs at once** for 1 s; 2 pods of one Job at once for 1 s" in text
    assert "3 steps made of 180, 1 of them again" in text


def test_what_waiting_costs():
    samples = [sample(1, "running", one("suspended")), sample(40, "success", one("complete"))]
    seen = judge(record(*samples, waiting=Waiting(30.0, 600, ("running",))))
    assert "while waiting 20 requests/s, worker slot held" in cell(SCENARIO["waiting"], seen)
    assert "no worker slot held" in cell(
        SCENARIO["waiting"], judge(record(*samples, waiting=Waiting(30.0, 0, ("deferred",))))
    )


def test_a_task_that_is_tried_again_has_not_ended_before():
    seen = judge(record(sample(1, "failed"), sample(5, "running"), sample(9, "success")))
    assert (seen.task, seen.seconds) == ("success", 9)


def test_trouble_is_told():
    seen = judge(Record(0.0, [], [], [], trouble="waited 420 s in vain for: the end"))
    assert cell(SCENARIO["room"], seen) == "not played to its end: waited 420 s in vain for: the end"


def test_what_never_ended_is_told_with_what_it_did():
    two = (one("complete"), one("complete", uid="b"))
    seen = judge(record(sample(1, "running", *two, try_number=2), steps=[(1.0, 1)], trouble="given up"))
    assert seen.trouble == "given up"
    text = cell(SCENARIO["killed-worker"], seen)
    assert text == "**no end** (try 2 running): given up; 2 Jobs; 1 steps made of 60; log has 0 steps"


def test_the_log_of_a_try_that_shows_the_job_of_an_earlier_one():
    logs = ["2026 info training of try 1\n2026 info step 1/60 loss 1", "2026 info [base] training of try 1"]
    adopted = judge(record(sample(9, "success", one("complete"), try_number=2), logs=logs))
    assert adopted.strange_logs == ()  # there is one Job: whose else should it be
    two = judge(record(sample(9, "success", one("complete"), one("complete", uid="b"), try_number=2), logs=logs))
    assert two.strange_logs == (2,)
    assert "**log of try 2 is of an earlier try's Job**" in cell(SCENARIO["cleared"], two)
    right = [logs[0], "2026 info training of try 2"]
    assert judge(record(sample(9, "success", *two_jobs(), try_number=2), logs=right)).strange_logs == ()


def two_jobs() -> tuple[JobView, JobView]:
    return one("complete"), one("complete", uid="b")


def test_whether_the_log_tells_of_the_preemption():
    done = [sample(1, "deferred", one("active", 1)), sample(9, "success", one("complete"))]
    quiet = judge(record(*done, logs=["2026 info dag_id=preemption__theirs"], event_at=1.0))
    told = judge(record(*done, logs=["2026 info attempt 1 on ondemand: preempted by default/urgent"], event_at=1.0))
    text = [cell(SCENARIO["preemption"], seen) for seen in (quiet, told)]
    assert "; log says nothing of the preemption; " in text[0] and "; log tells of the preemption; " in text[1]


def test_how_long_a_task_outlives_its_job():
    first = sample(1, "running", one("active", 1))
    seen = judge(record(first, sample(4, "running", one("complete")), sample(10, "success", one("complete"))))
    assert seen.lag_s == 6 and cell(SCENARIO["room"], seen).endswith("ended 6 s after its Job")
    early = judge(record(sample(2, "success", one("active", 1)), sample(9, "success", one("complete"))))
    assert early.lag_s is None
    again = judge(
        record(
            sample(4, "running", one("complete")),
            sample(6, "running", one("complete"), one("active", 1, "b")),
            sample(9, "success", *two_jobs()),
        )
    )
    assert again.lag_s == 0


def test_many_tasks_of_which_some_failed():
    jobs = [one("complete", uid=str(n)) for n in range(3)]
    seen = judge(
        Record(
            0.0,
            [
                Sample(1, ("running", "none", "none"), 1, tuple(jobs[:1])),
                Sample(5, ("failed", "success", "running"), 1, tuple(jobs)),
                Sample(8, ("failed", "success", "success"), 1, tuple(jobs)),
            ],
            [(1.0, 1), (1.0, 1), (1.0, 1)],
            ["2026 error No pods running with labels x", "", ""],
        )
    )
    assert (seen.task, seen.tasks, seen.failed, seen.seconds) == ("failed", 3, 1, 8)
    text = cell(SCENARIO["race"], seen)
    assert text == "**1 of 3 tasks failed** after 8 s, **although 3 of 3 Jobs completed**; 3 Jobs"
    well = judge(Record(0.0, [Sample(8, ("success",) * 3, 1, tuple(jobs))], [], []))
    assert cell(SCENARIO["race"], well) == "**success** of all 3 tasks after 8 s; 3 Jobs"


def test_a_dag_run_that_is_marked_failed_with_what_it_leaves_behind():
    jobs = tuple(one("suspended", uid=str(n)) for n in range(3))
    waits = Sample(1, ("deferred",) * 3, 1, jobs)
    failed = [Sample(at, ("failed", "failed", "skipped"), 1, jobs) for at in (2, 2 + SETTLE_S)]
    seen = judge(Record(0.0, [waits, *failed], [], [], event_at=1.5))
    assert (seen.task, seen.failed, seen.left_behind, seen.deferred_at_event) == ("failed", 2, 3, 3)
    text = cell(SCENARIO["run-failed"], seen)
    assert text == "**2 of 3 tasks failed** after 2 s; 3 of 3 tasks were deferred; 3 Jobs; **3 Jobs left behind**"


def test_the_state_of_several_tasks():
    def state(*states: str) -> str:
        return Sample(0.0, states, 1, ()).task

    assert state() == "none" and state("queued") == "queued" and state("deferred", "deferred") == "deferred"
    assert state("success", "running") == "under way" and state("failed", "none") == "under way"
    assert state("success", "failed") == "failed" and state("success", "skipped") == "success"


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

    theirs, deferrable, default, ours = CONTENDERS
    counted = [ground.requests(Metrics(), each) for each in (theirs, deferrable, default, ours)]  # type: ignore
    assert counted == [17, 100, 0, 0]


def test_arguments(capsys):
    assert [each.name for each in cli.select("cleared,room")] == ["room", "cleared"]
    assert len(cli.select("")) == len(SCENARIOS)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--only", "nothing"])
    assert ended.value.code == 2
    assert "--only = nothing: no such scenario; there are room, race, full" in capsys.readouterr().err
    assert cli.main(["--list"]) == 0


def test_files_of_a_run(tmp_path):
    outcome = judge(record(sample(1, "running"), sample(9, "success", one("complete")), load=3.2))
    report.write(tmp_path / "deep", {"room": {"ours": outcome}})
    found = json.loads((tmp_path / "deep" / "anchor.json").read_text())
    assert found["scenarios"]["room"]["ours"]["task"] == "success"
    rows = (tmp_path / "deep" / "anchor.md").read_text().splitlines()
    assert rows[2].startswith("| **Queue has room**: ") and "| - | - | - |" in rows[2]
    assert rows[4] == "Played (UTC): `room` 1970-01-01 00:00 at a load of up to 3."


def test_rows_of_an_earlier_run_are_kept_if_it_was_of_the_same_kind(tmp_path, monkeypatch):
    two = two_jobs()
    outcome = judge(
        record(sample(1, "running", *two), sample(9, "success", *two), waiting=Waiting(1.0, 2, ("running",)))
    )
    assert report.read(tmp_path) == {}
    report.write(tmp_path, {"room": {"ours": outcome}})
    kept = report.read(tmp_path)
    assert cell(SCENARIO["room"], kept["room"]["ours"]) == cell(SCENARIO["room"], outcome)
    report.write(tmp_path, {**kept, "full": {"ours": outcome}})
    assert list(report.read(tmp_path)) == ["room", "full"]
    content = json.loads((tmp_path / "anchor.json").read_text())
    content["scenarios"]["room"]["ours"]["unknown"] = 1
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "anchor.json").write_text(json.dumps(content))
    assert report.read(tmp_path / "older") == {}
    monkeypatch.setattr(report, "version", lambda package: "0")
    assert report.read(tmp_path) == {}


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
    assert len(made_dags := {key for key in made if "__" in key and not key.startswith("__")}) == sum(
        len(contenders(scenario)) for scenario in SCENARIOS
    ), made_dags
    for scenario in SCENARIOS:
        for contender in contenders(scenario):
            dag = made[dag_id(scenario, contender)]
            assert tuple(dag.task_ids) == scenario.task_ids and len(dag.roots) == (scenario.chains or scenario.tasks)
            task = dag.get_task(scenario.task_ids[0])
            assert task.retries == scenario.retries and task.namespace == contender.name
            assert task.get_logs == scenario.args.get("get_logs", True)
            words = list(task.command) if contender.ours else [*task.cmds, *task.arguments]
            own = (dag_id(scenario, contender), "D"), (f"--steps {scenario.steps} ", "")
            commands.add(_without(" ".join(words), own))
            if contender.ours:
                continue
            assert task.deferrable == (contender.name == "theirs-deferrable")
            assert task.wait_until_job_complete == (contender.name != "theirs-default")
            assert (task.discover_pods_retry_number > 1000) == bool(scenario.patient and contender.patience)
            if scenario.blind:
                assert len(task.get_pods(pod_request_obj=None, context={})) == 1
    assert len(commands) == 1  # the same training for all


def _without(text: str, replaced: Iterable[tuple[str, str]]) -> str:
    for old, new in replaced:
        text = text.replace(old, new)
    return text
