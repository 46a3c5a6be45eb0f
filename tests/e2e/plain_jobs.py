"""Training Jobs as users write them who have never heard of us, for the rows' script."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from adoption_cases import labelled
from rows import SCRIPT, Rows, Training

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import Object
from kueue_integration.spec.train_spec import TrainSpec


def plain_training(rows: Rows, name: str, *, label: bool) -> tuple[Training, Object]:
    """A training Job as a user writes it: script in a ConfigMap, started in its folder. Ours is the label."""
    folder = Path(rows.namespace) / f"{name}-{time.time_ns()}"
    output = rows.stage.cluster.shared / folder
    output.mkdir(parents=True)
    output.chmod(0o777)
    meta = {"name": "script", "namespace": rows.namespace}
    data = {SCRIPT.name: SCRIPT.read_text()}
    rows.make({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    container: dict[str, Any] = {
        "name": "trainer",
        "image": rows.stage.platform.train_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", SCRIPT.name],
        "args": ["--output", "$(OUTPUT)"],
        "workingDir": "/src",
        "env": [{"name": "OUTPUT", "value": f"/shared/{folder}"}],
        "resources": {"requests": {"cpu": "50m"}},
        "volumeMounts": [{"name": "src", "mountPath": "/src"}],
    }
    job: Object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": rows.namespace,
            "labels": {job_names.KUEUE_QUEUE_LABEL: "own", job_names.KUEUE_PRIORITY_LABEL: "low"},
        },
        "spec": {
            "completionMode": "Indexed",
            "parallelism": 2,
            "completions": 2,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [container],
                    "volumes": [{"name": "src", "configMap": {"name": "script"}}],
                }
            },
        },
    }
    spec = TrainSpec(name=name, namespace=rows.namespace, queue="own", command=container["command"], workers=2)
    return Training(rows, spec, output), labelled(job) if label else job
