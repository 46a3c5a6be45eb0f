"""A namespace that enforces Pod Security `restricted`, for jobs without a privilege.

The level allows no `hostPath` in a pod. So the namespace has the platform's volumes as claims, each bound to a folder
of this machine. https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.jobs.preflight import POD_SECURITY

from ..control_plane.kubectl import Kubectl

LEVEL = "restricted"


def make(kubectl: Kubectl, namespace: str, volumes: Sequence[Mapping[str, Any]]) -> None:
    """Make the namespace, with a claim for each of the platform's `volumes`, or what of it is not there.

    :raises CommandError: see `shell.run`
    """
    kubectl.apply(documents(namespace, volumes))


def claimed(namespace: str, volumes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What pods of the namespace have instead of the platform's `volumes`. Pure."""
    return [
        {"name": v["name"], "persistentVolumeClaim": {"claimName": _name(namespace, v)}} if "hostPath" in v else dict(v)
        for v in volumes
    ]


def documents(namespace: str, volumes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The namespace, and a PersistentVolume with its claim for each `hostPath`. Pure."""
    labels = {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED, POD_SECURITY: LEVEL}
    found: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    ]
    for volume in volumes:
        if "hostPath" in volume:
            found += _pair(namespace, _name(namespace, volume), volume["hostPath"])
    return found


def _pair(namespace: str, name: str, place: Mapping[str, Any]) -> list[dict[str, Any]]:
    # No storage class, or a default one would make another volume for the claim.
    shape = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "1Gi"}  # nobody enforces it on a hostPath
    holder = {"namespace": namespace, "name": name}
    policy = {"persistentVolumeReclaimPolicy": "Retain", "claimRef": holder}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {**shape, "capacity": size, "hostPath": dict(place), **policy},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": holder,
            "spec": {**shape, "resources": {"requests": size}, "volumeName": name},
        },
    ]


def _name(namespace: str, volume: Mapping[str, Any]) -> str:
    return f"{namespace}-{volume['name']}"  # of both: a PersistentVolume is of no namespace
