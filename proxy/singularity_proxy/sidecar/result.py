"""What rank 0 has returned, on its way from the pod's launcher to the Job: small, and brought until it has arrived."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from ..errors import ControllerError, StaleAttemptError
from .config import Config
from .controller_client import Controller

LOOK_S: Final = 0.5
TRY_S: Final = 10.0
"""One round of tries while the job goes on."""
LAST_S: Final = 60.0
"""After the pod's ranks have ended; the pod's grace period may be shorter."""
log = logging.getLogger(__name__)


class ResultBringer:
    """Of the pod with rank 0."""

    def __init__(self, config: Config, controller: Controller) -> None:
        self._file = config.handed_result
        self._controller = controller
        self._over = False
        """It has arrived, or nobody wants it."""
        self._one = asyncio.Lock()

    async def run(self) -> None:
        """As soon as it is there: a pod that is lost later takes nothing along. Never returns."""
        while True:
            await self.bring(TRY_S)
            await asyncio.sleep(LOOK_S)

    async def bring(self, limit_s: float) -> None:
        """What is there and has not arrived yet. Trouble is only logged."""
        deadline = time.monotonic() + limit_s
        async with self._one:
            if self._over or not self._file.exists():
                return
            try:
                await self._controller.result(self._file.read_text(), deadline)
            except StaleAttemptError as error:
                self._over = True
                log.warning("what rank 0 has returned is not wanted: %s", error)
            except (ControllerError, OSError, ValueError) as error:
                self._over = isinstance(error, ControllerError) and not error.passes
                log.warning("what rank 0 has returned has not arrived: %s", error)
            else:
                self._over = True
                log.info("what rank 0 has returned is on the Job")
