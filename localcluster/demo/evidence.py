"""What to read when a story failed: logs of every part that took part, copied out before they are torn down."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kueue_integration.contract import job_names
from kueue_integration.errors import SingularityError
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB, POD, WORKLOAD

from .airflow import PARTS, Airflow, tail

SHOWN_LINES = 12
KEPT_LINES = 2000

T = TypeVar("T")


def collect(
    kube: Kube | None, airflow: Airflow | None, namespace: str, cluster_logs: Path | None, target: Path
) -> None:
    """Write one file per log below `target`. A part that is gone already is left out; this never raises for one."""
    target.mkdir(parents=True, exist_ok=True)
    if kube is not None:
        pods = _try(lambda: kube.list(POD, job_names.SYSTEM_NAMESPACE) + kube.list(POD, namespace)) or []
        for pod in pods:
            for container in _containers(pod):
                _write_pod_log(kube, pod, container, target)
        for kind in (JOB, WORKLOAD, POD):
            objects = _try(partial(kube.list, kind, namespace)) or []
            (target / f"{kind.name.lower()}s.json").write_text(json.dumps(objects, indent=1) + "\n")
    if airflow is not None:
        for part in (*PARTS, "db-migrate"):
            _copy(airflow.log_file(part), target / f"airflow-{part}.log")
        for log in (airflow.home / "logs").rglob("*.log*"):
            _copy(log, target / ("task-" + "-".join(log.relative_to(airflow.home / "logs").parts)))
    for log in sorted(cluster_logs.glob("*.log")) if cluster_logs else ():
        _copy(log, target / f"cluster-{log.name}")


def show(target: Path, say: Callable[[str], None]) -> None:
    """Print the ends of the logs that most often tell why."""
    wanted = (
        "singularity-controller",
        "launcher",
        "airflow-triggerer",
        f"-{job_names.CONTAINER_TRAIN}",
        job_names.CONTAINER_SIDECAR,
    )
    for path in sorted(target.iterdir()) if target.is_dir() else ():
        if any(part in path.name for part in wanted) and path.stat().st_size:
            say(f"--- end of {path}\n{tail(path, SHOWN_LINES)}")
    say(f"all logs: {target}")


def _containers(pod: dict[str, Any]) -> list[str]:
    spec = pod["spec"]
    return [str(c["name"]) for c in [*spec.get("initContainers", []), *spec["containers"]]]


def _write_pod_log(kube: Kube, pod: dict[str, Any], container: str, target: Path) -> None:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    lines = _try(lambda: list(kube.pod_logs(namespace, name, container, tail=KEPT_LINES, timeout_s=20)))
    if lines:
        (target / f"pod-{name}-{container}.log").write_text("\n".join(lines) + "\n")


def _try(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (SingularityError, OSError):
        return None


def _copy(source: Path, target: Path) -> None:
    text = tail(source, KEPT_LINES)
    if text:
        target.write_text(text + "\n")
