"""How a worker cluster is reached: by a kubeconfig in a Secret, or by a ClusterProfile and a program of the chart's.

Both are what Kueue 0.19.2 takes (`loadClientConfig` in multikueuecluster.go), with the same refusals. An object of the
cluster may say where an API server is, but never which program is run or which of our files is read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from singularity_proxy.protocol import decode

from ..errors import NotFound, PlatformError
from ..kube.api import Kube
from ..kube.client import ApiKube
from ..kube.credentials import connect_to
from ..kube.resources import CLUSTER_PROFILE, SECRET, Object

KUBECONFIG_KEY = "kubeconfig"
"""In the Secret (MultiKueueConfigSecretKey in Kueue's apis/kueue/v1beta2/multikueue_types.go)."""
PATIENCE_S = 30
"""A program that gives credentials is ended after so many seconds."""
_CLUSTER = "cluster"


@dataclass(frozen=True)
class ExecConfig:
    """A program that gives credentials: the `exec` of a kubeconfig."""

    apiVersion: str
    command: str
    args: list[str] = field(default_factory=list)
    env: list[dict[str, str]] = field(default_factory=list)
    provideClusterInfo: bool = False
    interactiveMode: str = "Never"
    installHint: str = ""


@dataclass(frozen=True)
class AccessProvider:
    """One of `multiKueue.clusterProfile.accessProviders` of Kueue's configuration, which the chart is given, too."""

    name: str
    execConfig: ExecConfig


@dataclass(frozen=True)
class _Chart:
    accessProviders: list[AccessProvider]


@dataclass(frozen=True)
class Access:
    """What leads to a cluster. Another `version`: connect anew."""

    version: str
    kubeconfig: Mapping[str, Any] = field(repr=False)
    program: str = ""
    """Of the access provider that gives the token, "" for a kubeconfig of a Secret."""


def providers(text: str) -> Sequence[AccessProvider]:
    """Read the chart's value `multikueue.manager.accessProviders`, as JSON. Raises PlatformError with the field."""
    where = "multikueue.manager"
    found = decode.json_value(text)
    if not isinstance(found, decode.Unreadable):
        found = decode.typed(_Chart, {"accessProviders": found}, where, strict=True)
    if isinstance(found, decode.Unreadable):
        raise PlatformError(f"{found.why}: give what stands in Kueue's multiKueue.clusterProfile.accessProviders")
    for provider in found.accessProviders:
        for name, value in (("name", provider.name), ("command", provider.execConfig.command)):
            if not value:
                raise PlatformError(f"{where}.accessProviders: {name} is empty")
    return tuple(found.accessProviders)


def of(declared: Object, kube: Kube, namespace: str, known: Sequence[AccessProvider]) -> Access:
    """Return what the MultiKueueCluster `declared` says, read from `namespace`, Kueue's own.

    Raises PlatformError, KubeError.
    """
    source = (declared.get("spec") or {}).get("clusterSource") or {}
    profile, given = source.get("clusterProfileRef"), source.get("kubeConfig")
    if profile:
        return _of_profile(kube, namespace, str(profile.get("name")), known)
    if not given:
        raise PlatformError("spec.clusterSource has neither kubeConfig nor clusterProfileRef: give one of them")
    if given.get("locationType", "Secret") != "Secret":
        raise PlatformError(
            f"spec.clusterSource.kubeConfig.locationType is {given['locationType']!r}: files of Kueue's pod are not "
            "read here. Put the kubeconfig into a Secret"
        )
    return _of_secret(kube, namespace, str(given["location"]))


def connected(access: Access) -> ApiKube:
    """Return a client for the cluster. A program may run meanwhile. Raises PlatformError."""
    if not access.program:
        return connect_to(access.kubeconfig)
    kube = connect_to(access.kubeconfig, programs=True)
    if not kube.has_token:
        raise PlatformError(f"{access.program} gave no token: the controller's log has its words")
    return kube


def _of_secret(kube: Kube, namespace: str, name: str) -> Access:
    try:
        secret = kube.get(SECRET, namespace, name)
    except NotFound:
        raise PlatformError(f"there is no Secret {name} in namespace {namespace}") from None
    try:
        content = yaml.safe_load(base64.b64decode(secret["data"][KUBECONFIG_KEY], validate=True))
    except (KeyError, TypeError, ValueError, binascii.Error, yaml.YAMLError) as error:
        raise PlatformError(f"Secret {name}: no kubeconfig under key {KUBECONFIG_KEY}: {error}") from None
    if not isinstance(content, dict):
        raise PlatformError(f"Secret {name}: its kubeconfig is no mapping")
    return Access(_version(secret), content)


def _of_profile(kube: Kube, namespace: str, name: str, known: Sequence[AccessProvider]) -> Access:
    try:
        profile = kube.get(CLUSTER_PROFILE, namespace, name)
    except NotFound:
        raise PlatformError(f"there is no ClusterProfile {name} in namespace {namespace}") from None
    provider, cluster = chosen(profile, known)
    return Access(_version(profile), kubeconfig(provider, cluster), f"{provider.execConfig.command} of {provider.name}")


def _version(obj: Object) -> str:
    return str(obj["metadata"]["uid"]) + str(obj["metadata"]["resourceVersion"])


def chosen(profile: Object, known: Sequence[AccessProvider]) -> tuple[AccessProvider, Mapping[str, Any]]:
    """Return the first of our providers that the ClusterProfile has, and its cluster there. Raises PlatformError.

    `credentialProviders` is the older name; `accessProviders` wins (cluster-inventory-api 0.1.3).
    """
    status = profile.get("status") or {}
    offered = {
        str(each.get("name")): each.get("cluster") or {}
        for each in (*(status.get("credentialProviders") or ()), *(status.get("accessProviders") or ()))
    }
    for provider in known:
        if provider.name in offered:
            return provider, offered[provider.name]
    name = profile["metadata"]["name"]
    raise PlatformError(
        f"ClusterProfile {name}: status.accessProviders has {', '.join(sorted(offered)) or 'none'}, and the chart "
        f"knows {', '.join(p.name for p in known) or 'none'}: name one of the former in "
        "multikueue.manager.accessProviders"
    )


def kubeconfig(provider: AccessProvider, cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the kubeconfig for `cluster` of a ClusterProfile, whose token the program of `provider` gives.

    As in Kueue, arguments and variables that the profile adds are left out, and the certificate is always verified.
    """
    taken = ("server", "certificate-authority-data", "proxy-url", "extensions")
    config = provider.execConfig
    command = {
        "apiVersion": config.apiVersion,
        "command": "timeout",  # the client itself waits for ever
        "args": [str(PATIENCE_S), config.command, *config.args],
        "env": [dict(each) for each in config.env],
        "provideClusterInfo": config.provideClusterInfo,
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _CLUSTER, "cluster": {key: cluster[key] for key in taken if cluster.get(key)}}],
        "users": [{"name": provider.name, "user": {"exec": command}}],
        "contexts": [{"name": _CLUSTER, "context": {"cluster": _CLUSTER, "user": provider.name}}],
        "current-context": _CLUSTER,
    }
