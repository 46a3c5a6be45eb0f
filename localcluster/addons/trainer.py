"""The real Kubeflow Trainer on a running cluster, with JobSet and our ClusterTrainingRuntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..cache import Progress
from ..clock import Clock
from ..config import TRAINER_HEALTH_PORT, TRAINER_WEBHOOK_PORT, ClusterConfig
from ..images import gobuild
from ..namespaces.processes import Part
from . import controllers, jobset
from .chart import Chart

PROBE = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "probe"},
    "spec": {"template": {"spec": jobset.PROBE["spec"]}},
}


def start(name: str = "default", progress: Progress = print) -> None:
    """JobSet, then Trainer (see `controllers.start`), then our chart's part for it."""
    jobset.start(name, progress)
    controllers.start(TRAINER, name, progress)
    clock = Clock(progress)
    found = controllers.find(name, clock)
    clock.say("installing our ClusterTrainingRuntime")
    Chart(found.config, found.binaries, found.kubectl, found.config.root).upgrade(trainjob__enabled=True)


def configuration(config: ClusterConfig) -> dict[str, Any]:
    """Trainer's own Configuration; what is not named here has its default."""
    return {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{config.address}:{TRAINER_HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": TRAINER_WEBHOOK_PORT},
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
    }


def _part(config: ClusterConfig, folder: Path, certificates: Path) -> Part:
    """The process; it acts as the cluster's administrator. It takes its certificates from a fixed place in TMPDIR."""
    path = controllers.written(config, "trainer", configuration(config))
    command = [str(folder / "trainer"), f"--config={path}", f"--kubeconfig={config.pki}/admin.kubeconfig"]
    return Part("trainer", command, env={"TMPDIR": str(certificates.parent.parent)})


TRAINER = controllers.Controller(
    part=gobuild.TRAINER,
    title="Trainer",
    webhook_port=TRAINER_WEBHOOK_PORT,
    health_port=TRAINER_HEALTH_PORT,
    webhook_paths=("-trainjob", "-trainingruntime", "-clustertrainingruntime"),
    command=_part,
    probe=PROBE,
)
