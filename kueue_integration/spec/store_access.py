"""How jobs of a namespace reach the checkpoint store: URL, volumes, credentials, keys. Pure.

All of it is for the sidecar alone. The training container, where the user's program runs, has none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from singularity_proxy.protocol import names

from .platform_config import PlatformConfig

NAMESPACE = "{namespace}"
"""Stands for the job's namespace in the URL, in volumes and in mounts."""
KEYS_VOLUME = "singularity-store-keys"
KEYS_DIR = f"{names.ROOT}/store-keys"


@dataclass(frozen=True)
class StoreAccess:
    """:param secret: its entries are variables of the sidecar; "": none
    :param service_account: of the pods; "": the namespace's default
    :param keys: the Secret with the keys that checkpoints are encrypted with; "": they are not
    """

    url: str = ""
    volumes: Sequence[Mapping[str, Any]] = ()
    mounts: Sequence[Mapping[str, Any]] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    service_account: str = ""
    keys: str = ""

    @property
    def all_volumes(self) -> list[dict[str, Any]]:
        """With that of the keys. Without the Secret the sidecar starts all the same, and says what is missing."""
        secret = {"secretName": self.keys, "optional": True, "defaultMode": 0o440}
        keys = [{"name": KEYS_VOLUME, "secret": secret}] if self.keys else []
        return [*map(dict, self.volumes), *keys]

    @property
    def all_mounts(self) -> list[dict[str, Any]]:
        keys = [{"name": KEYS_VOLUME, "mountPath": KEYS_DIR, "readOnly": True}] if self.keys else []
        return [*map(dict, self.mounts), *keys]

    @property
    def all_env(self) -> dict[str, str]:
        return {**self.env, **({names.ENV_STORE_KEYS: KEYS_DIR} if self.keys else {})}

    @property
    def env_from(self) -> list[dict[str, Any]]:
        return [{"secretRef": {"name": self.secret}}] if self.secret else []


def of(platform: PlatformConfig | None, namespace: str) -> StoreAccess:
    """That of a namespace: field by field what the platform says of it, and else of all. None: nothing is known.

    Of no namespace (""): what all have, with `NAMESPACE` in it, and with the keys if any namespace encrypts.
    """
    if platform is None:
        return StoreAccess()
    own, all_ = platform.stores.get(namespace, {}), platform.store_pods
    given = {"url": platform.store, **all_, **{name: value for name, value in own.items() if value is not None}}
    keys = platform.store_keys
    encrypts = own["encrypt"] if isinstance(own.get("encrypt"), bool) else encrypted(platform, namespace)
    return StoreAccess(
        url=_named(str(given.get("url") or ""), namespace or NAMESPACE),
        volumes=tuple(_named(given.get("volumes") or (), namespace or NAMESPACE)),
        mounts=tuple(_named(given.get("volumeMounts") or (), namespace or NAMESPACE)),
        env=given.get("env") or {},
        secret=str(given.get("secret") or ""),
        service_account=str(given.get("serviceAccount") or ""),
        keys=str(keys.get("secret") or "") if encrypts else "",
    )


def url_of(own: str | None, platform: PlatformConfig, namespace: str) -> str:
    """URL of a job's store: `own`, which its owner has named, or that of its namespace."""
    return own or of(platform, namespace).url


def encrypted(platform: PlatformConfig, namespace: str) -> bool:
    """Whether checkpoints of the namespace are, if it does not say so itself. "" for any."""
    listed = platform.store_keys.get("namespaces") or ()
    return bool(platform.store_keys.get("secret")) and (not listed or not namespace or namespace in listed)


def _named(value: Any, namespace: str) -> Any:
    """Texts in it with the namespace."""
    if isinstance(value, str):
        return value.replace(NAMESPACE, namespace)
    if isinstance(value, Mapping):
        return {key: _named(each, namespace) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(each, namespace) for each in value]
    return value
