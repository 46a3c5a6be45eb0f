"""The hold's policy, evaluated by a real API server: every way out of it."""

from __future__ import annotations

import time

import pytest
from api_server import ADMIN, CONTROLLER, TEAM, TENANT, Policies

from kueue_integration.contract import job_names
from kueue_integration.kube import server_time
from kueue_integration.kube.resources import JOB

SENTENCE = "a checkpoint is being taken"
NO_STAMPS = {"metadata": {"managedFields": [{}]}}
FOREVER = "2099-01-01T00:00:00Z"


def test_only_kueue_is_held_back_and_only_while_the_hold_is_armed(policies: Policies) -> None:
    job = policies.job("armed")
    assert SENTENCE in policies.suspend(job)
    for user in (ADMIN, CONTROLLER, TENANT):
        assert policies.suspend(job, user) == ""
    for text in ("released", "off", "", "nonsense"):
        assert policies.suspend(policies.job("armed", **{job_names.ANN_HOLD: text})) == "", text


def test_a_controller_that_is_silent_holds_nothing(policies: Policies) -> None:
    job = policies.job("silent", **{job_names.ANN_HOLD_DEADLINE: FOREVER})
    assert policies.suspend(job)
    policies.renew(ago=60)
    policies.eventually(lambda: policies.suspend(job) == "", "the Lease has ended")


@pytest.mark.parametrize("deadline", ["2020-01-01T00:00:00Z", "soon", ""])
def test_a_deadline_that_has_passed_or_cannot_be_read_holds_nothing(policies: Policies, deadline: str) -> None:
    assert policies.suspend(policies.job("late", **{job_names.ANN_HOLD_DEADLINE: deadline})) == ""


def test_the_controller_lets_a_job_go_without_a_write_on_it(policies: Policies) -> None:
    """Whatever its owner writes: nobody but the controller writes the Lease."""
    job = policies.job("overdue", **{job_names.ANN_HOLD_DEADLINE: FOREVER})
    other = policies.job("other")
    now = int(time.time())
    policies.renew(overdue=f"{'0' * 36}/{now} {job['metadata']['uid']}/{now + 3600}")
    policies.renew(overdue=f"{'0' * 36}/{now} {job['metadata']['uid']}/{now} {other['metadata']['uid']}/{now + 3600}")
    policies.eventually(lambda: policies.suspend(job) == "", "the Lease names it")
    assert SENTENCE in policies.suspend(other), "its hold is not over yet"
    policies.renew()
    policies.eventually(lambda: policies.suspend(job), "the Lease does not name it any more")


def test_a_lease_full_of_jobs_is_still_read(policies: Policies) -> None:
    job, other = policies.job("one-of-many"), policies.job("other")
    entries = [*(f"{number:036d}/1800000000" for number in range(1999)), f"{job['metadata']['uid']}/1700000000"]
    policies.renew(overdue=" ".join(entries))
    policies.eventually(lambda: policies.suspend(job) == "", "the Lease names it")
    assert SENTENCE in policies.suspend(other)


def test_a_job_whose_times_were_removed_is_not_held(policies: Policies) -> None:
    """The policy has no other clock: with a dead controller such a Job would be held for ever."""
    job = policies.job("stampless", **{job_names.ANN_HOLD_DEADLINE: FOREVER})
    bare = policies.server.kube(TENANT).patch(JOB, TEAM, "stampless", NO_STAMPS)
    assert "managedFields" not in bare["metadata"], "the API server keeps none for such an object"
    policies.renew(ago=3600)
    policies.eventually(lambda: policies.suspend(job) == "", "nothing is held without a clock")
    policies.renew()
    assert policies.suspend(job) == ""


def test_forged_times_only_end_a_hold(policies: Policies) -> None:
    job = policies.job("forged", **{job_names.ANN_HOLD_DEADLINE: server_time.to_whole(4_000_000_000)})
    field = {"manager": "x", "operation": "Update", "apiVersion": "batch/v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
    stamps = [{**field, "time": "2001-01-01T00:00:00Z"}]
    policies.server.kube(TENANT).patch(JOB, TEAM, "forged", {"metadata": {"managedFields": stamps}})
    policies.renew(ago=60)
    policies.eventually(lambda: policies.suspend(job) == "", "the request itself has the API server's time")
