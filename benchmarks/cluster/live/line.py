"""The line of a leader to the controller: the sidecars' own client, with a token that is bound to the leader's pod."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from kubernetes import client, config

from kueue_integration.spec.platform_config import PlatformConfig
from singularity_proxy.protocol import names
from singularity_proxy.sidecar.config import Config
from singularity_proxy.sidecar.controller_client import Controller

from .attempts import Attempt

TOKEN_S = 3600
"""As in the pods' manifests."""
API_PORT = 9443
"""Of the controller's pod, as in the chart."""


class At(AbstractResolver):
    """Every name is at this address: the cluster's DNS is not this machine's."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=self._address,
                port=port,
                family=socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
        ]

    async def close(self) -> None:
        pass


class _Client(Controller):
    """The controller's pod is at `address`."""

    def __init__(self, settings: Config, address: str) -> None:
        super().__init__(settings)
        self._address = address

    async def __aenter__(self) -> Controller:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=8, resolver=At(self._address))
        self._session = aiohttp.ClientSession(connector=connector)
        return self


class Lines:
    """:param kubeconfig: of somebody who may make tokens
    :param address: IP of the controller's pod
    :param folder: for the tokens
    """

    def __init__(self, kubeconfig: str, platform: PlatformConfig, address: str, folder: Path) -> None:
        self._core = client.CoreV1Api(config.new_client_from_config(kubeconfig))
        self._platform, self._address, self._folder = platform, address, folder
        # The certificate is for the name of the Service; its port is the pod's, for nothing forwards it here.
        self._url = f"https://{platform.controller_url.removeprefix('https://').partition(':')[0]}:{API_PORT}"

    @asynccontextmanager
    async def open(self, attempt: Attempt) -> AsyncIterator[Controller]:
        """Raises kubernetes' ApiException: the pod is gone."""
        path = self._folder / attempt.uid
        path.write_text(await asyncio.to_thread(self._token, attempt))
        try:
            async with _Client(self._config(attempt, path), self._address) as made:
                yield made
        finally:
            path.unlink(missing_ok=True)

    def _token(self, attempt: Attempt) -> str:
        """As the kubelet asks for one that it projects into the pod."""
        bound = {"apiVersion": "v1", "kind": "Pod", "name": attempt.leader, "uid": attempt.uid}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [names.TOKEN_AUDIENCE], "expirationSeconds": TOKEN_S, "boundObjectRef": bound},
        }
        made = self._core.create_namespaced_service_account_token(
            "default", attempt.namespace, body, _request_timeout=30
        )
        return str(made.status.token)

    def _config(self, attempt: Attempt, token: Path) -> Config:
        return Config(
            namespace=attempt.namespace,
            job=attempt.name,
            pod=attempt.leader,
            pod_ip=attempt.ip,
            index=0,
            attempt=attempt.number,
            workers=attempt.workers,
            world_size=attempt.workers,
            store=self._platform.store,
            controller_url=self._url,
            controller_ca=self._platform.controller_ca,
            token_file=token,
        )
