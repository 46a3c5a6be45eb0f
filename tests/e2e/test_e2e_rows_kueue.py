"""Every way in which Kueue itself ends an attempt: what the hold does, where the next one starts, what users read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rows import Rows

from kueue_integration.resources import LOCAL_QUEUE
from localcluster.demo.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def rows(stage: Stage, say: Callable[[str], None]) -> Iterator[Rows]:
    made = Rows(stage, "rows-kueue", say)
    yield made
    made.close()


def test_local_queue_hold_and_drain(rows: Rows) -> None:
    rows.queue("drained", {"ondemand": "100m"})
    job = rows.train("lq-drain", "drained", workers=2)
    job.until_steps(5)
    rows.patch(LOCAL_QUEUE, "drained", {"stopPolicy": "HoldAndDrain"})
    assert job.until_ended(1).ended_by == "LocalQueueStopped"
    rows.patch(LOCAL_QUEUE, "drained", {"stopPolicy": "None"})
    job.until_attempt(2)
    job.assert_exact(job.finish())
