"""Pods for the guard of pods, good and bad ones: used by the unit tests and, on the local cluster, by the end-to-end
tests. Each is a pod spec made from the platform's configuration.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from adoption_cases import jobset, plain
from kueue_samples import spec

from kueue_integration.adoption import trainjob
from kueue_integration.adoption.jobset import adopted_jobset
from kueue_integration.adoption.patch import adopted
from kueue_integration.contract import job_names
from kueue_integration.doctor import gpu_probe, probe
from kueue_integration.jobs import store_pod
from kueue_integration.manifests import job_manifests
from kueue_integration.manifests.pod import AGENT_VOLUME
from kueue_integration.spec import mount_paths
from kueue_integration.spec.platform_config import USER_NAMESPACE, PlatformConfig
from kueue_integration.spec.secret_text import marked
from singularity_proxy.protocol import names

Pod = dict[str, Any]
Make = Callable[[PlatformConfig], Pod]


def ours(platform: PlatformConfig) -> Pod:
    """The pod of a training job."""
    made: Pod = copy.deepcopy(job_manifests.job(spec(), platform)["spec"]["template"]["spec"])
    return made


def with_outputs(platform: PlatformConfig) -> Pod:
    """The same, whose sidecar reads the ranks' folders."""
    url = f"{platform.store}/outputs/{spec().namespace}/run-1"
    made: Pod = copy.deepcopy(job_manifests.job(spec(outputs=url), platform)["spec"]["template"]["spec"])
    return made


def with_inputs(platform: PlatformConfig) -> Pod:
    """The same, whose sidecar fills a volume that its ranks read."""
    urls = {"data": f"{platform.store}/outputs/{spec().namespace}/data"}
    made: Pod = copy.deepcopy(job_manifests.job(spec(inputs=urls), platform)["spec"]["template"]["spec"])
    return made


def with_secrets(platform: PlatformConfig) -> Pod:
    """The same, with variables, words of its command and files in a Secret."""
    word = "hunter2"
    given = marked(spec(env={"KEY": word}, command=["python3", word], files={"a": word}), word.__eq__)
    made: Pod = copy.deepcopy(job_manifests.job(given, platform)["spec"]["template"]["spec"])
    return made


def other(platform: PlatformConfig) -> Pod:
    """A pod that has nothing to do with us."""
    return {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example/mine:1", "command": ["true"]}]}


def _probe(platform: PlatformConfig) -> Pod:
    made: Pod = probe.pod("default", platform, {"spec": {}}, 60)["spec"]
    return made


def _gpu_probe(platform: PlatformConfig) -> Pod:
    made: Pod = gpu_probe.pod("default", platform, {"spec": {}}, "nvidia.com/gpu", "example/torch:1", 60)["spec"]
    return made


def _jobset(platform: PlatformConfig) -> Pod:
    made: Pod = adopted_jobset(jobset(), platform)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return made


def _trainjob(platform: PlatformConfig) -> Pod:
    (replicated,) = trainjob.runtime(platform)["spec"]["template"]["spec"]["replicatedJobs"]
    pod: Pod = copy.deepcopy(replicated["template"]["spec"]["template"]["spec"])
    pod["containers"][0]["command"] += ["python3", "train.py"]
    return pod


def _own_users(platform: PlatformConfig) -> PlatformConfig:
    return replace(platform, privileges=USER_NAMESPACE)


def _unmasked(pod: Pod) -> Pod:
    return {**pod["containers"][0], "securityContext": {"procMount": "Unmasked"}}


def _with(base: Make, change: Callable[[Pod, PlatformConfig], None]) -> Make:
    def make(platform: PlatformConfig) -> Pod:
        pod = base(platform)
        change(pod, platform)
        return pod

    return make


def _container(name: str = "extra", **fields: Any) -> Pod:
    return {"name": name, "image": "example/mine:1", "command": ["true"], **fields}


def _capable(*add: str) -> Pod:
    return {"securityContext": {"capabilities": {"add": [*add]}}}


def _beside(**fields: Any) -> Callable[[Pod, PlatformConfig], None]:
    """One more init container."""
    return lambda pod, _: pod.setdefault("initContainers", []).append(_container(**fields))


def _mount(name: str, path: str, **fields: Any) -> Pod:
    return {"volumeMounts": [{"name": name, "mountPath": path, **fields}]}


def _train(**fields: Any) -> Callable[[Pod, PlatformConfig], None]:
    return lambda pod, _: pod["containers"][0].update(fields)


def _init(name: str, **fields: Any) -> Callable[[Pod, PlatformConfig], None]:
    def change(pod: Pod, _: PlatformConfig) -> None:
        next(c for c in pod["initContainers"] if c["name"] == name).update(fields)

    return change


def _pod(**fields: Any) -> Callable[[Pod, PlatformConfig], None]:
    return lambda pod, _: pod.update(fields)


def _volume(**volume: Any) -> Callable[[Pod, PlatformConfig], None]:
    return lambda pod, _: pod.setdefault("volumes", []).append(volume)


def _written(pod: Pod, platform: PlatformConfig) -> None:
    """What the platform mounts read-only, mounted by somebody who could write."""
    read = next(m["name"] for m in platform.volume_mounts if m.get("readOnly"))
    pod["volumes"] = [v for v in platform.volumes if v["name"] == read]
    pod["containers"][0].update(_mount(read, "/mnt"))


def _of_another_name(pod: Pod, platform: PlatformConfig) -> None:
    pod["containers"].append(_container(**_capable("SYS_ADMIN")))


def _without(name: str) -> Callable[[Pod, PlatformConfig], None]:
    def change(pod: Pod, _: PlatformConfig) -> None:
        pod["initContainers"] = [c for c in pod["initContainers"] if c["name"] != name]

    return change


def _replaced(pod: Pod, _: PlatformConfig) -> None:
    """The folder that the launcher comes from is filled by somebody else."""
    pod["volumes"] = [v for v in pod["volumes"] if v["name"] != AGENT_VOLUME]
    pod["volumes"].append({"name": AGENT_VOLUME, "persistentVolumeClaim": {"claimName": "mine"}})


def _elsewhere(pod: Pod, _: PlatformConfig) -> None:
    """The launcher's name in an image, and nothing of ours."""
    mounts = pod["containers"][0]["volumeMounts"]
    pod["containers"][0]["volumeMounts"] = [m for m in mounts if m["name"] != AGENT_VOLUME]


_INSTALL, _SIDECAR = job_names.CONTAINER_INSTALL, job_names.CONTAINER_SIDECAR
_HOOK = {"exec": {"command": ["sh", "-c", "id"]}}
_HELPER = {"name": "LD_PRELOAD", "value": "/mine/helper.so"}

_APART = f"a mountPath {mount_paths.APART}"
_CLEAN = "each mountPath must be absolute"
_WAYS = (
    "//singularity/agent/launcher", "/singularity//agent", "singularity/agent/launcher", "./singularity",
    "/x/../singularity/agent/launcher", "/./singularity/agent/launcher", "/singularity/../singularity", "/x/..", "/",
)  # fmt: skip
"""Paths that the container runtime cleans: to the launcher's, or to one above it."""


def _mine(container: str, path: str, **fields: Any) -> Callable[[Pod, PlatformConfig], None]:
    """A volume of the user's."""

    def change(pod: Pod, _: PlatformConfig) -> None:
        pod.setdefault("volumes", []).append({"name": "mine", "configMap": {"name": "mine", "defaultMode": 0o755}})
        (found,) = (c for key in ("containers", "initContainers") for c in pod.get(key, ()) if c["name"] == container)
        found.setdefault("volumeMounts", []).append({"name": "mine", "mountPath": path, **fields})

    return change


def _through(container: str, folder: str, path: str) -> Callable[[Pod, PlatformConfig], None]:
    """A link in the one volume would lead the other one over a program of ours."""

    def change(pod: Pod, _: PlatformConfig) -> None:
        pod["volumes"] += [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("linked", "evil")]
        (found,) = (c for key in ("containers", "initContainers") for c in pod.get(key, ()) if c["name"] == container)
        found.setdefault("volumeMounts", []).extend(
            {"name": name, "mountPath": where} for name, where in (("evil", path), ("linked", folder))
        )

    return change


def _part(**fields: Any) -> Callable[[Pod, PlatformConfig], None]:
    """A part of a claim."""

    def change(pod: Pod, _: PlatformConfig) -> None:
        claim = {"claimName": "mine", **({"readOnly": True} if fields.get("readOnly") == "claim" else {})}
        pod["volumes"].append({"name": "claim", "persistentVolumeClaim": claim})
        mount = {"name": "claim", "mountPath": "/sets/one", "subPath": "one"}
        pod["containers"][0]["volumeMounts"].append(mount | ({"readOnly": True} if fields.get("readOnly") else {}))

    return change


def _variable(container: str, name: str, value: str) -> Callable[[Pod, PlatformConfig], None]:
    """One more, or in the place of the platform's."""

    def change(pod: Pod, _: PlatformConfig) -> None:
        (found,) = (c for key in ("containers", "initContainers") for c in pod.get(key, ()) if c["name"] == container)
        kept = [each for each in found.get("env", ()) if each["name"] != name]
        found["env"] = [*kept, {"name": name, "value": value}]

    return change


GOOD: dict[str, Make] = {
    "a training job": ours,
    "a training job with outputs": with_outputs,
    "a training job with inputs": with_inputs,
    "an adopted job": lambda platform: adopted(plain(), platform)["spec"]["template"]["spec"],
    "a JobSet": _jobset,
    "a TrainJob": _trainjob,
    "an ordinary pod": other,
    "doctor's probe": _probe,
    "doctor's probe of GPUs": _gpu_probe,
    "a training job in a user namespace": lambda platform: ours(_own_users(platform)),
    "a training job under a profile of the node": lambda platform: ours(replace(platform, apparmor="mine")),
    "doctor's probe in a user namespace": lambda platform: _probe(_own_users(platform)),
    "a question to the store": lambda p: store_pod.manifest("default", p, p.store, ["ls"], 9)["spec"],
    "a capability that every container has": _with(other, _train(**_capable("NET_BIND_SERVICE", "CHOWN"))),
    "all capabilities dropped": _with(other, _train(securityContext={"capabilities": {"drop": ["ALL"]}})),
    "a sidecar of the user's": _with(ours, _beside(name="exporter", restartPolicy="Always")),
    "the platform's volumes": _with(other, lambda pod, platform: pod.update(volumes=[*platform.volumes])),
    "volumes of the user's": _with(ours, _volume(name="data", persistentVolumeClaim={"claimName": "data"})),
    "volumes beside each other": _with(ours, _through("train", "/data/", "/data-more/sets")),
    "volumes below each other in an ordinary pod": _with(
        other, lambda pod, p: (pod.update(volumes=[]), _through("main", "/data", "/data/sets")(pod, p))
    ),
    "a path with a slash at its end": _with(ours, _mine("train", "/etc/mine/")),
    "a path with dots that mean nothing": _with(ours, _mine("train", "/.cache/..data/x..y/...")),
    "a part of a config map": _with(ours, _mine("train", "/etc/mine.conf", subPath="mine.conf", readOnly=True)),
    "a part of a claim": _with(ours, _part()),
    "secret words of the command": with_secrets,
    "a home in the sidecar": _with(ours, _variable(job_names.CONTAINER_SIDECAR, "HOME", "/singularity/run")),
    "a cloud's identity": _with(
        ours,
        _init(
            _INSTALL,
            env=[{"name": "AWS_ROLE_ARN", "value": "arn"}],
            volumeMounts=[
                {"name": AGENT_VOLUME, "mountPath": names.AGENT_DIR},
                {"name": "singularity-token", "mountPath": "/var/run/secrets/eks.amazonaws.com/serviceaccount"},
            ],
        ),
    ),
}

BAD: dict[str, tuple[Make, str]] = {
    "an unmasked /proc of the user's in a user namespace": (
        _with(other, lambda pod, _: pod.update(hostUsers=False, containers=[_unmasked(pod)])),
        "container main: privileged, hostProcess and procMount must not be set",
    ),
    "the node's network": (_with(other, _pod(hostNetwork=True)), "hostNetwork must not be set"),
    "the node's processes": (_with(ours, _pod(hostPID=True)), "hostPID must not be set"),
    "the node's IPC": (_with(ours, _pod(hostIPC=True)), "hostIPC must not be set"),
    "the node's files": (_with(other, _volume(name="root", hostPath={"path": "/"})), "volume root: a hostPath must"),
    "a folder beside the platform's": (
        _with(ours, lambda pod, p: pod["volumes"].append({"name": "up", "hostPath": {
            "path": next(v["hostPath"]["path"] for v in p.volumes) + "/x"}})),
        "volume up: a hostPath must",
    ),
    "the platform's Python, to be written": (_with(other, _written), "container main: a hostPath that the platform"),
    "privileged": (_with(other, _train(securityContext={"privileged": True})), "container main: privileged"),
    "a privileged launcher": (
        _with(ours, lambda pod, _: pod["containers"][0]["securityContext"].update(
            privileged=True, allowPrivilegeEscalation=True)),
        "container train: privileged",
    ),
    "a privileged init container": (
        _with(ours, _beside(securityContext={"privileged": True})), "container extra: privileged"
    ),
    "a capability": (_with(other, _train(**_capable("SYS_PTRACE"))), "container main: only the platform's launcher"),
    "all capabilities": (_with(other, _train(**_capable("ALL"))), "container main: only the platform's launcher"),
    "a capability beside the launcher": (
        _with(ours, _of_another_name), "container extra: only the platform's launcher"
    ),
    "an init container with a capability": (
        _with(ours, _beside(**_capable("SYS_ADMIN"))), "container extra: only the platform's launcher"
    ),
    "one more capability of the launcher": (
        _with(ours, _train(**_capable("SYS_ADMIN", "SYS_MODULE"))), "container train: only the platform's launcher"
    ),
    "another program as the launcher": (
        _with(ours, _train(command=["sh", "-c", "id"])), "container train: only the platform's launcher"
    ),
    "no program, but the image's own": (
        _with(ours, lambda pod, _: pod["containers"][0].pop("command")), "container train: only the platform's launcher"
    ),
    "the launcher's name in an ordinary pod": (
        _with(other, _train(name="train", **_capable("SYS_ADMIN"))), "container train: only the platform's launcher"
    ),
    "the launcher as an init container": (
        _with(ours, lambda pod, _: pod.update(initContainers=pod["containers"], containers=[_container("main")])),
        "container train: only the platform's launcher",
    ),
    "a hook of the launcher": (
        _with(ours, _train(lifecycle={"postStart": _HOOK})), "container train: only the platform's launcher"
    ),
    "a probe of the launcher": (
        _with(ours, _train(livenessProbe=_HOOK)), "container train: only the platform's launcher"
    ),
    "a launcher without its installer": (
        _with(ours, _without(_INSTALL)), "container train: only the platform's launcher"
    ),
    "a launcher from the image": (_with(ours, _elsewhere), "container train: only the platform's launcher"),
    "a launcher from a part of the volume": (
        _with(ours, _train(**_mount(AGENT_VOLUME, names.AGENT_DIR, readOnly=True, subPath="x"))),
        "container train: only the platform's launcher",
    ),
    "AppArmor off": (
        _with(other, _train(securityContext={"appArmorProfile": {"type": "Unconfined"}})),
        "container main: appArmorProfile",
    ),
    "another installer": (
        _with(ours, _init(_INSTALL, image="example/mine:1")), "init container install-agent: the name is the platform's"
    ),
    "another command of the installer": (
        _with(ours, _init(_INSTALL, command=["sh"])), "init container install-agent: the name is the platform's"
    ),
    "arguments of the installer": (
        _with(ours, _init(_INSTALL, args=["/mine"])), "init container install-agent: the name is the platform's"
    ),
    "a library in the installer": (
        _with(ours, _init(_INSTALL, env=[_HELPER])), "init container install-agent: must have nothing but"
    ),
    "a folder in the installer": (
        _with(ours, lambda pod, _: pod["initContainers"][0]["volumeMounts"].append(
            {"name": "singularity-work", "mountPath": "/bin"})),
        "init container install-agent: must have nothing but",
    ),
    "another sidecar": (
        _with(ours, _init(_SIDECAR, image="example/mine:1")), "init container device-proxy: the name is the platform's"
    ),
    "a sidecar with a program of the user's": (
        _with(ours, lambda pod, _: pod["initContainers"][1]["volumeMounts"].append(
            {"name": "singularity-images", "mountPath": "/opt/singularity/app"})),
        "init container device-proxy: the name is the platform's",
    ),
    "a container with the sidecar's name": (
        _with(other, lambda pod, _: pod["containers"].append(_container(_SIDECAR))),
        "init container device-proxy: the name is the platform's",
    ),
    "somebody who writes where the launcher comes from": (
        _with(ours, _beside(**_mount(AGENT_VOLUME, "/agent"))), f"container extra: volume {AGENT_VOLUME} must be"
    ),
    "a launcher that can be written": (
        _with(ours, lambda pod, _: [
            m.pop("readOnly") for m in pod["containers"][0]["volumeMounts"] if m["name"] == AGENT_VOLUME]),
        f"container train: volume {AGENT_VOLUME} must be",
    ),
    "the launcher's place filled by somebody else": (_with(ours, _replaced), f"volume {AGENT_VOLUME}: must be"),
    "something over the launcher": (
        _with(ours, lambda pod, _: pod["containers"][0]["volumeMounts"].append(
            {"name": "singularity-work", "mountPath": f"{names.AGENT_DIR}/lib"})),
        "container train: nothing but the platform's volumes",
    ),
    "something of the user's in our folder": (
        _with(ours, lambda pod, _: (
            pod["volumes"].append({"name": "mine", "emptyDir": {}}),
            pod["containers"][0]["volumeMounts"].append({"name": "mine", "mountPath": "/singularity/run/x"}))),
        "container train: nothing but the platform's volumes",
    ),
    "a probe with a library": (
        _with(_probe, lambda pod, _: pod["containers"][1].update(env=[_HELPER])),
        "container criu: only the platform's launcher",
    ),
    "a probe with another program": (
        _with(_probe, lambda pod, _: pod["containers"][1].update(command=["sh"])),
        "container criu: only the platform's launcher",
    ),
    **{
        f"the launcher's place, as {path}": (_with(ours, _mine("train", path)), f"container train: {_CLEAN}")
        for path in _WAYS
    },
    "the launcher's place, by way of a link in a volume": (
        _with(ours, _through("train", "/v", "/v/a/agent")), f"container train: {_APART}"
    ),
    "the launcher's place, by way of a link in a volume with a slash": (
        _with(ours, _through("train", "/v/", "/v/a/agent")), f"container train: {_APART}"
    ),
    "the launcher's place, by way of a link in the platform's volume": (
        _with(ours, _mine("train", "/shared/a/agent")), f"container train: {_APART}"
    ),
    "our folder, from a volume that is called as ours are": (
        _with(ours, lambda pod, _: (
            pod["volumes"].append({"name": "singularity-mine", "persistentVolumeClaim": {"claimName": "mine"}}),
            pod["containers"][0]["volumeMounts"].append({"name": "singularity-mine", "mountPath": "/singularity"}))),
        f"container train: {_APART}",
    ),
    **{
        f"the launcher's place, by way of a link at {path}": (_with(ours, _mine("train", path)), f"train: {_APART}")
        for path in (
            "/dev/shm/a/agent", "/proc/self/root/singularity/agent", "/proc/1/cwd/singularity/agent",
            "/proc/thread-self/root/singularity/agent/launcher",
        )
    },
    "the installer's program, by way of a link in a secret's place": (
        _with(ours, _through("install-agent", "/var/run/secrets/v", "/var/run/secrets/v/a/bin")),
        f"container install-agent: {_APART}",
    ),
    "the sidecar's program, by way of a link in a volume": (
        _with(ours, _through("device-proxy", "/v", "/v/a/app")), f"container device-proxy: {_APART}"
    ),
    "the installer's place, by way of a secret's": (
        _with(ours, _mine("install-agent", "/var/run/secrets/../../../opt/singularity/bin")),
        f"container install-agent: {_CLEAN}",
    ),
    "a path of an ordinary pod that is cleaned": (_with(other, _mine("main", "data")), f"container main: {_CLEAN}"),
    "a root of the user's": (
        _with(ours, _variable("train", "SINGULARITY_ROOT", "/evil")), "container train: variables that start with"
    ),
    "a word of the command for the sidecar": (
        _with(ours, _variable(_SIDECAR, "SINGULARITY_SECRET_0", "x")),
        "container device-proxy: variables that start with",
    ),
    "a variable like a word of the command": (
        _with(ours, _variable("train", "SINGULARITY_SECRET_ROOT", "x")),
        "container train: variables that start with",
    ),
    "a sidecar with a variable that nobody knows": (
        _with(ours, _variable(_SIDECAR, "SINGULARITY_CONTROLLER_URL_X", "https://evil")),
        "container device-proxy: variables that start with",
    ),
    "a folder that looks like a driver": (
        _with(ours, _mine("train", "/mine/nvidia", readOnly=True)), "container train: a mountPath must not look like"
    ),
    "a library that looks like a driver's": (
        _with(ours, _mine("train", "/mine/libnvidia-ml.so.1/", subPath="x")),
        "container train: a mountPath must not look like",
    ),
    "a read-only part of a claim": (
        _with(ours, _part(readOnly=True)), "a subPath of a claim must not be mounted with readOnly"
    ),
    "a part of a read-only claim": (
        _with(ours, _part(readOnly="claim")), "a subPath of a claim must not be mounted with readOnly"
    ),
    "a sidecar with modules of the user's": (
        _with(ours, _variable(_SIDECAR, "PYTHONPATH", "/mine")), "init container device-proxy: must have no workingDir"
    ),
    "a sidecar in a folder of the user's": (
        _with(ours, _init(_SIDECAR, workingDir="/mine")), "init container device-proxy: must have no workingDir"
    ),
    "a hook of the sidecar": (
        _with(ours, _init(_SIDECAR, lifecycle={"postStart": _HOOK})),
        "init container device-proxy: must have no workingDir",
    ),
    "a sidecar with libraries of the user's": (
        _with(ours, _mine(_SIDECAR, "/usr/lib/x86_64-linux-gnu")),
        "init container device-proxy: must have no workingDir",
    ),
    "somebody else who serves the launcher": (
        _with(ours, _beside(restartPolicy="Always", **_mount("singularity-run", "/run"))),
        "container extra: the platform's volumes are for its own containers",
    ),
    "a probe with all capabilities": (
        _with(_probe, lambda pod, _: pod["containers"][1].update(_capable("ALL"))),
        "container criu: only the platform's launcher",
    ),
    "a probe with the kubelet's message over its program": (
        _with(_probe, lambda pod, _: pod["containers"][1].update(terminationMessagePath="/opt/singularity/launcher/x")),
        "container criu: only the platform's launcher",
    ),
    "a probe with a volume": (
        _with(_probe, _mine("criu", "/var/run/secrets/mine")), "container criu: only the platform's launcher"
    ),
    "a probe with a home": (
        _with(_probe, _variable("criu", "HOME", "/proc/9/root")), "container criu: only the platform's launcher"
    ),
    "a probe that sees other containers": (
        # alone, for a probe of a store on the node breaks the rule of that container as well
        _with(_probe, lambda pod, _: pod.update(shareProcessNamespace=True, containers=pod["containers"][1:])),
        "container criu: only the platform's launcher",
    ),
    "a probe with another image": (
        _with(_probe, lambda pod, _: pod["containers"][1].update(image="example/mine:1")),
        "container criu: only the platform's launcher",
    ),
    # A process beside ours that sees it reaches its files by way of /proc.
    "somebody who sees the installer": (
        _with(ours, lambda pod, _: (
            pod.update(shareProcessNamespace=True),
            pod["initContainers"].insert(0, _container("watch", restartPolicy="Always")))),
        "no shareProcessNamespace beside it",
    ),
    "somebody who sees the sidecar": (
        _with(ours, lambda pod, _: pod.update(shareProcessNamespace=True, containers=[_container()])),
        "container install-agent: no shareProcessNamespace beside it",
    ),
    "the kubelet's message over the launcher": (
        _with(ours, _train(terminationMessagePath="/singularity/agent/launcher/digests")),
        "nor may terminationMessagePath be there",
    ),
    "the kubelet's message over the launcher, by a path that is cleaned": (
        _with(ours, _train(terminationMessagePath="/x/../singularity/agent")), "nor may terminationMessagePath be there"
    ),
    "the kubelet's message over the installer's program": (
        _with(ours, _init(_INSTALL, terminationMessagePath="/opt/singularity/launcher/digests")),
        "init container install-agent: the name is the platform's",
    ),
    "a device of the user's in the sidecar": (
        _with(ours, lambda pod, _: (
            pod["volumes"].append({"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}),
            _init(_SIDECAR, volumeDevices=[{"name": "disk", "devicePath": "/opt/singularity/app/x"}])(pod, _))),
        "init container device-proxy: the name is the platform's",
    ),
    **{
        f"a sidecar with modules by {name}": (
            _with(ours, _variable(_SIDECAR, name, "/mine")), "init container device-proxy: must have no workingDir"
        )
        for name in ("OPENSSL_CONF", "OPENSSL_MODULES", "GCONV_PATH")
    },
    # What Pod Security's baseline refuses besides.
    "a port of the node": (
        _with(other, _train(ports=[{"containerPort": 10250, "hostPort": 10250}])), "hostPort of container main must not"
    ),
    "a probe of another host": (
        _with(other, _train(livenessProbe={"httpGet": {"host": "169.254.169.254", "port": 80}})),
        "a probe's host of container main must not",
    ),
    "a hook that asks another host": (
        _with(other, _train(lifecycle={"postStart": {"httpGet": {"host": "10.0.0.1", "port": 80}}})),
        "a probe's host of container main must not",
    ),
    "no filter of system calls": (
        _with(other, _pod(securityContext={"seccompProfile": {"type": "Unconfined"}})),
        "seccompProfile Unconfined of container main must not",
    ),
    "a setting of the kernel": (
        _with(other, _pod(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]})),
        "sysctl kernel.msgmax must not",
    ),
    "another type of SELinux": (
        _with(other, _train(securityContext={"seLinuxOptions": {"type": "spc_t"}})), "seLinuxOptions must not be set"
    ),
}  # fmt: skip
