"""Waiting: returns what came true, rides out servers that are late, ends in time and says what it waited for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kueue_integration.errors import KubeError, Unreachable
from localcluster.demo.errors import AirflowApiError, StoryTimeoutError
from localcluster.demo.wait import wait_for


def script(*answers: object) -> Callable[[], object]:
    """A condition that gives these answers in turn; an exception among them is raised."""
    rest = list(answers)

    def condition() -> object:
        answer = rest.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return condition


def test_returns_the_first_thing_that_is_neither_none_nor_false() -> None:
    assert wait_for(script(None, False, 0, 1), "a number", 5, tick_s=0.001) == 0


def test_says_what_it_waited_for_and_what_it_saw() -> None:
    with pytest.raises(StoryTimeoutError, match=r"waited 0.05 s in vain for: rain; last seen: sunshine"):
        wait_for(lambda: None, "rain", 0.05, tick_s=0.01, detail=lambda: "sunshine")


def test_a_server_that_does_not_answer_is_asked_again() -> None:
    answers = (AirflowApiError("late"), AirflowApiError("busy", 503), Unreachable("gone"), "here")
    assert wait_for(script(*answers), "it", 5, tick_s=0.001) == "here"


def test_a_server_that_never_answers_is_named() -> None:
    def silent() -> None:
        raise AirflowApiError("no answer from Airflow")

    with pytest.raises(StoryTimeoutError, match="last error: no answer from Airflow"):
        wait_for(silent, "it", 0.03, tick_s=0.01)


@pytest.mark.parametrize("error", [AirflowApiError("forbidden", 403), KubeError("invalid", status=422)])
def test_a_refusal_is_not_waited_out(error: Exception) -> None:
    with pytest.raises(type(error)):
        wait_for(script(error, "never asked"), "it", 5)
