"""This Airflow's id: a Variable that its scheduler, triggerer or dag-processor makes at a start, if there is none yet.

Workers only read it: two of them that submit at the same time must not make two.
"""

from __future__ import annotations

import logging
from uuid import uuid4

from airflow.models.variable import Variable
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from ..identity import DEPLOYMENT

log = logging.getLogger(__name__)

DESCRIPTION = (
    "Tells this Airflow's training Jobs from those of others in the same namespace. Keep it; in a copy of this "
    "Airflow's database delete it: the next start makes another one."
)


def ensure() -> None:
    """Make the Variable unless it is there. Trouble is a warning: the next start tries again."""
    try:
        with create_session() as session:
            if session.scalar(select(Variable.id).where(Variable.key == DEPLOYMENT)) is None:
                session.add(Variable(DEPLOYMENT, uuid4().hex, DESCRIPTION))
    except IntegrityError:
        return  # another process, which starts as well, was quicker
    except Exception as error:  # whatever the database says: Airflow must start
        log.warning("Variable %s was not made: %s: %s", DEPLOYMENT, type(error).__name__, error)
