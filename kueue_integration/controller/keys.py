"""The keys of the platform, and when they change: authorities with their certificates, and keys for peers. Pure.

A job has its authorities in its pods' template, which cannot be changed, and the key of its peers by its age. So what
is new comes beside what is there: new jobs are told of both authorities, and the older one serves until the last job
that may not know the newer one has ended.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import secrets
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from singularity_proxy.protocol import decode

from ..contract import job_names
from . import certificates
from .errors import ConfigError

KEY = "keys.json"
"""Of the Secret."""
TLS_FILES = ("ca.crt", "tls.crt", "tls.key")
PEER_FILE = "peer-key"
"""Of a Secret that somebody else has made: an issuer, or the chart of release 0.1.0."""
LINGER_S = 3600.0
"""Who submits may have read the platform's settings so long ago."""
SOON_S = 60.0
"""A new key for peers is for jobs that are made later than this: by then all replicas have read it."""


@dataclass(frozen=True)
class Authority:
    """PEM texts of an authority and of the certificate that it has signed for the controller.

    `ca_key` is "" if the authority is none of ours: then nothing can be renewed. `made`: Unix seconds.
    """

    made: float
    ca: str
    ca_key: str
    cert: str
    key: str


@dataclass(frozen=True)
class PeerKey:
    """Key from which the sidecars' shared secrets are derived, for jobs made since then (Unix seconds)."""

    since: float
    key: str


@dataclass(frozen=True)
class Keys:
    """All that is valid, oldest first: the first authority serves. `rotation`: the last request that was met."""

    authorities: list[Authority]
    peers: list[PeerKey]
    rotation: str = ""

    @property
    def serves(self) -> Authority:
        """Return the authority whose certificate is shown to pods."""
        return self.authorities[0]

    @property
    def bundle(self) -> str:
        """Return the PEM text of what new jobs trust."""
        return "".join(item.ca.rstrip("\n") + "\n" for item in self.authorities)

    @property
    def scrapes(self) -> str:
        """Return the token of who may read the metrics that name jobs. It changes with the oldest key for peers."""
        return hmac.new(self.peers[0].key.encode(), b"metrics", "sha256").hexdigest()

    def peer(self, made: float) -> bytes:
        """Return the key for a job that was made at `made`, Unix seconds."""
        older = [item for item in self.peers if item.since <= made]
        return (older[-1] if older else self.peers[0]).key.encode()


def fresh(names: Sequence[str], now: float, days: int) -> Keys:
    """Return keys for a new installation, whose server has the DNS `names`."""
    return Keys([_authority(names, now, days)], [_peer(0.0)])


def kept(keys: Keys, names: Sequence[str], now: float, days: int, oldest_job: float | None, request: str) -> Keys:
    """Return what the keys should be at `now`.

    :param oldest_job: when the oldest live job was made, Unix seconds; None if no job lives
    :param request: what the Secret asks for; a new text asks for new keys
    """
    asked = bool(request) and request != keys.rotation
    newest = keys.authorities[-1]
    if asked:
        keys = replace(keys, rotation=request, peers=[*keys.peers, _peer(now + SOON_S)])
    last = certificates.due(newest.ca, now) or (not newest.ca_key and certificates.due(newest.cert, now))
    if asked or last:
        keys = replace(keys, authorities=[*keys.authorities, _authority(names, now, days)])
    renewed = [_renewed(item, names, now) for item in keys.authorities]
    since = now if oldest_job is None else min(now, oldest_job)
    while len(renewed) > 1 and renewed[1].made + LINGER_S <= since:
        renewed = renewed[1:]
    peers = keys.peers
    while len(peers) > 1 and peers[1].since <= since:
        peers = peers[1:]
    return replace(keys, authorities=renewed, peers=peers)


def joined(keys: Keys, other: Keys, made: float, now: float) -> Keys:
    """Return `keys` with those of release 0.1.0, which was installed after them, at `made`, and has made `other`.

    Jobs of that time trust its authority alone, so it serves until they have ended; ours is as new as if it came now.
    """
    if made <= max(item.made for item in keys.authorities) or other.serves.ca in {a.ca for a in keys.authorities}:
        return keys
    ours = [replace(item, made=now) for item in keys.authorities]
    since = [replace(other.peers[0], since=made), replace(keys.peers[-1], since=now)]
    return replace(keys, authorities=[replace(other.serves, made=made), *ours], peers=[*keys.peers, *since])


def _authority(names: Sequence[str], now: float, days: int) -> Authority:
    ca, ca_key = certificates.authority(now, days)
    return Authority(now, ca, ca_key, *certificates.leaf(ca, ca_key, names, now))


def _peer(since: float) -> PeerKey:
    return PeerKey(since, secrets.token_hex(32))


def _renewed(item: Authority, names: Sequence[str], now: float) -> Authority:
    """The authority with a certificate that lasts; it stays as it is where its own end is what comes first."""
    ends_with_it = certificates.expires(item.cert) >= certificates.expires(item.ca)
    if not item.ca_key or ends_with_it or not certificates.due(item.cert, now):
        return item
    cert, key = certificates.leaf(item.ca, item.ca_key, names, now)
    return replace(item, cert=cert, key=key)


# --- as a Secret, as files ----------------------------------------------------------------------------------------
def to_data(keys: Keys) -> dict[str, str]:
    """Return the Secret's `stringData`."""
    return {KEY: json.dumps(dataclasses.asdict(keys)), job_names.KEYS_SCRAPES: keys.scrapes}


def read(data: Mapping[str, str]) -> Keys | None:
    """Return what a Secret's `data` says, None where it says nothing yet. Raises ConfigError."""
    if not data.get(KEY):
        return None
    found = decode.message(Keys, _text(KEY, data[KEY]), 1 << 20)
    if isinstance(found, decode.Unreadable):
        raise ConfigError(f"{KEY} is {found.why}; restore the Secret from a backup")
    if not found.authorities or not found.peers:
        raise ConfigError(f"{KEY} has no authority or no key for peers; restore the Secret from a backup")
    return found


def read_classic(data: Mapping[str, str]) -> Keys | None:
    """Return the keys of a Secret with ca.crt, tls.crt, tls.key and peer-key, as release 0.1.0 made them; else None."""
    names = (*TLS_FILES, PEER_FILE)
    if not all(data.get(name) for name in names):
        return None
    return of_files({name: _text(name, data[name]) for name in names}, None)


def of_files(texts: Mapping[str, str], own: Keys | None) -> Keys:
    """Return the keys that somebody else has made; `own` has the key for peers, if `texts` have none."""
    ca, cert, key = (texts[name] for name in TLS_FILES)
    peers = [PeerKey(0.0, texts[PEER_FILE])] if own is None else own.peers
    return Keys([Authority(0.0, ca, "", cert, key)], peers)


def _text(name: str, value: str) -> str:
    try:
        return b64decode(value, validate=True).decode()
    except ValueError as error:
        raise ConfigError(f"{name} is no base64 of a text; restore the Secret from a backup") from error
