"""Ask a checkpoint store that only the cluster's nodes reach: `python -m proxy.store` in a short-lived pod.

The pod has the platform's agent image, the platform's volumes and those of the job, no token and no capability.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from singularity_proxy.protocol import decode, names

from ..errors import Invalid, KubeError, NotFound, PlatformError, StoreSaidNo, Unreachable
from ..job.view import Job
from ..kube.api import Kube
from ..kube.resources import POD, Object, pod_spec, selector
from ..manifests.pod import SIDECAR_PATH, SIDECAR_PYTHON, powerless, restricted
from ..spec import store_access
from ..spec.platform_config import PlatformConfig
from ..spec.validation import VOLUME_PREFIX
from .phase import not_started, pod_trouble

CONTAINER = "store"
LABELS = {"app.kubernetes.io/name": "singularity-store"}
"""Of all pods that `carry_out` can run."""
_LOOK_S = 2.0


def manifest(
    namespace: str,
    platform: PlatformConfig,
    url: str,
    question: Sequence[str],
    timeout_s: float,
    job: Mapping[str, Any] | None = None,
) -> Object:
    """The pod. Pure. `job` lends its volumes: its store may lie on one of its own.

    For a job of the state engine the pod is as the job's own are. The namespace may allow no other, and the store's
    files belong to their user.
    """
    template = pod_spec(job)
    elastic = Job.parse(job or {}).engine == names.ENGINE_STATE
    access = store_access.of(platform, namespace)
    volumes, mounts = ([], []) if elastic else ([*platform.volumes], [*platform.volume_mounts])
    volumes, mounts = [*volumes, *access.all_volumes], [*mounts, *access.all_mounts]
    known = {volume["name"] for volume in volumes}
    for volume in template.get("volumes") or ():
        name = str(volume["name"])
        if name not in known and not name.startswith(VOLUME_PREFIX):
            volumes.append(volume)
            sidecars = template.get("initContainers") or ()
            own = [m for c in sidecars for m in c.get("volumeMounts") or () if m["name"] == name]
            mounts += own[:1]
    env = {k: v for k, v in platform.env.items() if not k.startswith(("PYTHON", "LD_"))}
    env |= {**access.all_env, "PYTHONPATH": SIDECAR_PATH, "PYTHONUNBUFFERED": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"singularity-store-{uuid.uuid4().hex[:8]}",
            "namespace": namespace,
            "labels": dict(LABELS),
        },
        "spec": {
            **({"securityContext": template.get("securityContext") or {}} if elastic else {}),
            **({"serviceAccountName": access.service_account} if access.service_account else {}),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": max(1, int(timeout_s)),
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [
                {
                    "name": CONTAINER,
                    "image": platform.agent_image,
                    "imagePullPolicy": platform.image_pull_policy,
                    "command": [SIDECAR_PYTHON, "-m", "proxy.store", url, *question],
                    "env": [{"name": key, "value": value.replace("$", "$$")} for key, value in env.items()],
                    **({"envFrom": access.env_from} if access.secret else {}),
                    "securityContext": restricted() if elastic else powerless(),
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def ask(kube: Kube, pod: Object, timeout_s: float, progress: Callable[[int, int], None] | None = None) -> Any:
    """Run `pod` and return the store's answer. Leaves no pod behind.

    `progress` is called with (bytes done, bytes in all) now and then, where the question takes long.

    Raises StoreSaidNo, PlatformError when it does not answer within `timeout_s` seconds, KubeError.
    """
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]

    def look() -> None:
        if progress is not None:
            for done, total in told(_last_lines(kube, namespace, name)):
                progress(done, total)

    return result(carry_out(kube, pod, timeout_s, look)[CONTAINER], f"pod {name}")


def carry_out(
    kube: Kube, pod: Object, timeout_s: float, look: Callable[[], None] = lambda: None
) -> dict[str, list[str]]:
    """Run `pod` to its end and return the lines of its containers. Leaves no pod behind. `look` is called meanwhile.

    One that has not started, as one of the `initContainers` has failed, has none. Raises PlatformError, KubeError.
    """
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    kube.create(pod)
    try:
        _until_ended(kube, namespace, name, time.monotonic() + timeout_s, look)
        spec, found = pod["spec"], {}
        first = spec.get("initContainers", ())
        for container in (*first, *spec["containers"]):
            with contextlib.suppress(*((Invalid, NotFound) if first else ())):
                found[container["name"]] = [*kube.pod_logs(namespace, name, container["name"], timeout_s=30)]
        return found
    finally:
        with contextlib.suppress(NotFound, Unreachable):
            kube.delete(POD, namespace, name)


MAX_ANSWER = 16 << 20
"""Bytes: a store may have thousands of checkpoints."""


def answer(lines: Sequence[str]) -> Mapping[str, Any] | None:
    """What `python -m proxy.store` said on its last line, None when it said nothing of the kind."""
    said = decode.json_value(lines[-1], MAX_ANSWER) if lines else None
    return said if isinstance(said, dict) and {"result", "error"} & said.keys() else None


def result(lines: Sequence[str], who: str) -> Any:
    """The answer at the end of what `who` said. Raises StoreSaidNo for an error, PlatformError for no answer."""
    said = answer(lines)
    if said is None:
        fix = "Is the agent image of the chart as new as this program?"
        raise PlatformError(f"{who} did not answer but said: {' | '.join(lines[-3:]) or 'nothing'}. {fix}")
    return unpacked(said)


def unpacked(said: Mapping[str, Any]) -> Any:
    """The result of an answer. Raises StoreSaidNo for an error."""
    if "error" in said:
        raise StoreSaidNo(str(said["error"]))
    return said["result"]


def told(lines: Sequence[str]) -> list[tuple[int, int]]:
    """What lines of `python -m proxy.store` say about its progress, in order. Pure."""
    found: list[tuple[int, int]] = []
    for line in lines:
        data = decode.json_value(line)
        pair = data.get("progress") if isinstance(data, dict) else None
        if isinstance(pair, list) and [type(number) for number in pair] == [int, int]:
            found.append((pair[0], pair[1]))
    return found


def _last_lines(kube: Kube, namespace: str, name: str) -> list[str]:
    """The end of the log, empty where there is none yet."""
    try:
        return list(kube.pod_logs(namespace, name, CONTAINER, tail=1, timeout_s=10))
    except KubeError:
        return []


def _until_ended(kube: Kube, namespace: str, name: str, deadline: float, look: Callable[[], None]) -> None:
    """Raises PlatformError, also for a container that the runtime could not start."""
    seen: Object = {}
    while time.monotonic() < deadline:
        with contextlib.suppress(Unreachable):
            seen = kube.get(POD, namespace, name)
            phase = str((seen.get("status") or {}).get("phase") or "")
            if phase in ("Succeeded", "Failed"):
                if why := not_started(seen):
                    raise PlatformError(f"pod {namespace}/{name}, {why}")
                return
            if phase == "Running":
                look()
            version = seen["metadata"]["resourceVersion"]
            left = min(_LOOK_S, max(1.0, deadline - time.monotonic()))
            try:
                for _, changed in kube.watch(POD, namespace, selector(LABELS), version, left):
                    if changed["metadata"].get("name") == name:
                        break
            except KubeError as error:
                if not error.transient and error.status != 410:
                    raise
    trouble = pod_trouble([seen]) if seen else None
    why = trouble[1] if trouble else f"it is {(seen.get('status') or {}).get('phase') or 'unknown'}"
    raise PlatformError(f"pod {namespace}/{name} has not ended in time: {why}. Try --timeout")


def needed(url: str) -> bool:
    """Whether only a pod can reach the store: file:// is a path on the nodes."""
    return url.startswith("file:")
