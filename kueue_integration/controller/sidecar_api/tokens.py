"""Whose bearer token is it? The claims of the token itself are checked first, then the API server is asked:
TokenReview.

A review costs a thread and a request, and anybody who reaches the port can cause one. So tokens that cannot be meant
for us cost no review, and refusals are remembered. Reviews have their own threads: the pods' calls never wait for them.
Everything here except the review itself runs in the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from singularity_proxy.protocol import decode, names

from ...kube.client import Kube
from ..errors import RefusedError

K = TypeVar("K")
V = TypeVar("V")
POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
CACHE_S = 60.0
STALE_S = 240.0
"""For so much longer at most, a token that was accepted is believed while the API server does not say what it thinks of
it now. One that answers is asked at once after CACHE_S, so this is for one that is slow or away: no commit and no note
waits for it. The longest life of a token that is no longer good is therefore CACHE_S where the API server answers, and
CACHE_S + STALE_S where it does not. In that time it says what it could say before, for the same attempt of the same
job, and only while our copy of the pods has its pod, by UID: a pod that is seen to go is heard no more, whatever its
token. All that it says except progress is written through the API server, the very one that does not answer.
"""
CACHE_MAX = 10_000
LONGEST = 8192
"""Bytes of a token: ten times what the API server makes."""
SKEW_S = 60.0
"""Seconds after its expiry for which a token is still sent to the API server, whose clock decides."""
REVIEWERS = 4
WAITING = 512
"""Reviews at a time, waiting ones included: at most 4 MB of tokens. After a restart all jobs ask at once."""
KEPT = 64
"""Of these, for tokens that were accepted before: no flood of others keeps a pod from being heard again."""
FREE = 10.0
AGAIN_S = 6.0
"""An address may cause FREE refusals in a row, and one more after each AGAIN_S."""


@dataclass(frozen=True)
class Speaker:
    """The pod that a token was made for."""

    namespace: str
    pod: str
    uid: str


class Reviews:
    """A reviewed token is believed for a minute: pods report once a second. Then it is reviewed beside its calls.

    `now`: the API server's time, Unix seconds. `refused(cause)` is called for each refusal; there are only a few
    causes.
    """

    def __init__(
        self,
        kube: Kube,
        now: Callable[[], float] = time.time,
        refused: Callable[[str], None] = lambda cause: None,
    ) -> None:
        self._kube, self._now, self._tell = kube, now, refused
        self._pool = ThreadPoolExecutor(REVIEWERS, thread_name_prefix="review")
        self._known: dict[bytes, tuple[float, Speaker]] = {}
        self._refused: dict[bytes, tuple[float, str]] = {}
        self._running: dict[bytes, asyncio.Future[Speaker]] = {}
        self._left: dict[str, tuple[float, float]] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def known(self, token: str) -> Speaker | None:
        """The pod that `token` was made for, where that need not be asked now."""
        found = self._known.get(_digest(token))
        return found[1] if found is not None and found[0] > time.monotonic() else None

    async def speaker(self, token: str, address: str) -> Speaker:
        """The pod that `token`, sent from `address`, was made for. Raises RefusedError 401 or 429, KubeError."""
        digest, moment = _digest(token), time.monotonic()
        found, refusal = self._known.get(digest), self._refused.get(digest)
        if found is not None and found[0] > moment:
            return found[1]
        if refusal is not None and refusal[0] > moment:
            raise self._no("again", refusal[1])
        why = unverified(token, self._now())
        if why:
            raise self._no("form", why)
        running = self._running.get(digest)
        full = len(self._running) >= WAITING - (KEPT if found is None else 0)
        if found is not None and found[0] + STALE_S > moment:
            if running is None and not full:
                self._begin(digest, token, address)
            return found[1]
        if running is None:
            # A token that was accepted before is reviewed again, however many others at this address (for example a
            # NAT) are refused.
            if full or (found is None and self._allowance(address, moment) < 1.0):
                raise self._no("limit", "too many unknown tokens: ask again", 429)
            running = self._begin(digest, token, address)
        return await asyncio.shield(running)

    def _begin(self, digest: bytes, token: str, address: str) -> asyncio.Future[Speaker]:
        self._charge(address, 1.0)
        running = asyncio.get_running_loop().run_in_executor(self._pool, self._review, token)
        self._running[digest] = running
        running.add_done_callback(lambda done: self._reviewed(digest, address, done))
        return running

    def _no(self, cause: str, text: str, status: int = 401) -> RefusedError:
        self._tell(cause)
        return RefusedError(status, text)

    def _reviewed(self, digest: bytes, address: str, done: asyncio.Future[Speaker]) -> None:
        self._running.pop(digest, None)
        error, until = None if done.cancelled() else done.exception(), time.monotonic() + CACHE_S
        if isinstance(error, RefusedError):
            self._known.pop(digest, None)
            _remember(self._refused, digest, (until, str(error)))
            self._tell("review")
            return
        self._charge(address, -1.0)  # only refusals are paid for
        if error is None and not done.cancelled():
            _remember(self._known, digest, (until, done.result()))

    def _charge(self, address: str, amount: float) -> None:
        moment = time.monotonic()
        _remember(self._left, address, (self._allowance(address, moment) - amount, moment))

    def _allowance(self, address: str, moment: float) -> float:
        left, at = self._left.get(address, (FREE, moment))
        return min(FREE, left + (moment - at) / AGAIN_S)

    def _review(self, token: str) -> Speaker:
        """Blocks."""
        status = self._kube.review_token(token, [names.TOKEN_AUDIENCE])
        if not status.get("authenticated") or names.TOKEN_AUDIENCE not in (status.get("audiences") or ()):
            raise RefusedError(401, f"the bearer token is not valid for audience {names.TOKEN_AUDIENCE}")
        user = status.get("user") or {}
        extra = user.get("extra") or {}
        parts = str(user.get("username", "")).split(":")
        pod, uid = (extra.get(POD_NAME) or [""])[0], (extra.get(POD_UID) or [""])[0]
        if parts[:2] != ["system", "serviceaccount"] or len(parts) != 4 or not pod or not uid:
            raise RefusedError(401, "the bearer token is not bound to a pod: use the projected service account token")
        return Speaker(parts[2], pod, uid)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def unverified(token: str, now: float) -> str:
    """Why a token cannot be ours, by its own claims; "" if it may be: the claims are not proven yet."""
    if len(token) > LONGEST or token.count(".") != 2:
        return "the bearer token is not a service account token"
    payload = token.split(".")[1]
    try:
        text = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    except (ValueError, binascii.Error):
        return "the bearer token is not a service account token"
    claims = decode.json_value(text, LONGEST)
    if not isinstance(claims, dict):
        return "the bearer token is not a service account token"
    audience, expiry = claims.get("aud"), claims.get("exp")
    if names.TOKEN_AUDIENCE not in (audience if isinstance(audience, list) else [audience]):
        return f"the bearer token is not valid for audience {names.TOKEN_AUDIENCE}"
    if not isinstance(expiry, (int, float)) or now > expiry + SKEW_S:
        return "the bearer token has expired"
    return ""


def _remember(cache: dict[K, V], key: K, value: V) -> None:
    """Newest last; the oldest goes when there are too many."""
    cache.pop(key, None)
    if len(cache) >= CACHE_MAX:
        del cache[next(iter(cache))]
    cache[key] = value
