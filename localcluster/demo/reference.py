"""The uninterrupted run that the story is compared with: the same script, plain `torchrun`, one ordinary pod."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.errors import KubeError
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import CONFIG_MAP, JOB, POD
from kueue_integration.spec.platform_config import PlatformConfig
from singularity_proxy.protocol import names

from . import cluster_jobs
from .errors import StoryError
from .wait import wait_for

TIMEOUT_S = 900.0
LINE_EVERY_S = 5.0


def command_of(job: Mapping[str, Any]) -> list[str]:
    """The user's argv, as it stands in a Job that this project made. Raises StoryError."""
    containers = job["spec"]["template"]["spec"]["containers"]
    values = [e for c in containers if c["name"] == job_names.CONTAINER_TRAIN for e in c.get("env", ())]
    text = next((e.get("value") for e in values if e["name"] == names.ENV_COMMAND), None)
    if not text:
        raise StoryError(f"Job {job['metadata']['name']} has no {names.ENV_COMMAND}: not a Job of this project")
    argv: list[str] = json.loads(text.replace("$$", "$"))  # Kubernetes' own escape
    return argv


def host_path(platform: PlatformConfig, pod_path: str) -> Path:
    """Where a path of the training pods lies on this machine. Raises StoryError when no hostPath volume holds it."""
    volumes = {v["name"]: v["hostPath"]["path"] for v in platform.volumes if "hostPath" in v}
    for mount in platform.volume_mounts:
        inside = PurePosixPath(mount["mountPath"])
        if PurePosixPath(pod_path).is_relative_to(inside) and mount["name"] in volumes:
            return Path(volumes[mount["name"]]) / PurePosixPath(pod_path).relative_to(inside)
    raise StoryError(
        f"{pod_path} is on no volume of this machine; mounts: {[m['mountPath'] for m in platform.volume_mounts]}"
    )


def with_option(argv: Sequence[str], option: str, value: str) -> list[str]:
    """`argv` with the value of `--option` replaced. Raises StoryError when it is not there exactly once."""
    if list(argv).count(option) != 1 or argv[-1] == option:
        raise StoryError(f"expected {option} VALUE once in {list(argv)}")
    at = list(argv).index(option)
    return [*argv[: at + 1], value, *argv[at + 2 :]]


def option(argv: Sequence[str], name: str) -> str:
    """The value of `--name VALUE`. Raises StoryError."""
    if list(argv).count(name) != 1 or argv[-1] == name:
        raise StoryError(f"expected {name} VALUE once in {list(argv)}")
    return argv[list(argv).index(name) + 1]


def run(
    kube: Kube,
    namespace: str,
    name: str,
    platform: PlatformConfig,
    script: Path,
    argv: Sequence[str],
    ranks: int,
    say: Callable[[str], None],
) -> None:
    """Run `script` with the arguments of `argv` (which starts with python and the script) to its end.

    Raises StoryError when it fails.
    """
    arguments = list(argv[list(argv).index(script.name) + 1 :])
    say(f"reference: {script.name} under plain torchrun, {ranks} processes in one pod, uninterrupted")
    kube.create(cluster_jobs.reference_script(name, namespace, script.name, script.read_text()))
    kube.create(
        cluster_jobs.reference(
            name,
            namespace,
            platform.train_image,
            ranks,
            [f"/source/{script.name}", *arguments],
            platform.volumes,
            platform.volume_mounts,
            platform.env,
        )
    )
    try:
        told = Teller(kube, namespace, name, say)
        wait_for(lambda: told.look() or _ended(kube, namespace, name), f"the end of reference Job {name}", TIMEOUT_S)
    finally:
        kube.delete(JOB, namespace, name)
        kube.delete(CONFIG_MAP, namespace, name)
    say("reference: done")


class Teller:
    """Now and then the last line of a Job's log: a run that says nothing looks as if it hung."""

    def __init__(self, kube: Kube, namespace: str, job: str, say: Callable[[str], None]) -> None:
        self._kube, self._namespace, self._job = kube, namespace, job
        self._say, self._next, self._said = say, 0.0, ""

    def look(self) -> bool:
        """Say the last line if it is a new one and some seconds have passed. False: nothing to wait for here."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + LINE_EVERY_S
        try:
            line = _log(self._kube, self._namespace, self._job, lines=1)
        except KubeError:  # the container has not started
            return False
        if line and line != self._said:
            self._say(f"reference: {line}")
            self._said = line
        return False


def _ended(kube: Kube, namespace: str, name: str) -> bool:
    status = kube.get_job(namespace, name).get("status", {})
    for condition in status.get("conditions", ()):
        if condition["status"] == "True" and condition["type"] == "Failed":
            raise StoryError(f"the reference run failed: {condition.get('message')}\n{_log(kube, namespace, name)}")
    return bool(status.get("succeeded"))


def _log(kube: Kube, namespace: str, name: str, lines: int = 20) -> str:
    pods = kube.list(POD, namespace, f"job-name={name}")
    return "\n".join(
        line for pod in pods for line in kube.pod_logs(namespace, pod["metadata"]["name"], "main", tail=lines)
    )
