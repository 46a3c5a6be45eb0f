"""What the end of a job means for the task: its exit code, and which exception Airflow has to see. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kueue_integration.jobs.phase import OUT_OF_RETRIES
from singularity_proxy.protocol import exit_codes

from .compat import AirflowException, AirflowFailException, AirflowSkipException
from .exceptions import (
    TrainingDeletedError,
    TrainingFailedError,
    TrainingFailedForGoodError,
    TrainingInfrastructureError,
    TrainingPreemptedError,
    TrainingTimeoutError,
)

OUT_OF_PODS = "BackoffLimitExceeded"
"""Reason of a Job whose pods were killed too often: Kubernetes counts those itself, and is sometimes the first to see
it. A program that ends with an error never gets here: that fails the Job at once, by its pod failure policy."""


def codes(value: int | Collection[int] | None) -> frozenset[int]:
    """One exit code or several."""
    return frozenset() if value is None else frozenset((value,) if isinstance(value, int) else value)


def failure(
    event: Mapping[str, Any], skip_on: Collection[int], fail_on: Collection[int], infrastructure_retries: object
) -> AirflowException:
    """The exception for an event that is no success.

    :param skip_on: exit codes that skip the task
    :param fail_on: exit codes after which a retry is pointless
    """
    job, outcome, message = event["job"], event["status"], event["message"]
    where = f"Job {job['namespace']}/{job['name']}"
    if outcome == "timeout":
        return TrainingTimeoutError(f"{where} ran out of time: {message}; the Job is ended")
    if outcome == "preempted":
        return TrainingPreemptedError(f"{where} {message}; the Job is ended")
    if outcome == "deleted":
        return TrainingDeletedError(f"{where} was deleted while the task waited for it: {message}")
    code = exit_codes.failed_with(message)
    if code in skip_on:
        return AirflowSkipException(f"{where} ended with exit code {code}, which skips the task: {message}")
    if code in fail_on:
        return TrainingFailedForGoodError(f"{where} failed with exit code {code}, which is not tried again: {message}")
    if ((event.get("lineage") or {}).get("reason")) in (OUT_OF_RETRIES, OUT_OF_PODS):
        limit = f"infrastructure_retries = {infrastructure_retries} allows"
        allowed = "Kubernetes' backoffLimit allows" if infrastructure_retries is None else limit
        return TrainingInfrastructureError(
            f"{where} lost more attempts to the infrastructure than {allowed}: {message}"
        )
    return TrainingFailedError(f"{where} failed: {message}")


def for_good(error: AirflowException) -> bool:
    """Whether Airflow never tries again after `error`."""
    return isinstance(error, (AirflowFailException, AirflowSkipException))
