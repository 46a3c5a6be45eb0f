"""Which Job a starting try adopts, replaces or creates: the table of everything that can have happened before."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.identity import ANN_TASK, Claim, TaskKey, Try, belongs, decide, job_name

KEY = TaskKey("dag", "run", "task")
FIRST = Try(try_number=1, max_tries=1, clear_number=0)
RETRY = Try(try_number=2, max_tries=1, clear_number=0)
CLEARED = Try(try_number=2, max_tries=2, clear_number=1)
CLEARED_WHILE_RUNNING = Try(try_number=2, max_tries=1, clear_number=1, cleared_try=1)
ONCE = Try(try_number=1, max_tries=0, clear_number=0)
NO_RETRIES_LEFT = Try(try_number=2, max_tries=0, clear_number=1)
OTHER_TASK_CLEARED = Try(try_number=1, max_tries=1, clear_number=1)
OTHER_CLEARED = Try(try_number=2, max_tries=1, clear_number=1)
SECOND = Try(try_number=2, max_tries=2, clear_number=1, cleared_try=1)
LONG_AFTER = Try(try_number=3, max_tries=2, clear_number=1, cleared_try=1)


def job(generation: int = 0, made_by: Try = FIRST, state: str = "alive", uid: str | None = None) -> dict[str, Any]:
    claim = Claim(KEY, generation, made_by, "ns", job_name("task", KEY, generation))
    meta: dict[str, Any] = {
        "name": claim.name,
        "uid": uid or f"uid-{generation}",
        "annotations": {ANN_TASK: json.dumps(claim.to_dict())},
    }
    if state == "leaving":
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": state, "status": "True"}] if state in ("Complete", "Failed") else []
    return {"metadata": meta, "status": {"conditions": conditions}}


def record(generation: int = 0, made_by: Try = FIRST, uid: str | None = "uid-0", key: TaskKey = KEY) -> Claim:
    return Claim(key, generation, made_by, "ns", job_name("task", key, generation), uid)


@pytest.mark.parametrize(
    ("what", "now", "jobs", "known", "generation", "adopt", "removed"),
    [
        ("nothing yet", FIRST, [], None, 0, False, []),
        ("crash before create", RETRY, [], record(uid=None), 0, False, []),
        ("crash before create, then cleared", CLEARED, [], record(uid=None), 1, False, []),
        ("crash after create, before record", RETRY, [job()], record(uid=None), 0, True, []),
        ("worker lost while the Job runs", RETRY, [job()], record(), 0, True, []),
        ("store lost, Job runs", RETRY, [job()], None, 0, True, []),
        ("Job finished while nobody watched", RETRY, [job(state="Complete")], record(), 0, True, []),
        ("retry after a failure", RETRY, [job(state="Failed")], record(), 1, False, []),
        ("Job vanished", RETRY, [], record(), 1, False, []),
        ("Job on its way out", RETRY, [job(state="leaving")], record(), 1, False, ["uid-0"]),
        ("cleared while it runs", CLEARED, [job()], record(), 1, False, ["uid-0"]),
        ("cleared while it runs, store wiped", CLEARED, [job()], None, 1, False, ["uid-0"]),
        ("cleared after success", CLEARED, [job(state="Complete")], record(), 1, False, []),
        ("cleared while submitting", CLEARED_WHILE_RUNNING, [job()], record(), 1, False, ["uid-0"]),
        ("cleared while it runs, no retries", NO_RETRIES_LEFT, [job(made_by=ONCE)], record(), 1, False, ["uid-0"]),
        ("another task of the run cleared", OTHER_TASK_CLEARED, [job()], record(), 0, True, []),
        ("another cleared, worker lost", OTHER_CLEARED, [job()], record(), 0, True, []),
        ("another cleared, worker lost at the end", OTHER_CLEARED, [job(state="Complete")], record(), 0, True, []),
        ("a clear of before this Job", LONG_AFTER, [job(1, made_by=SECOND)], record(1, SECOND, "uid-1"), 1, True, []),
        ("second generation runs", RETRY, [job(state="Failed"), job(1)], record(1, uid="uid-1"), 1, True, []),
        ("an old generation still runs", RETRY, [job(), job(1)], record(1, uid="uid-1"), 1, True, ["uid-0"]),
        ("record of another task", FIRST, [], record(key=TaskKey("x", "y", "z")), 0, False, []),
    ],
)
def test_decision(
    what: str,
    now: Try,
    jobs: list[dict[str, Any]],
    known: Claim | None,
    generation: int,
    adopt: bool,
    removed: list[str],
) -> None:
    found = decide(KEY, now, "ns", "task", jobs, known)
    assert (found.claim.generation, found.adopt) == (generation, adopt), found.why
    assert [uid for _, uid in found.remove] == removed
    if adopt:
        assert found.claim.uid in {j["metadata"]["uid"] for j in jobs}
    else:
        assert found.claim.uid is None
        assert found.claim.made_by == now


def test_a_first_try_that_nobody_told_of_a_job_makes_one() -> None:
    found = decide(KEY, FIRST, "ns", "task", [job()], None, remembers=True)
    assert (found.claim.generation, found.adopt, found.remove) == (1, False, ((job()["metadata"]["name"], "uid-0"),))
    assert decide(KEY, FIRST, "ns", "task", [job()], record(), remembers=True).adopt
    assert decide(KEY, RETRY, "ns", "task", [job()], None, remembers=True).adopt
    assert decide(KEY, FIRST, "ns", "task", [job()], None, remembers=False).adopt  # dag.test()


def test_jobs_of_another_airflow_have_other_names_and_identities() -> None:
    here, there = (replace(record(), deployment=name, name=job_name("task", KEY, 0, name)) for name in ("a", "b"))
    assert len({here.name, there.name, record().name}) == len({here.identity, there.identity, record().identity}) == 3
    assert Claim.from_dict(json.loads(json.dumps(here.to_dict()))) == here
    legacy = record().to_dict()
    del legacy["deployment"]
    assert Claim.from_dict(legacy) == record()
    mine = job()
    mine["metadata"]["annotations"][ANN_TASK] = json.dumps(here.to_dict())
    assert belongs(mine, {"a"}) and not belongs(mine, {"b", ""})
    mine["metadata"]["annotations"][ANN_TASK] = "spoiled"
    assert belongs(mine, {"b"})


def test_a_new_generation_has_a_name_and_an_identity_of_its_own() -> None:
    names = {job_name("task", KEY, generation) for generation in range(5)}
    identities = {record(generation).identity for generation in range(5)}
    assert len(names) == len(identities) == 5


@given(prefix=st.text(max_size=80), dag=st.text(max_size=250), index=st.integers(-1, 10_000))
def test_job_names_are_dns_labels_that_kueue_integration_accepts(prefix: str, dag: str, index: int) -> None:
    from kueue_integration.spec.train_spec import TrainSpec
    from kueue_integration.spec.validate import validate

    key = TaskKey(dag, "manual__2026-01-01T00:00:00+00:00", "t", index)
    claim = Claim(key, 0, FIRST, "ns", job_name(prefix, key, 0))
    validate(TrainSpec(name=claim.name, queue="q", command=["true"], identity=claim.identity))
    assert job_name(prefix, key, 0) == claim.name


def test_map_indexes_and_runs_do_not_share_jobs() -> None:
    keys = [TaskKey("d", run, "t", index) for run in ("a", "b") for index in (-1, 0, 1)]
    assert len({job_name("t", key, 0) for key in keys}) == len({key.owner for key in keys}) == 6


@pytest.mark.parametrize(
    "spoiled", [None, "text", [], {}, {"key": {"dag_id": "d"}}, {**record().to_dict(), "generation": "many"}]
)
def test_a_spoiled_record_is_no_record(spoiled: object) -> None:
    assert Claim.from_dict(spoiled) is None


def test_a_record_survives_json() -> None:
    claim = record(3, CLEARED)
    assert Claim.from_dict(json.loads(json.dumps(claim.to_dict()))) == claim
