"""Keeps the platform's keys in a Secret of the controller's own, and has the API of the pods use them.

The chart makes the Secret without content, so neither `helm upgrade` nor Argo CD or Flux touches what stands in it. The
replica that acts fills an empty one, and renews. All replicas read it again and again, and use what it says.

Somebody may have deleted the Secret: the replicas go on with what they have read, and write it into the next one.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..contract import job_names, platform_objects
from ..errors import ChartError, Conflict, KubeError
from ..job import states
from ..kube.client import Kube
from ..kube.resources import SECRET, Object
from . import certificates, keys
from .errors import ConfigError
from .forever import forever
from .keys import Keys
from .metrics import Metrics

log = logging.getLogger(__name__)

LOOK_S = 5.0


@dataclass(frozen=True)
class Terms:
    """:param names: of the server, DNS :param days: for which an authority is valid
    :param folder: where the keys of somebody else are mounted (`tls.existingSecret`, cert-manager); None: ours"""

    namespace: str
    names: Sequence[str]
    days: int = 3650
    folder: Path | None = None


def server_names(namespace: str) -> list[str]:
    """Return the DNS names by which pods know the controller, the one of `controller_url` first."""
    service = job_names.CONTROLLER_NAME
    host = f"{service}.{namespace}.svc"
    return [host, service, f"{service}.{namespace}", f"{host}.cluster.local"]


class KeyKeeper:
    """`oldest_job()` says when the oldest live job was made, `leads()` whether this replica acts, `now()` the time of
    the API server; `changed(keys)` is told of the keys in use after each look."""

    def __init__(
        self,
        kube: Kube,
        terms: Terms,
        metrics: Metrics,
        oldest_job: Callable[[], float | None],
        leads: Callable[[], bool],
        now: Callable[[], float],
        changed: Callable[[Keys], None] = lambda keys: None,
    ) -> None:
        self._kube, self._terms, self._metrics = kube, terms, metrics
        self._oldest_job, self._leads, self._now, self._changed = oldest_job, leads, now, changed
        self.keys: Keys | None = None
        self.known = threading.Event()
        self._joined = False
        self._context: ssl.SSLContext | None = None
        self._stop, self._soon = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="keys", daemon=True)

    # --- life -------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        self._thread.start()

    def look_again(self) -> None:
        """Look at once: after taking over."""
        self._soon.set()

    def stop(self) -> None:
        self._stop.set()
        self._soon.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        forever(self._stop, self._turn, "keys", lambda: self._metrics.add("singularity_errors_total"), pause_s=LOOK_S)

    def _turn(self) -> None:
        self._soon.clear()
        try:
            self.look()
        except Conflict:
            log.info("another replica was faster with the keys: read again")
        except (KubeError, ConfigError, ChartError) as error:
            self._metrics.add("singularity_errors_total")
            log.error("keys: %s", error)
        self._soon.wait(LOOK_S)

    # --- for the API ------------------------------------------------------------------------------------------------
    def peer(self, made: float) -> bytes:
        """Return the key for the sidecars of a job that was made at `made`. Only after `known`."""
        assert self.keys is not None
        return self.keys.peer(made)

    def scrapes(self) -> str:
        """Return the token of who may read the metrics that name jobs; "" while there is none."""
        return "" if self.keys is None else self.keys.scrapes

    def server_context(self) -> ssl.SSLContext:
        """Return a context that shows the certificate of the moment at each handshake. Only after `known`."""
        assert self._context is not None
        outer = self._context

        def newest(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
            assert self._context is not None
            connection.context = self._context

        outer.sni_callback = newest
        return outer

    # --- one look ---------------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Read the keys, renew them if this replica acts, use them. Raises KubeError, ConfigError."""
        folder = self._terms.folder
        if folder is None:
            found = self._own()
        else:
            found = _given(folder, None if (folder / keys.PEER_FILE).is_file() else self._own())
        if self.keys is None or found.serves != self.keys.serves:
            self._context = _context(found.serves)
        if found != self.keys:
            log.info("keys in use: %d authorities, %d keys for peers", len(found.authorities), len(found.peers))
        self.keys = found
        self._metrics.set("singularity_certificate_expires_seconds", certificates.expires(found.serves.cert))
        self.known.set()
        self._changed(found)
        if folder is not None and (folder / keys.PEER_FILE).is_file():
            self._tell(found)

    def _own(self) -> Keys:
        """What the Secret of ours says, after it says what it should."""
        where = f"Secret {self._terms.namespace}/{job_names.KEYS_SECRET}"
        secret = self._kube.find(SECRET, self._terms.namespace, job_names.KEYS_SECRET)
        self._metrics.set("singularity_keys_missing", float(secret is None))
        if secret is None:
            if self.keys is None:
                raise ConfigError(f"{where} does not exist: restore it from a backup, or apply the chart again")
            log.error("%s is gone: the keys are in memory only; apply the chart again, and they are written", where)
            return self.keys
        before = self._read(secret, where)
        if not self._leads():
            # Only the one that acts writes: a replica that has just started, or has read before a rotation, would put
            # other keys into a Secret that somebody has emptied. Beside a leader of release 0.1.0, which fills no
            # Secret and goes only when this one is ready, it serves with that one's keys.
            known = before or self.keys or self._inherited()
            if known is None:
                raise ConfigError(f"{where} is empty: the replica that leads fills it")
            return known
        terms, asked = self._terms, platform_objects.rotation_request(secret)
        after = before or self.keys or self._inherited() or self._fresh()
        after = self._with_later(after)
        several = len(after.authorities) + len(after.peers) > 2
        oldest = self._oldest_job() if several else None
        after = keys.kept(after, terms.names, self._now(), terms.days, oldest, asked)
        if after != before or not _tells(secret, after):
            data = {name: b64encode(text.encode()).decode() for name, text in keys.to_data(after).items()}
            version = secret["metadata"]["resourceVersion"]
            self._kube.patch(SECRET, self._terms.namespace, job_names.KEYS_SECRET, {"data": data}, version)
            log.info("%s is written", where)
        self._joined = True  # another release is installed only while none of our replicas run
        return after

    def _tell(self, found: Keys) -> None:
        """Have the token of the metrics in our Secret, also where the keys themselves are somebody else's."""
        secret = self._kube.find(SECRET, self._terms.namespace, job_names.KEYS_SECRET)
        if secret is not None and self._leads() and not _tells(secret, found):
            data = {job_names.KEYS_SCRAPES: b64encode(found.scrapes.encode()).decode()}
            version = secret["metadata"]["resourceVersion"]
            self._kube.patch(SECRET, self._terms.namespace, job_names.KEYS_SECRET, {"data": data}, version)

    def _read(self, secret: Object, where: str) -> Keys | None:
        try:
            return keys.read(secret.get("data") or {})
        except ConfigError as error:
            if self.keys is None:
                raise ConfigError(f"{where}: {error}") from error
            log.error("%s: %s. The keys in memory are written again", where, error)
            return None

    def _with_later(self, own: Keys) -> Keys:
        """`own`, with the keys of a release 0.1.0 that was installed since: by a rollback, while ours outlasted it."""
        later = None if self._joined else self._classic()
        return own if later is None else keys.joined(own, *later, self._now())

    def _inherited(self) -> Keys | None:
        found = self._classic()
        if found is None:
            return None
        log.info("the keys of the release before are used")
        return found[0]

    def _classic(self) -> tuple[Keys, float] | None:
        """The keys of a chart that made them itself (release 0.1.0), and when: jobs that it has seen trust them."""
        old = self._kube.find(SECRET, self._terms.namespace, job_names.CONTROLLER_NAME)
        found = keys.read_classic((old or {}).get("data") or {})
        return None if found is None or old is None else (found, states.created(old))

    def _fresh(self) -> Keys:
        return keys.fresh(self._terms.names, self._now(), self._terms.days)


def _tells(secret: Object, found: Keys) -> bool:
    told = (secret.get("data") or {}).get(job_names.KEYS_SCRAPES)
    return bool(told == b64encode(found.scrapes.encode()).decode())


def _given(folder: Path, own: Keys | None) -> Keys:
    """The files of a mounted Secret of somebody else; `own` has the key for peers, if they have none."""
    data: dict[str, str] = {}
    for name in keys.TLS_FILES if own is not None else (*keys.TLS_FILES, keys.PEER_FILE):
        try:
            data[name] = (folder / name).read_text()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder / name} cannot be read ({error}): the Secret must have {name}") from error
        if not data[name]:
            raise ConfigError(f"{folder / name} is empty: the Secret must have a value for {name}")
    return keys.of_files(data, own)


def _context(shown: keys.Authority) -> ssl.SSLContext:
    """A server's context. The key is given to OpenSSL in a file that has no name and is in memory only."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    file = os.memfd_create("tls")
    try:
        os.write(file, f"{shown.cert.rstrip()}\n{shown.key.rstrip()}\n".encode())
        made.load_cert_chain(f"/proc/self/fd/{file}")
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"certificate and key of the controller cannot be used: {error}") from error
    finally:
        os.close(file)
    return made
