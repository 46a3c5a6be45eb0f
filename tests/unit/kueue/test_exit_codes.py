"""One table says what an exit code of the training container means; whatever else knows codes is made from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from adoption_cases import plain
from kueue_samples import PLATFORM
from pod_failure_policy import action

from kueue_integration.adoption import trainjob
from kueue_integration.adoption.patch import adopted
from kueue_integration.adoption.trainjob import CONTAINER_NODE
from kueue_integration.job import states
from kueue_integration.manifests.job_manifests import failure_rules
from kueue_integration.spec.train_spec import TrainSpec
from kueue_integration.spec.validation import problems
from singularity_proxy import errors
from singularity_proxy.launcher.errors import LauncherError
from singularity_proxy.protocol import exit_codes
from singularity_proxy.protocol.exit_codes import TABLE, Row


def code_of(row: Row) -> int:
    return 1 if row.code is None else row.code


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for one in cls.__subclasses__():
        yield one
        yield from subclasses(one)


@pytest.mark.parametrize("container", ["train", CONTAINER_NODE])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.code))
def test_the_failure_policy_does_what_the_table_says(row: Row, container: str) -> None:
    rules = failure_rules(container)
    assert action(rules, code_of(row), container) == row.action
    assert action(rules, code_of(row), container, disrupted=True) == ("Complete" if row.code == 0 else "Ignore")


def test_every_code_has_one_row_and_what_is_no_code_of_ours_is_the_programs() -> None:
    codes = [row.code for row in TABLE]
    assert len(codes) == len(set(codes)) and None in codes
    rules = failure_rules()
    assert {code for code in range(256) if action(rules, code) != exit_codes.of(code).action} == set()
    assert exit_codes.of(1) == exit_codes.of(139) == exit_codes.of(255)


def test_a_program_cannot_end_with_a_code_that_lets_its_job_run_for_ever() -> None:
    rules = failure_rules()
    assert {action(rules, exit_codes.of_program(code)) for code in range(256)} == {"Complete", "Count", "FailJob"}
    assert [exit_codes.of_program(code) for code in (0, 3, 137)] == [0, 3, 137]


def test_codes_to_go_on_after_are_counted_and_none_of_ours() -> None:
    rules = failure_rules(resumed=[75, 3])
    assert [action(rules, code) for code in (75, 3, 137, 4)] == ["Count", "Count", "Count", "FailJob"]
    for code in sorted(exit_codes.RESERVED):
        spec = TrainSpec("a", "q", ["x"], resume_on_exit_codes=(code,))
        told = [text for field, _, text in problems(spec) if field == "resume_on_exit_codes"]
        assert told and exit_codes.of(code).happened in told[0]


@pytest.mark.parametrize("cls", [LauncherError, *subclasses(LauncherError)])
def test_every_error_of_the_launcher_has_a_row(cls: type[LauncherError]) -> None:
    row = exit_codes.of(cls("why").exit_code)
    assert row.ours and row.code is not None
    assert cls("why", exit_codes.LOST).exit_code == exit_codes.LOST


@pytest.mark.parametrize("cls", [errors.ProxyError, *subclasses(errors.ProxyError)])
def test_an_error_that_passes_loses_the_attempt_and_no_job(cls: type[errors.ProxyError]) -> None:
    error = cls.__new__(cls)  # their arguments differ
    row = exit_codes.of(error.exit_code)
    assert row.ours and row.code is not None
    if error.passes:
        assert row.action == "Ignore"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.code))
def test_what_is_read_of_a_pod(row: Row) -> None:
    def ended(**more: str) -> str | None:
        state = {"terminated": {"exitCode": code_of(row), **more}}
        found = states.end_of({"status": {"containerStatuses": [{"name": "train", "state": state}]}})
        return None if found is None else found.text

    assert ended() == (f"it ended with code {code_of(row)}: {row.reads}" if row.reads else None)
    if row.code != exit_codes.FINISHED:
        assert ended(message="words of its own") == "words of its own"


def test_what_is_read_of_a_job_that_has_failed() -> None:
    said = "Container train for pod team/a-0-x failed with exit code 70 matching FailJob rule at index 2"
    assert exit_codes.failed_with(said) == 70
    assert exit_codes.explained(said) == f"{exit_codes.of(70).reads}. Kubernetes: {said}"
    assert exit_codes.failed_with("Job was active longer than specified deadline") is None
    assert exit_codes.explained("it was late") == "it was late"


def test_adopted_jobs_have_the_same_rules() -> None:
    (replicated,) = trainjob.runtime(PLATFORM)["spec"]["template"]["spec"]["replicatedJobs"]
    rules = json.dumps(replicated["template"]["spec"]["podFailurePolicy"])
    job = json.dumps(adopted(plain(), PLATFORM)["spec"]["podFailurePolicy"])
    for text in (rules, job):
        assert set(exit_codes.IGNORED) <= {int(number) for number in re.findall(r"\d+", text)}
