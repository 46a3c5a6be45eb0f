"""Messages on an object are parsed when their text changes, not when somebody looks; and what is kept is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from kueue_integration.contract import annotation_values, attempt_records, job_names
from kueue_integration.contract.record_types import AttemptRecord
from singularity_proxy.protocol import decode
from singularity_proxy.protocol.messages import to_json


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The texts that were parsed, in order."""
    texts: list[object] = []
    parse = decode.json_value

    def seen(text: object, *rest: Any, **more: Any) -> Any:
        texts.append(text)
        return parse(text, *rest, **more)

    monkeypatch.setattr(decode, "json_value", seen)
    monkeypatch.setattr(annotation_values, "_parsed", annotation_values._Parsed(annotation_values.KEPT_BYTES))
    return texts


def _history(*attempts: int) -> str:
    return to_json([AttemptRecord(number, f"w/{number}", "gold", 2, 2, 1.0) for number in attempts])


def _job(uid: str, history: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "annotations": {job_names.ANN_HISTORY: history}}}


def test_a_new_copy_of_a_job_is_not_parsed_again(parsed: list[object]) -> None:
    for step in range(3):
        job = _job("u1", _history(1, 2))
        job["metadata"]["annotations"][job_names.ANN_PROGRESS] = f'{{"attempt":2,"step":{step},"at":5.0}}'
        assert [record.attempt for record in attempt_records.history(job)] == [1, 2]
    assert parsed == [_history(1, 2)]


def test_a_changed_text_is_parsed_and_the_old_one_forgotten(parsed: list[object]) -> None:
    for text in (_history(1), _history(1, 2), _history(1)):
        assert to_json(attempt_records.history(_job("u1", text))) == text
    assert parsed == [_history(1), _history(1, 2), _history(1)]


def test_objects_without_a_uid_are_not_taken_for_each_other(parsed: list[object]) -> None:
    for number in (1, 2, 1):
        found = attempt_records.history({"metadata": {"annotations": {job_names.ANN_HISTORY: _history(number)}}})
        assert [record.attempt for record in found] == [number]


def test_what_cannot_be_read_says_so_each_time(parsed: list[object]) -> None:
    first, second = (attempt_records.told_history(_job("u1", "[{")) for _ in range(2))
    assert isinstance(first, decode.Unreadable) and first is second


def test_a_caller_that_changes_its_list_changes_nobody_elses(parsed: list[object]) -> None:
    attempt_records.history(_job("u1", _history(1, 2))).clear()
    assert len(attempt_records.history(_job("u1", _history(1, 2)))) == 2


def test_no_more_text_is_kept_than_the_bound_and_the_oldest_object_goes_first(
    parsed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    each = len(_history(1))
    monkeypatch.setattr(annotation_values, "_parsed", annotation_values._Parsed(2 * each))
    for uid in ("u1", "u2", "u1", "u3", "u1", "u2"):
        attempt_records.history(_job(uid, _history(1)))
    assert len(parsed) == 4  # u1, u2, u3 in place of u2, and u2 once more


def test_a_job_that_is_gone_leaves_nothing(parsed: list[object]) -> None:
    job = _job("u1", _history(1))
    for _ in range(2):
        attempt_records.history(job)
        attempt_records.forget(job)
    assert len(parsed) == 2
    assert annotation_values._parsed._bytes == 0
