"""Rows of the state engine: a namespace that enforces Pod Security `restricted`, and jobs in it without a privilege.

    rows = restricted(stage, "frameworks", say, {"ondemand": "100m", "spot": "50m"})
    job = train(rows, monkeypatch, "name", SCRIPT, workers=2, min_workers=1, pace=0.5)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rows import Rows, Training

from kueue_integration.jobs.preflight import POD_SECURITY
from kueue_integration.kube.resources import NAMESPACE, Object
from localcluster.demo.stage import Stage
from localcluster.shell import run


def restricted(stage: Stage, namespace: str, say: Callable[[str], None], quota: Mapping[str, str]) -> Rows:
    """A namespace with the queue `q` and a store that its jobs may write."""
    made = Rows(stage, namespace, say)
    stage.kube.patch(NAMESPACE, None, namespace, {"metadata": {"labels": {POD_SECURITY: "restricted"}}})
    made.queue("q", quota)
    store = stage.cluster.shared / f"{namespace}-store"
    store.mkdir(exist_ok=True)
    store.chmod(0o777)
    return made


def claimed(stage: Stage, namespace: str, volume: Mapping[str, Any]) -> dict[str, Any]:
    """A platform's volume of this machine as a claim: `restricted` allows no hostPath in a pod."""
    name = f"{namespace}-{volume['name']}"
    shape = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "1Gi"}
    objects: list[Object] = [
        {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                **shape, "capacity": size, "hostPath": volume["hostPath"], "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": namespace, "name": name},
            },
        },
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
            "spec": {**shape, "resources": {"requests": size}, "volumeName": name},
        },
    ]  # fmt: skip
    words = [str(stage.cluster.kubectl), f"--kubeconfig={stage.cluster.kubeconfig}", "apply", "-f", "-"]
    run(words, stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}), timeout=60)
    return {"name": volume["name"], "persistentVolumeClaim": {"claimName": name}}


def train(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, name: str, script: Path, args: Sequence[str] = (), **spec: Any
) -> Training:
    """A job with `engine="state"`; `spec` as of `Rows.train`."""
    volumes = [claimed(rows.stage, rows.namespace, volume) for volume in rows.stage.platform.volumes]
    with monkeypatch.context() as patch:
        patch.setattr(rows.stage, "_platform", replace(rows.stage.platform, volumes=volumes))
        store = f"file:///shared/{rows.namespace}-store"
        files = {script.name: script.read_text()}
        return rows.train(name, "q", script=script.name, files=files, args=args, engine="state", store=store, **spec)
