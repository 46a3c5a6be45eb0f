"""How much later a pod begins with a user namespace: volumes and root file system are mounted with their ids mapped.

Equal pods with the training image and the platform's volumes start in turns on one node, with `hostUsers: false` and
without. Each says the time at which its program began; the clock is this machine's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from kueue_integration.jobs import store_pod
from kueue_integration.kube.resources import NODE, Object
from kueue_integration.spec.platform_config import PlatformConfig
from localcluster.demo.stage import NAMESPACE, Stage

from .model import Group, Measured, Options, Say, Spec
from .preemption import stage
from .stats import median, spread

LIMIT_S = 300.0


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    pairs: list[tuple[float, float]] = []
    with stage(say) as on:
        node = str(on.kube.list(NODE)[0]["metadata"]["name"])
        for own in (True, False):
            once(on, node, own)  # the node has the image unpacked, in both ways, from now on
        for number in range(3 if options.quick else 15):
            took = {own: once(on, node, own) for own in ((True, False) if number % 2 else (False, True))}
            pairs.append((took[True], took[False]))
            say(f"pair {number + 1}: user namespace {took[True]} s, node {took[False]} s")
    more = [own - node_s for own, node_s in pairs]
    with_s, without_s = (median(side) for side in zip(*pairs, strict=True))
    text = f"created to the program's first act: {with_s:.3g} s in a user namespace, {without_s:.3g} s without; "
    return {"userns_pod_start_s": Measured(median(more), pairs, f"{text}the difference +- {spread(more):.2g} s")}


def once(on: Stage, node: str, own: bool) -> float:
    """Seconds from a pod's creation until its program begins. Raises PlatformError, KubeError."""
    asked = pod(on.platform, node, own)
    began = time.time()
    lines = store_pod.carry_out(on.kube, asked, LIMIT_S)[store_pod.CONTAINER]
    return round(float(lines[0]) - began, 3)


def pod(platform: PlatformConfig, node: str, own: bool) -> Object:
    """The pod. Pure but for its name."""
    rooms = [{"name": "own", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": room["name"], "mountPath": f"/own/{room['name']}"} for room in rooms]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-start-{uuid.uuid4().hex[:8]}", "namespace": NAMESPACE},
        "spec": {
            **({"hostUsers": False} if own else {}),
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": store_pod.CONTAINER,
                    "image": platform.train_image,
                    "imagePullPolicy": platform.image_pull_policy,
                    "command": ["date", "+%s.%N"],
                    "volumeMounts": [*platform.volume_mounts, *mounts],
                }
            ],
            "volumes": [*platform.volumes, *rooms],
        },
    }


GROUP = Group(
    "pod start",
    "root, local cluster with runc 1.2, Linux 6.3",
    [Spec("userns_pod_start_s", "s", "<= 1", "start of a pod with hostUsers: false, beyond that of one without")],
    measure,
)
