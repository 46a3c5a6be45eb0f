"""Messages between sidecars that prove who wrote them and that they are new, over plain HTTP. The key never travels.

A follower signs target, digest of the body, the leader's session, a number and a random nonce: HMAC-SHA256 (RFC 2104)
with the peer key. The leader accepts only growing numbers of a follower, each number once: a recorded request is
refused. A session lasts as long as the leader's process, so requests to a former leader are refused as well. The leader
signs its answer together with the signature of the request: an answer fits one request only.

A follower that does not know the session, or whose number is too small, gets 409 with both, signed. The messages
contain no secrets of other jobs: a reader of the network sees step counters and names of packs.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..protocol import decode
from ..protocol.decode import Unreadable

SESSION: Final = "Singularity-Session"
NUMBER: Final = "Singularity-Number"
NONCE: Final = "Singularity-Nonce"
DIGEST: Final = "Singularity-Digest"
"""SHA-256 of the body, so that the signature is checked before a large body is read."""
MAC: Final = "Singularity-Mac"
CONFLICT: Final = 409
"""Status of an answer that says which session and number are current."""


@dataclass(frozen=True)
class Current:
    """Body of a 409: what the next request of this follower has to use."""

    session: str
    above: int
    """The next number has to be larger."""


def _mac(key: str, *parts: str | bytes) -> str:
    """Of the parts and their boundaries, hex."""
    state = hmac.new(key.encode(), digestmod=hashlib.sha256)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()


def answer_mac(key: str, request_mac: str, status: int, body: bytes) -> str:
    """Signature of the answer to one request."""
    return _mac(key, "answer", request_mac, str(status), body)


def _request_mac(key: str, headers: Mapping[str, str], target: str) -> str:
    return _mac(key, "request", *(headers.get(name, "") for name in (SESSION, NUMBER, NONCE, DIGEST)), target)


def authentic(key: str, headers: Mapping[str, str], target: str) -> bool:
    """Whether somebody who has the key wrote this request. It may be an old one: see `Numbers`."""
    given = headers.get(MAC, "")
    return given.isascii() and hmac.compare_digest(given, _request_mac(key, headers, target))


def whole(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether `body` is the signed body."""
    return headers.get(DIGEST, "") == hashlib.sha256(body).hexdigest()


class Signer:
    """A follower's end: signs requests, and checks that an answer is the leader's and belongs to the request.

    :param clock: nanoseconds; a sidecar that starts again goes on above the numbers of its predecessor
    """

    def __init__(self, key: str, clock: Callable[[], int] = time.time_ns) -> None:
        self._key = key
        self._clock = clock
        self._session = ""
        self._number = 0

    def sign(self, target: str, body: bytes) -> dict[str, str]:
        """Headers of a new request."""
        # Microseconds are exact in JSON.
        self._number = max(self._number + 1, self._clock() // 1000)
        headers = {
            SESSION: self._session,
            NUMBER: str(self._number),
            NONCE: secrets.token_hex(16),
            DIGEST: hashlib.sha256(body).hexdigest(),
        }
        return {**headers, MAC: _request_mac(self._key, headers, target)}

    def check(self, sent: Mapping[str, str], status: int, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether the answer to the request with the headers `sent` comes from somebody who has the key."""
        given = headers.get(MAC, "")
        return given.isascii() and hmac.compare_digest(given, answer_mac(self._key, sent[MAC], status, body))

    def learn(self, current: Current) -> None:
        """What an authentic 409 says."""
        self._session = current.session
        self._number = max(self._number, current.above)


class Numbers:
    """The leader's end: each number of a follower counts once. It remembers one number for each follower."""

    def __init__(self) -> None:
        self.session = secrets.token_hex(16)
        self._last: dict[int, int] = {}

    def take(self, index: int, headers: Mapping[str, str]) -> Current | None:
        """None: the authentic request of follower `index` is new. Otherwise the session and number that it has to use
        instead."""
        number = decode.whole(headers.get(NUMBER, ""))
        last = self._last.get(index, 0)
        if headers.get(SESSION) != self.session or isinstance(number, Unreadable) or number <= last:
            return Current(self.session, last)
        self._last[index] = number
        return None
