"""Which API server to talk to, and how to prove who we are: a pod's own, a kubeconfig's, one that the cluster holds.

In a pod that is an address, an authority and a token in files, and needs nothing else. For kubeconfigs the kubernetes
client does the hard parts (exec credentials, token rotation, TLS). It is imported when the first one is read: importing
it takes 80 MB and half a second. Its models are not used, because they drop fields that they do not know.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml

from ..errors import PlatformError
from .client import PART, REQUEST_TIMEOUT_S, ApiKube, Told, untold

DEFAULT_NAMESPACE = "default"
IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token, the cluster's authority, and the pod's namespace."""
TOKEN_READ_S = 60.0
"""The kubelet exchanges the token long before it expires."""
WORKER_TIMEOUT_S = 10.0
"""Of a worker cluster of MultiKueue: who waits for it waits in vain when it is dead."""
CONNECTIONS = 64
"""Kept open, of which each watch has one; the client's own default is five for each CPU that it sees."""
_UNREADABLE = (OSError, yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError)
"""What is raised for a kubeconfig, or files of a pod, that are not there, or not what they should be."""


class OfPod:
    """The service account of the pod that we run in. Thread-safe. Raises one of `_UNREADABLE`: we run in none."""

    def __init__(self, folder: Path) -> None:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        self.server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        authority = folder / "ca.crt"
        authority.read_bytes()
        self.pool = urllib3.PoolManager(maxsize=CONNECTIONS, cert_reqs="CERT_REQUIRED", ca_certs=str(authority))
        self._file = folder / "token"
        self._lock = threading.Lock()
        self._token, self._read_at = self._file.read_text().strip(), time.monotonic()

    def headers(self) -> Mapping[str, str]:
        with self._lock:
            if time.monotonic() - self._read_at >= TOKEN_READ_S:
                with contextlib.suppress(OSError):  # the one that we have may still be good
                    self._token = self._file.read_text().strip() or self._token
                self._read_at = time.monotonic()
            return {"Authorization": f"Bearer {self._token}"}


class OfClient:
    """What a `kubernetes.client.ApiClient` has."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.server = str(api.configuration.host)
        self.pool: urllib3.PoolManager = api.rest_client.pool_manager

    def headers(self) -> Mapping[str, str]:
        found: dict[str, str] = dict(self._api.default_headers)
        self._api.update_params_for_auth(found, [], ["BearerToken"])
        return found


def connect(
    kubeconfig: str | None = None,
    context: str | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
    part: str = PART,
    told: Told = untold,
) -> ApiKube:
    """A client for the cluster of `kubeconfig`, else of $KUBECONFIG, else of the pod we run in, else of ~/.kube/config.

    `timeout_s`, `part`, `told`: as in ApiKube. Raises PlatformError when none of them is there.
    """
    try:
        ours = _in_pod() and kubeconfig is None and context is None
        found = OfPod(IN_POD) if ours else _of_kubeconfig(kubeconfig, context)
    except _UNREADABLE as error:
        raise PlatformError(
            f"no cluster to talk to: {error}. Set KUBECONFIG (for the local cluster of a checkout: "
            "export KUBECONFIG=$(singularityctl local kubeconfig)) or give --kubeconfig"
        ) from error
    return ApiKube(found, timeout_s, part, told)


def _of_kubeconfig(path: str | None, context: str | None) -> OfClient:
    from kubernetes import client, config

    configuration = client.Configuration()
    configuration.connection_pool_maxsize = max(CONNECTIONS, configuration.connection_pool_maxsize)
    try:
        config.load_kube_config(config_file=path, context=context, client_configuration=configuration)
    except config.ConfigException as error:
        raise ValueError(error) from error
    return OfClient(client.ApiClient(configuration))


def namespace_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return the namespace that kubectl would use with these flags: the context's, the pod's own, `default`.

    Only files are read. A kubeconfig that cannot be read is for `connect` to complain about.
    """
    if _in_pod() and kubeconfig is None and context is None:
        try:
            return (IN_POD / "namespace").read_text().strip() or DEFAULT_NAMESPACE
        except OSError:
            return DEFAULT_NAMESPACE
    from kubernetes import config

    try:
        # The client reads the variable once, when it is imported.
        contexts, active = config.list_kube_config_contexts(config_file=kubeconfig or os.environ.get("KUBECONFIG"))
    except (config.ConfigException, *_UNREADABLE):
        return DEFAULT_NAMESPACE
    found = active if context is None else next((c for c in contexts if c.get("name") == context), None)
    return str(((found or {}).get("context") or {}).get("namespace") or DEFAULT_NAMESPACE)


def _in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def connect_to(kubeconfig: Mapping[str, Any], programs: bool = False) -> ApiKube:
    """A client for the cluster of a kubeconfig that somebody has put into the cluster as data.

    `programs`: a user's `exec` is the platform's own and may be run for a token. Raises PlatformError that names the
    field: it cannot be used, reads a file of ours, runs a program, or does not verify whom it talks to. Kueue refuses
    the same (`validateKubeconfig` in multikueuecluster.go, 0.19.2).
    """
    refused = {key: fix for key, fix in _REFUSED.items() if not (programs and key == "exec")}
    for part, inner in (("users", "user"), ("clusters", "cluster")):
        for each in kubeconfig.get(part) or ():
            given = each.get(inner) or {}
            for name in sorted(key for key in refused.keys() & given.keys() if given[key]):
                raise PlatformError(f"{part} {each.get('name')!r}: {inner}.{name} is refused: {refused[name]}")
            if inner == "cluster" and not given.get("server"):
                raise PlatformError(
                    f"{part} {each.get('name')!r}: cluster.server is missing: give the API server's URL"
                )
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_kube_config_from_dict(dict(kubeconfig), client_configuration=configuration)
    except (config.ConfigException, OSError, KeyError, TypeError, ValueError) as error:
        raise PlatformError(f"not a kubeconfig: {error}") from error
    proxies = [c["cluster"].get("proxy-url") for c in kubeconfig["clusters"] if c["name"] == _cluster_name(kubeconfig)]
    configuration.proxy = next(filter(None, proxies), None)  # the client's loader leaves it out
    return ApiKube(OfClient(client.ApiClient(configuration)), WORKER_TIMEOUT_S, part="singularity-multikueue")


_TOKEN = "give a token or client-certificate-data and client-key-data"  # noqa: S105 - a sentence
_REFUSED = {
    "exec": f"{_TOKEN}, or name a ClusterProfile in the MultiKueueCluster",
    "auth-provider": _TOKEN,
    "tokenFile": _TOKEN,
    "username": _TOKEN,
    "password": _TOKEN,
    "client-certificate": _TOKEN,
    "client-key": _TOKEN,
    "certificate-authority": "give certificate-authority-data",
    "insecure-skip-tls-verify": "give certificate-authority-data",
}
"""Fields of users and clusters of a kubeconfig, and what to give in their place."""


def _cluster_name(kubeconfig: Mapping[str, Any]) -> str | None:
    current = kubeconfig.get("current-context")
    return next((c["context"]["cluster"] for c in kubeconfig["contexts"] if c["name"] == current), None)
