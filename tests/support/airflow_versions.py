"""What the provider's tests need of each version of Airflow (`make matrix-airflow`), and what a version is without."""

from __future__ import annotations

import pytest

from airflow_provider import compat

if compat.AIRFLOW >= (3, 2):
    from airflow.serialization.serialized_objects import DagSerialization
else:
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

if compat.AIRFLOW >= (3, 1):
    from airflow.sdk.log import mask_secret
else:
    from airflow.sdk.execution_time.secrets_masker import mask_secret

__all__ = ["NEEDS_STORE", "NEEDS_TABS", "DagSerialization", "mask_secret"]

NEEDS_STORE = pytest.mark.skipif(not compat.HAS_STORE, reason="before Airflow 3.3 there is no task state store")
NEEDS_TABS = pytest.mark.skipif(not compat.TABS, reason="before Airflow 3.1 plugins have no tabs")
