"""The controller's API as seen by a sidecar: HTTPS, bearer token read again for every request, retries until a
deadline."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, TypeVar

import aiohttp

from ..errors import ConfigError, ControllerError, StaleAttemptError
from ..protocol import VERSION, decode
from ..protocol.messages import (
    CheckpointFailure,
    Command,
    CommitRequest,
    DamageReport,
    Hello,
    HelloReply,
    MessageError,
    Progress,
    ProgressReply,
    TrialReport,
    from_json,
    to_json,
)
from ..protocol.outputs import StoredOutputs
from .config import Config

T = TypeVar("T")
TRY_S: Final = 10.0
"""One request, seconds; a long poll gets its own limit."""
POLL_S: Final = 30.0
HELLO_POLL_S: Final = 5
"""The controller answers a hello at the latest then; a moment after it knows the leader's address."""
WAITED_S: Final = 1.0
"""A hello that took longer has waited."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
_FATAL: Final = frozenset({400, 404, 405, 413})
"""A retry cannot help. 401 and 403 can be temporary: tokens rotate, and the controller's view of pods lags."""
log = logging.getLogger(__name__)


class Controller:
    """Use as an async context manager. Raises ConfigError for a CA that is not PEM."""

    def __init__(self, config: Config) -> None:
        self._url = config.controller_url
        self._config = config
        self._token_file = config.token_file
        try:
            self._tls = ssl.create_default_context(cadata=config.controller_ca)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"SINGULARITY_CONTROLLER_CA is not a PEM certificate: {error}") from error
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Controller:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls, limit=8))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def hello(self, deadline: float, restarted: bool = False) -> HelloReply:
        """Announce this pod; waits until the leader is known.

        Raises StaleAttemptError, ControllerError. A sidecar that was `restarted` beside running ranks gets
        StaleAttemptError also when its attempt has ended with a checkpoint. Nobody waits for these ranks any more.
        """
        c = self._config
        hello = Hello(namespace=c.namespace, job=c.job, attempt=c.attempt, index=c.index, pod=c.pod, pod_ip=c.pod_ip)
        pause = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            # The answer has to come before the deadline.
            query = {"wait_s": str(int(min(HELLO_POLL_S, max(0.0, deadline - began - 1)))), "trial": "1"}
            query["version"] = VERSION
            status, body = await self._retry("POST", "/v1/hello", deadline, lambda: to_json(hello), query)
            if status == 200:
                return _parse(HelloReply, body)
            if restarted and _ended(body):
                raise StaleAttemptError("this attempt has ended with a checkpoint, which has been committed")
            if time.monotonic() >= deadline:
                raise ControllerError("the controller knows no leader (pod with index 0) of this attempt")
            if time.monotonic() - began >= WAITED_S:
                pause = FIRST_PAUSE_S
            await asyncio.sleep(pause)
            # An answer at once says that the attempt is over: its pods ask less and less often.
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def next_command(self, after: int) -> Command | None:
        """Long poll; None when there is no command. Raises StaleAttemptError, ControllerError (not retried)."""
        c = self._config
        query = {"namespace": c.namespace, "job": c.job, "attempt": str(c.attempt), "after": str(after)}
        status, body = await self._once("GET", "/v1/commands", None, POLL_S, query)
        if status == 204:
            return None
        if status != 200:
            raise _refusal("/v1/commands", status, body)
        return _parse(Command, body)

    async def progress(self, progress: Progress) -> ProgressReply:
        """Report progress once. Raises StaleAttemptError, ControllerError."""
        status, body = await self._once("POST", "/v1/progress", to_json(progress), TRY_S)
        if status != 200:
            raise _refusal("/v1/progress", status, body)
        return _parse(ProgressReply, body)

    async def commit(self, request: CommitRequest, deadline: float) -> None:
        """Commit; returns when the controller has it. Raises StaleAttemptError, ControllerError at the deadline."""
        began = time.monotonic()

        def body() -> str:
            return to_json(replace(request, barrier_ago_s=request.barrier_ago_s + time.monotonic() - began))

        await self._retry("POST", "/v1/commit", deadline, body)

    async def failure(self, failure: CheckpointFailure, deadline: float) -> None:
        """Report that a checkpoint is not possible. Raises StaleAttemptError, ControllerError at the deadline."""
        await self._retry("POST", "/v1/failure", deadline, lambda: to_json(failure))

    async def trial(self, report: TrialReport, deadline: float) -> None:
        """Report the end of a trial. Raises StaleAttemptError, ControllerError at the deadline."""
        await self._retry("POST", "/v1/trial", deadline, lambda: to_json(report))

    async def damage(self, report: DamageReport, deadline: float) -> None:
        """Report that a checkpoint cannot be restored. Raises StaleAttemptError, ControllerError at the deadline."""
        await self._retry("POST", "/v1/damage", deadline, lambda: to_json(report))

    async def result(self, text: str, deadline: float) -> None:
        """What rank 0 has returned. Raises StaleAttemptError, ControllerError at the deadline."""
        c = self._config
        query = {"namespace": c.namespace, "job": c.job, "attempt": str(c.attempt)}
        await self._retry("POST", "/v1/result", deadline, lambda: text, query)

    async def outputs(self, stored: StoredOutputs, deadline: float) -> None:
        """The outputs are complete. Raises StaleAttemptError, ControllerError at the deadline."""
        c = self._config
        query = {"namespace": c.namespace, "job": c.job, "attempt": str(c.attempt)}
        await self._retry("POST", "/v1/outputs", deadline, lambda: to_json(stored), query)

    async def _retry(
        self, method: str, path: str, deadline: float, body: Callable[[], str], query: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """`deadline`: of the monotonic clock. `body` is called for each try."""
        pause = FIRST_PAUSE_S
        while True:
            left = deadline - time.monotonic()
            problem: StaleAttemptError | ControllerError
            try:
                status, answer = await self._once(method, path, body(), max(0.5, min(TRY_S, left)), query)
            except ControllerError as error:
                problem = error
            else:
                if status < 300:
                    return status, answer
                problem = _refusal(path, status, answer)
                if status == 409 or status in _FATAL:
                    problem.passes = False
                    raise problem
            if time.monotonic() + pause >= deadline:
                raise ControllerError(f"{problem} (gave up at the deadline)") from problem
            log.info("%s; again in %.1f s", problem, pause)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _once(
        self, method: str, path: str, body: str | None, timeout_s: float, query: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        assert self._session is not None, "use `async with`"
        try:
            token = self._token_file.read_text().strip()
        except OSError as error:
            raise ControllerError(f"cannot read the service-account token: {error}") from error
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        options: dict[str, Any] = {"params": query} if query else {}
        try:
            async with self._session.request(
                method,
                self._url + path,
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                **options,
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ControllerError(f"controller {self._url}{path} cannot be reached: {reason}") from error


def _refusal(path: str, status: int, body: bytes) -> StaleAttemptError | ControllerError:
    text = body.decode("utf-8", "replace")[:500]
    if status == 409:
        return StaleAttemptError(f"the controller says that this attempt is not the current one: {text}")
    return ControllerError(f"controller answered {path} with {status}: {text}")


def _ended(body: bytes) -> bool:
    data = decode.json_value(body)
    return isinstance(data, dict) and data.get("ended") is True


def _parse(cls: type[T], body: bytes) -> T:
    try:
        return from_json(cls, body)
    except MessageError as error:
        raise ControllerError(f"the controller's answer cannot be understood: {error}") from error
