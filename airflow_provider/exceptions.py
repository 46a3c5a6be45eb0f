"""Every error that this package raises on purpose. All are AirflowExceptions: Airflow's retry rules apply to them.

    SingularityProviderError
        TrainingFailedError
            TrainingFailedForGoodError
            TrainingInfrastructureError
        TrainingPreemptedError
        TrainingDeletedError
        TrainingTimeoutError
        TrainingResultError
        KilledError
        ClusterUnreachableError
        InvalidTrainingError
"""

from __future__ import annotations

from .compat import AirflowException, AirflowFailException


class SingularityProviderError(AirflowException):  # type: ignore[misc]
    """Base class. The message is a sentence that says what happened and what to do."""


class TrainingFailedError(SingularityProviderError):
    """The Job failed: the program ended with an error, or its pods died too often.

    A retry starts a new Job.
    """


class TrainingFailedForGoodError(AirflowFailException, TrainingFailedError):  # type: ignore[misc]
    """The program ended with one of `fail_on_exit_codes`. Never retried."""


class TrainingInfrastructureError(TrainingFailedError):
    """More attempts were lost to nodes, pods and kills than `infrastructure_retries` allows.

    A retry starts a new Job.
    """


class TrainingPreemptedError(AirflowFailException, SingularityProviderError):  # type: ignore[misc]
    """Preempted more often than `max_preemptions`; the Job was deleted. Never retried: it would begin from step 0."""


class TrainingDeletedError(SingularityProviderError):
    """Somebody deleted the Job while the task waited for it.

    A retry starts a new Job.
    """


class TrainingTimeoutError(SingularityProviderError):
    """`execution_timeout` passed; the Job was deleted."""


class TrainingResultError(SingularityProviderError):
    """The Job succeeded, but what it returned cannot be read. A retry adopts the Job and reads it again."""


class KilledError(SingularityProviderError):
    """A user acted on the task while it was being submitted; the Job was deleted."""


class ClusterUnreachableError(SingularityProviderError):
    """The Kubernetes API gave no answer for longer than the operator's `api_outage_tolerance`."""


class InvalidTrainingError(AirflowFailException, SingularityProviderError):  # type: ignore[misc]
    """What the DAG asks for cannot work as written. Never retried: the same input fails the same way."""
