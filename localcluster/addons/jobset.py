"""The real JobSet controller on a running cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..cache import Progress
from ..config import JOBSET_HEALTH_PORT, JOBSET_WEBHOOK_PORT, ClusterConfig
from ..images import gobuild
from ..namespaces.processes import Part
from . import controllers

PROBE = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {
        "suspend": True,
        "replicatedJobs": [
            {
                "name": "probe",
                "template": {
                    "spec": {
                        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}
                    }
                },
            }
        ],
    },
}


def start(name: str = "default", progress: Progress = print) -> None:
    """See `controllers.start`."""
    controllers.start(JOBSET, name, progress)


def configuration(config: ClusterConfig, certificates: Path) -> dict[str, Any]:
    """JobSet's own Configuration; what is not named here has its default."""
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{config.address}:{JOBSET_HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": JOBSET_WEBHOOK_PORT, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }


def _part(config: ClusterConfig, folder: Path, certificates: Path) -> Part:
    """The process; it acts as the cluster's administrator."""
    path = controllers.written(config, "jobset", configuration(config, certificates))
    return Part("jobset", [str(folder / "jobset"), f"--config={path}", f"--kubeconfig={config.pki}/admin.kubeconfig"])


JOBSET = controllers.Controller(
    part=gobuild.JOBSET,
    title="JobSet",
    webhook_port=JOBSET_WEBHOOK_PORT,
    health_port=JOBSET_HEALTH_PORT,
    webhook_paths=("-jobset-x-k8s-io-v1alpha2-jobset",),  # those for pods serve exclusive placement only
    command=_part,
    probe=PROBE,
)
