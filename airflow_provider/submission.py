"""From an operator's parameters to a Job in the cluster: what a worker does before the task defers. Blocking."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value

from kueue_integration.contract import branches, job_names
from kueue_integration.errors import KubeError, SpecError
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB, Object, label, selector
from kueue_integration.manifests import job_manifests
from kueue_integration.spec import platform_config, secret_text
from kueue_integration.spec.train_spec import TrainSpec
from singularity_proxy.protocol import exit_codes
from singularity_proxy.protocol.messages import Origin

from . import compat, ending, parameters, rendered
from .identity import ANN_TASK, LABEL_OWNER, Claim, TaskKey, belongs

GONE_POLL_S = 0.5


def owned_jobs(kube: Kube, namespace: str, key: TaskKey, deployments: Collection[str]) -> list[Object]:
    """All Jobs of this task instance in one of these Airflows, of every generation."""
    found = kube.list(JOB, namespace, selector({job_names.LABEL_MANAGED: "true", LABEL_OWNER: key.owner}))
    return [job for job in found if belongs(job, deployments)]


def build_spec(operator: Any, claim: Claim, dag_file: str | None) -> TrainSpec:
    """The TrainSpec of `operator`'s rendered parameters. Values that Airflow masks are secrets of the job.

    Raises SpecError that names the operator's parameters.
    """
    files = parameters.mapping("files", operator.files)
    command = operator.command
    if operator.script is not None:
        path = script_path(operator.script, dag_file)
        files[path.name] = _read(operator.script, path)
        command = ["python3", path.name, *parameters.word_list("script_args", operator.script_args)]
    annotations = parameters.mapping("annotations", operator.annotations)
    values = {
        **parameters.spec_values(operator),
        "name": claim.name,
        "namespace": claim.namespace,
        "command": command,
        "files": files,
        "identity": claim.identity,
        "ttl_s": operator.ttl_s,
        "labels": {**_safe(parameters.mapping("labels", operator.labels)), **task_labels(claim)},
        "annotations": {**annotations, ANN_TASK: json.dumps(claim.to_dict(), sort_keys=True)},
    }
    return secret_text.marked(parameters.make_spec(values), compat.masks)


def task_labels(claim: Claim) -> dict[str, str]:
    """Labels of Job and pods by which people find those of a task: as KubernetesPodOperator has them, and our own."""
    key = claim.key
    given = {"dag_id": key.dag_id, "task_id": key.task_id, "run_id": key.run_id}
    numbers = {"map_index": key.map_index} if key.map_index >= 0 else {}
    labels = {**given, **numbers, "try_number": claim.made_by.try_number}
    return {**_safe({name: str(value) for name, value in labels.items()}), LABEL_OWNER: key.owner}


def _safe(labels: Mapping[str, Any]) -> dict[str, Any]:
    """With values that a label can have: a run id has `:` and `+`."""
    return {key: make_safe_label_value(value) if isinstance(value, str) else value for key, value in labels.items()}


def script_path(script: str, dag_file: str | None) -> Path:
    """Where `script` lies: relative paths start at the folder of the DAG file."""
    return Path(dag_file).parent / script if dag_file else Path(script)


def _read(script: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = f"cannot be read as text at {path} ({error}); give a path relative to the DAG file"
        raise SpecError([("script", script, fix)]) from None


def submit(
    kube: Kube, spec: TrainSpec, config: platform_config.PlatformConfig, start: Origin | None = None
) -> lifecycle.Submitted:
    """Create or adopt. Raises SpecError in the operator's words, PlatformError, ConflictError, KubeError."""
    try:
        return lifecycle.submit(kube, spec, config, start)
    except SpecError as error:
        raise parameters.in_operator_words(error) from None


def manifest(spec: TrainSpec, config: platform_config.PlatformConfig) -> str:
    """What `submit` sends, for people. Raises SpecError in the operator's words."""
    try:
        return rendered.text(job_manifests.render(spec, config))
    except SpecError as error:
        raise parameters.in_operator_words(error) from None


def remove(
    kube: Kube,
    namespace: str,
    doomed: Sequence[tuple[str, str]],
    timeout_s: float,
    stop: Callable[[], bool],
    keep: bool = False,
) -> list[str]:
    """Give these (name, uid) up and wait until they have no pods; names of those that still have.

    Nothing may be submitted before: two generations of a job would write to the same places.

    :param keep: their checkpoints may be begun with, so their records stay (`ending`)
    """
    for name, uid in doomed:
        ending.give_up(kube, namespace, name, uid, keep)
    deadline = time.monotonic() + timeout_s
    left = [*doomed]
    while left:
        left = [(name, uid) for name, uid in left if _busy(kube, namespace, name, uid)]
        if not left or stop() or time.monotonic() >= deadline:
            break
        time.sleep(GONE_POLL_S)
    return [name for name, _ in left]


def _busy(kube: Kube, namespace: str, name: str, uid: str) -> bool:
    job = kube.find(JOB, namespace, name)
    return job is not None and job["metadata"]["uid"] == uid and not ending.over(job) and not ending.quiet(job)


def tidy(kube: Kube, claim: Claim, owned: Sequence[Object], timeout_s: float = 0.0) -> list[str]:
    """Delete Jobs of `owned` that were given up and still wait for quota, as soon as nothing begins with them any more.

    Returns the names of those that have to stay until the controller has looked at the Job of `claim`.
    """
    names = [job["metadata"]["name"] for job in owned if job["metadata"]["uid"] != claim.uid and ending.quiet(job)]
    if not names:
        return []
    deadline = time.monotonic() + timeout_s
    while True:
        own = kube.find(JOB, claim.namespace, claim.name)
        start = branches.start_from(own)
        needed = start.job if isinstance(start, Origin) and branches.origin(own) is None else None
        if needed not in names or time.monotonic() >= deadline:
            break
        time.sleep(GONE_POLL_S)
    for job in owned:
        if job["metadata"]["name"] in names and job["metadata"]["name"] != needed:
            lifecycle.delete(kube, claim.namespace, job["metadata"]["name"], uid=job["metadata"]["uid"])
    return [name for name in names if name == needed]


def log_tails(kube: Kube, namespace: str, name: str, failed: bool, lines: int = 30) -> Iterator[str]:
    """The last output of rank 0's pod, or of the pods that failed. What cannot be had is named, never raised."""
    try:
        for pod in kube.list_pods(namespace, selector({job_names.LABEL_JOB: name})):
            code = _exit_code(pod)
            own = code is not None and exit_codes.of(code).action in ("Count", "FailJob")
            wanted = own if failed else _index(pod) == "0" and code == exit_codes.FINISHED
            if wanted:
                yield f"--- last lines of {pod['metadata']['name']}, exit code {code}"
                yield from kube.pod_logs(
                    namespace, pod["metadata"]["name"], job_names.CONTAINER_TRAIN, tail=lines, timeout_s=10.0
                )
    except KubeError as error:
        yield f"--- no output of the pods to be had: {error}"


def _exit_code(pod: Mapping[str, Any]) -> int | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == job_names.CONTAINER_TRAIN:
            terminated = (status.get("state") or {}).get("terminated") or {}
            return terminated.get("exitCode")
    return None


def _index(pod: Mapping[str, Any]) -> str | None:
    return label(pod, "batch.kubernetes.io/job-completion-index")
