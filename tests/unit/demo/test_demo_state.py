"""The story of the state engine: its job is a valid one, its checks fail for what they name, its command exists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.spec.validate import validate
from localcluster import cli
from localcluster.demo import main, report, state
from localcluster.demo.compare import Comparison
from localcluster.demo.model import Machines, Outcome, Saved, StoryRecord

EXPECT = state.expectation(700)
SAME = Comparison(700, 1, ())


def attempts() -> list[AttemptRecord]:
    """4 -> 2 -> 4 -> 3 pods, each with as many ranks."""
    shapes = (("ondemand", 4), ("spot", 2), ("ondemand", 4), ("ondemand", 3))
    ends = ("Preempted", "Regrown", "Resized", "Finished")
    return [
        AttemptRecord(
            attempt=n + 1, reservation=str(n), flavor=flavor, pods=pods, ranks=pods, admitted_at=1000.0 + 100 * n,
            first_step=175 * n, first_step_at=1010.0 + 100 * n, last_step=175 * n + 174, ended_by=ends[n],
            preempted_by="job-urgent-1a2b3" if n == 0 else None, evicted_at=1050.0 + 100 * n if n < 3 else None,
            barrier_at=1051.0 + 100 * n, committed_at=1052.0 + 100 * n, released_at=1053.0 + 100 * n,
        )
        for n, (flavor, pods) in enumerate(shapes)
    ]  # fmt: skip


def outcome(comparison: Comparison = SAME, samples: tuple[str, ...] = (), **changed: dict[str, Any]) -> Outcome:
    """`third={"pods": 2}`: another number of pods in the third attempt."""
    history = attempts()
    for name, fields in changed.items():
        at = ("first", "second", "third", "fourth").index(name)
        history[at] = replace(history[at], **fields)
    saved = (Saved("d-a1-g1", 175, 4096, 1024),)
    record = StoryRecord(job="d", started_at=999.0, attempts=history, checkpoints=saved, samples=())
    return Outcome(record, comparison, samples)


def test_a_good_run_passes() -> None:
    content = report.build(EXPECT, outcome(), with_airflow=False)
    assert [check for check in content["checks"] if not check["ok"]] == []
    assert {"resized", "every sample once", "bit-identical"} <= {check["name"] for check in content["checks"]}


@pytest.mark.parametrize(
    ("bad", "failed"),
    [
        (outcome(second={"ranks": 4}), "ranks"),
        (outcome(third={"pods": 2, "ranks": 2}), "grown back"),
        (outcome(fourth={"pods": 4, "ranks": 4}), "resized"),
        (outcome(fourth={"flavor": "spot"}), "resized"),
        (outcome(comparison=Comparison(700, 4, ())), "bit-identical"),
        (outcome(comparison=Comparison(700, 1, ("rank 0: step 7 has another loss",))), "bit-identical"),
        (outcome(samples=("step 7: sample 3 is in epoch 0 for the second time",)), "every sample once"),
    ],
)
def test_each_thing_that_is_wrong_fails_the_verdict_by_name(bad: Outcome, failed: str) -> None:
    content = report.build(EXPECT, bad, with_airflow=False)
    assert content["verdict"] == "fail" and f"FAILED {failed}" in report.summary(content)


@pytest.mark.parametrize("seen", [{"ondemand": "aa", "spot": "aa"}, {"ondemand": "aa"}, {"ondemand": "aa", "spot": ""}])
def test_nodes_that_were_to_differ_and_do_not_fail_the_verdict(seen: dict[str, str]) -> None:
    good = replace(outcome(), machines=Machines("spot", ["AVX512F"], {"ondemand": "aa", "spot": "bb"}))
    content = report.build(EXPECT, good, with_airflow=False)
    assert content["verdict"] == "pass" and content["machines"]["lacks"] == ["AVX512F"]
    assert "nodes of spot were announced as other machines, without AVX512F" in report.summary(content)
    bad = report.build(EXPECT, replace(good, machines=Machines("spot", ["AVX512F"], seen)), with_airflow=False)
    assert bad["verdict"] == "fail" and "FAILED other machines" in report.summary(bad)


def test_the_picture_says_that_the_ranks_are_virtual(tmp_path: Path) -> None:
    main.write(tmp_path, EXPECT, outcome(), {"verdict": "pass"})
    assert "d: 4 virtual ranks, 700 steps, verdict pass" in (tmp_path / "timeline.svg").read_text()


def test_the_job_is_a_valid_one_without_a_privilege() -> None:
    job = state.spec("digits-1", EXPECT, "runs/demo/digits-1")
    validate(job)
    assert job.elastic and (job.workers, job.min_workers, job.namespace) == (4, 2, state.RESTRICTED)
    assert {"train_digits_state.py", "train_digits.py"} == set(job.files)
    assert state._options(job.command)["--output"] == "/shared/runs/demo/digits-1/output"


def test_the_digits_are_those_that_the_script_reads(tmp_path: Path) -> None:
    state.write_digits(tmp_path / "digits.npz")
    with np.load(tmp_path / "digits.npz") as data:
        assert data["x_train"].shape == (len(data["y_train"]), 8, 8) and data["x_train"].dtype == np.float32
        assert float(data["x_train"].max()) == 1.0 and set(data["y_train"]) == set(range(10))


@pytest.mark.parametrize("engine", ["process", "state"])
def test_the_command_plays_the_story_of_the_engine(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(main, "run_demo", lambda **words: given.update(words) or 3)
    words = [] if engine == "process" else ["--engine", engine, "--name", "mine"]
    assert CliRunner().invoke(cli.demo, words).exit_code == 3
    assert (given["engine"], given["cluster"]) == (engine, "mine" if words else "default")
    assert set(main.NAMESPACES) == {"process", "state"}


def test_another_engine_is_refused_with_those_that_there_are() -> None:
    done = CliRunner().invoke(cli.demo, ["--engine", "both"])
    assert done.exit_code == 2 and "'both' is not one of 'process', 'state'" in done.output
