"""`doctor --probe --gpus`: on each flavor with GPUs a pod like those of training jobs, which moves a GPU's memory
(`singularity_proxy.launcher.device.probe`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from singularity_proxy.protocol import decode, names
from singularity_proxy.protocol.messages import GpuProbe

from ..contract import job_names
from ..errors import KubeError, PlatformError
from ..jobs import store_pod
from ..kube import quantities
from ..kube.api import Kube
from ..kube.resources import CLUSTER_QUEUE, POD, RESOURCE_FLAVOR, Object
from ..manifests.pod import pod_spec
from ..spec.platform_config import PlatformConfig
from ..spec.train_spec import TrainSpec
from .check import FAIL, OK, WARN, Check, listing, shown
from .probe import TOGETHER, nodes_of

GPUS = "nvidia.com/"
"""What the resources of NVIDIA's device plugin begin with."""
GB = 1e9
NAME = "gpu probe"


def flavors(kube: Kube, namespace: str, config: PlatformConfig, image: str, timeout_s: float) -> Iterator[Check]:
    """A finding per ResourceFlavor that some ClusterQueue has GPUs of.

    :param image: with torch; "": the platform's training image
    """
    wanted = of_queues(kube.list(CLUSTER_QUEUE))
    if not wanted:
        text = f"no ClusterQueue has quota for a resource {GPUS}*: nothing to probe"
        yield Check(NAME, WARN, text, "Give a flavor of a ClusterQueue a nominalQuota for nvidia.com/gpu.")
        return
    image = image or config.train_image
    if not image:
        text = "the platform has no training image, and a GPU is probed with its torch"
        yield Check(NAME, WARN, f"not probed: {text}", "Name one: singularityctl doctor --probe --gpus --image IMAGE")
        return
    there = {str(flavor["metadata"]["name"]): flavor for flavor in kube.list(RESOURCE_FLAVOR)}
    missing = sorted(wanted.keys() - there)
    if missing:
        fix = "Create them, or take them out of the ClusterQueues."
        yield Check(NAME, WARN, f"not probed: there is no ResourceFlavor {listing(missing)}", fix)
    pods = [(n, pod(namespace, config, there[n], wanted[n], image, timeout_s)) for n in sorted(wanted) if n in there]
    with ThreadPoolExecutor(TOGETHER) as pool:
        yield from pool.map(lambda one: _one(kube, one[0], one[1], timeout_s), pods)


def of_queues(queues: Iterable[Object]) -> dict[str, str]:
    """Flavor -> the resource that its GPUs are, for all that have quota. Pure."""
    found: dict[str, str] = {}
    for queue in queues:
        for group in (queue.get("spec") or {}).get("resourceGroups") or ():
            for flavor in group.get("flavors") or ():
                for resource in flavor.get("resources") or ():
                    name = str(resource.get("name"))
                    if name.startswith(GPUS) and quantities.parse(resource.get("nominalQuota", 0)) > 0:
                        found.setdefault(str(flavor.get("name")), name)
    return found


def pod(
    namespace: str, config: PlatformConfig, flavor: Object, resource: str, image: str, timeout_s: float
) -> Object:
    """The pod of a job with one worker and one GPU, without its sidecar: its launcher probes. Pure."""
    name = f"singularity-gpus-{uuid.uuid4().hex[:8]}"
    spec = TrainSpec(
        name, "none", ("true",), namespace=namespace, image=image, resources={resource: "1"},
        env={names.ENV_PROBE: names.PROBE_GPUS}, grace_period_s=1,
    )  # fmt: skip
    made = pod_spec(spec, config)
    del made["subdomain"]
    made["initContainers"] = [each for each in made["initContainers"] if each["name"] == job_names.CONTAINER_INSTALL]
    mounted = {m["name"] for c in (*made["initContainers"], *made["containers"]) for m in c.get("volumeMounts") or ()}
    made["volumes"] = [volume for volume in made["volumes"] if volume["name"] in mounted]
    made |= {"activeDeadlineSeconds": max(1, int(timeout_s)), **nodes_of(flavor)}
    meta = {"name": name, "namespace": namespace, "labels": dict(store_pod.LABELS)}
    return {"apiVersion": POD.api_version, "kind": POD.name, "metadata": meta, "spec": made}


def _one(kube: Kube, flavor: str, made: Object, timeout_s: float) -> Check:
    try:
        return finding(flavor, store_pod.carry_out(kube, made, timeout_s)[job_names.CONTAINER_TRAIN])
    except (PlatformError, KubeError) as error:
        fix = f"See whether a node has the labels of ResourceFlavor {flavor}, and a free GPU."
        return Check(f"GPUs of {flavor}", WARN, f"not probed: {error}", fix)


def finding(flavor: str, lines: list[str]) -> Check:
    """From what the pod has printed. Pure."""
    name = f"GPUs of {flavor}"
    said = decode.message(GpuProbe, lines[-1] if lines else "")
    if isinstance(said, decode.Unreadable):
        words = " | ".join(lines[-3:]) or "it said nothing"
        fix = "Is there a python3 in the image, and is the agent image of the chart as new as this program?"
        return Check(name, FAIL, f"the pod has no answer but said: {shown(words, 300)}", fix)
    if said.error or not said.size:
        text = "; ".join(filter(None, [said.error, *said.problems])) or "it has measured nothing"
        return Check(name, FAIL, text, "Checkpoints of ranks with GPUs fail there: mend what is named.")
    if said.wrong:
        text = f"{said.wrong} words of a GPU's memory were not what they had been after they were there and back"
        return Check(name, FAIL, text, "Do not train there; report it with the driver's version.")
    text = (
        f"{listing(sorted(set(said.gpus)))}, driver {said.driver or 'unknown'}, torch {said.torch or 'unknown'}; "
        f"{said.size / GB:.2f} GB: checkpoint {said.checkpoint_s:.2f} s, restore {said.restore_s:.2f} s, every bit is "
        "back"
    )
    if said.problems:
        fix = "Mend what is named, or know what it costs."
        return Check(name, WARN, f"{text}; but: {'; '.join(said.problems)}", fix)
    return Check(name, OK, text)
