"""A user has cleared a task while it ran: the scheduler writes that down for the next try, which cannot see it.

Such a task is `restarting` until its worker has ended, then it is retried as if it had failed. Only the Dag run's count
of clears tells of it afterwards, and that counts the clears of other tasks too.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from airflow.utils.state import TaskInstanceState
from sqlalchemy import inspect

from .. import compat
from ..memory import CLEARED_KEY

log = logging.getLogger(__name__)


def note(row: Any) -> None:
    """Write down that the try of `row`, a task instance that is about to be retried, was cleared, if it was.

    Trouble is a warning: a scheduler must go on. The next try then takes up the Job that is there.
    """
    try:
        if TaskInstanceState.RESTARTING not in (inspect(row).attrs.state.history.deleted or ()):
            return
        compat.note_clear(row, CLEARED_KEY, json.dumps(row.try_number))
    except Exception as error:  # whatever the database or another backend says
        log.warning("It was not written down that a user cleared %s: %s: %s", row, type(error).__name__, error)
