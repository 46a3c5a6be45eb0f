"""The pod of a training job: install-agent (init), device-proxy (native sidecar), train. Pure.

The process engine needs capabilities and an unfiltered seccomp in `train`; the launcher there drops the capabilities
before it starts the user's ranks. The sidecar has the token and the store's credentials but no capability at all.

A pod of the state engine keeps the Pod Security level `restricted`: all of its containers are one user's, who is not
root.
"""

from __future__ import annotations

from typing import Any

from singularity_proxy.protocol import names

from ..contract import job_names
from ..kube.resources import Object
from ..spec import store_access
from ..spec.platform_config import USER_NAMESPACE, PlatformConfig
from ..spec.secret_text import SecretText
from ..spec.train_spec import TrainSpec
from . import job_secrets

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
SIDECAR_PYTHON = "/opt/singularity/venv/bin/python"
SIDECAR_PATH = "/opt/singularity/app"
INSTALL = ("/opt/singularity/bin/install-agent", names.AGENT_DIR)
SIDECAR = (SIDECAR_PYTHON, "-m", "proxy.sidecar")
LAUNCHER = (job_names.LAUNCHER,)
"""What the commands of our containers start with: the guard policies know them by these."""
LAUNCHER_CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SYS_TIME", "SYS_PTRACE")
"""What CRIU needs to dump and restore, and the launcher to give each rank its own PID and mount namespace."""
TOKEN_SECONDS = 3600
UNMASKED = {"procMount": "Unmasked"}
"""In a user namespace the kernel lets nobody mount a /proc that shows more than the one that is there."""
NOBODY = 65532
"""uid and gid where the job names none. Images without root use it for the same."""

_RUN, _AGENT, _WORK, _IMAGES, _SHM, _TOKEN, _SOURCE, _INPUTS = (
    f"singularity-{part}" for part in ("run", "agent", "work", "images", "shm", "token", "source", "inputs")
)
IMAGES_VOLUME = _IMAGES
AGENT_VOLUME = _AGENT
SOURCE_VOLUME = _SOURCE
"""Filled by install-agent; what runs with added capabilities comes from it."""
_NOT_LIMITED = ("cpu", "ephemeral-storage")


def pod_spec(spec: TrainSpec, platform: PlatformConfig) -> Object:
    """`spec` of the pod template."""
    access = store_access.of(platform, spec.namespace)
    return {
        **({"securityContext": restricted_pod()} if spec.elastic else namespaces(platform)),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.grace_period_s,
        "subdomain": spec.name,
        **({"serviceAccountName": access.service_account} if access.service_account else {}),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "initContainers": [_installer(spec, platform), _sidecar(spec, platform, access)],
        "containers": [_train(spec, platform)],
        "volumes": [*_own_volumes(spec), *platform.volumes, *access.all_volumes, *spec.volumes],
    }


def file_keys(spec: TrainSpec) -> dict[str, str]:
    """Path -> key in the ConfigMap; a key may not hold a '/'."""
    return {path: f"file-{number:04d}" for number, path in enumerate(sorted(spec.files))}


def files_name(job_name: str) -> str:
    """Name of the ConfigMap with the files of a job."""
    return f"{job_name}-files"


def _installer(spec: TrainSpec, platform: PlatformConfig) -> Object:
    return {
        "name": job_names.CONTAINER_INSTALL,
        "image": platform.agent_image,
        "imagePullPolicy": platform.image_pull_policy,
        "command": [*INSTALL],
        **({"env": _literals({names.ENV_ENGINE: names.ENGINE_STATE})} if spec.elastic else {}),
        "securityContext": restricted() if spec.elastic else powerless(),
        "volumeMounts": [_mount(_AGENT, names.AGENT_DIR)],
    }


def _sidecar(spec: TrainSpec, platform: PlatformConfig, access: store_access.StoreAccess) -> Object:
    # PYTHONPATH and friends are meant for the user's interpreter and would break the sidecar's.
    shared = {key: value for key, value in platform.env.items() if not key.startswith(("PYTHON", "LD_"))}
    return {
        "name": job_names.CONTAINER_SIDECAR,
        "image": platform.agent_image,
        "imagePullPolicy": platform.image_pull_policy,
        "restartPolicy": "Always",
        "command": [*SIDECAR],
        "env": [
            *_literals({**shared, **access.all_env, "PYTHONPATH": SIDECAR_PATH, "PYTHONUNBUFFERED": "1"}),
            *_common_env(spec, platform),
            *_literals(
                {
                    names.ENV_CONTROLLER_URL: platform.controller_url,
                    names.ENV_CONTROLLER_CA: platform.controller_ca,
                    names.ENV_TOKEN_FILE: f"{job_names.TOKEN_DIR}/token",
                }
            ),
        ],
        **({"envFrom": access.env_from} if access.secret else {}),
        # Without a request it takes nothing from the queue's quota, which is counted in training containers.
        "securityContext": restricted() if spec.elastic else powerless(),
        "volumeMounts": [
            _mount(_RUN, names.RUN_DIR),
            _mount(_IMAGES, names.IMAGE_DIR),
            _mount(_TOKEN, job_names.TOKEN_DIR, read_only=True),
            *([_mount(_WORK, names.WORK_DIR, read_only=True)] if spec.outputs else []),
            *([_mount(_INPUTS, names.INPUTS_DIR)] if spec.inputs else []),
            *platform.volume_mounts,
            *access.all_mounts,
            *spec.volume_mounts,
        ],
    }


def _train(spec: TrainSpec, platform: PlatformConfig) -> Object:
    env = {**platform.env, **spec.env}
    paths = [f"{names.AGENT_DIR}/lib", spec.env.get("PYTHONPATH"), platform.env.get("PYTHONPATH")]
    env["PYTHONPATH"] = ":".join(path for path in paths if path)
    mounts = [
        _mount(_RUN, names.RUN_DIR),
        _mount(_AGENT, names.AGENT_DIR, read_only=True),
        _mount(_WORK, names.WORK_DIR),
        _mount(_IMAGES, names.IMAGE_DIR),
        _mount(_SHM, "/dev/shm"),  # noqa: S108 - the 64 MB of the runtime are too small for DataLoader workers
    ]
    if spec.inputs:
        mounts.append(_mount(_INPUTS, names.INPUTS_DIR, read_only=True))
    if spec.files:
        mounts.append(_mount(_SOURCE, names.SOURCE_DIR, read_only=True))
    container: Object = {
        "name": job_names.CONTAINER_TRAIN,
        "image": spec.image or platform.train_image,
        "imagePullPolicy": platform.image_pull_policy,
        "command": [*LAUNCHER],
        "env": [
            *_literals(env),
            *_common_env(spec, platform),
            *job_secrets.command(spec.command),
            *_literals(
                {
                    names.ENV_WORKDIR: spec.workdir or "",
                    **({names.ENV_INPUTS: names.INPUTS_DIR} if spec.inputs else {}),
                    **({names.ENV_REPRODUCIBLE_LAYOUT: "1"} if spec.reproducible_layout else {}),
                }
            ),
        ],
        "securityContext": restricted() if spec.elastic else for_criu(platform),
        "volumeMounts": [*mounts, *platform.volume_mounts, *spec.volume_mounts],
    }
    if spec.resources:
        container["resources"] = _resources(spec)
    return container


def _resources(spec: TrainSpec) -> Object:
    requests = {name: str(value) for name, value in spec.resources.items()}
    limits = {name: value for name, value in requests.items() if name not in _NOT_LIMITED}
    return {"requests": requests, **({"limits": limits} if limits else {})}


def namespaces(platform: PlatformConfig) -> Object:
    """What a pod of the process engine says of its namespaces."""
    return {"hostUsers": False} if platform.privileges == USER_NAMESPACE else {}


def leveled(pod: Object, level: str) -> None:
    """Give a pod spec with our launcher this level, whichever it has."""
    pod.pop("hostUsers", None)
    if level == USER_NAMESPACE:
        pod["hostUsers"] = False
    for container in pod["containers"]:
        if tuple((container.get("command") or ())[: len(LAUNCHER)]) == LAUNCHER:
            kept = {k: v for k, v in container["securityContext"].items() if k not in UNMASKED}
            container["securityContext"] = {**kept, **(UNMASKED if level == USER_NAMESPACE else {})}


def for_criu(platform: PlatformConfig) -> Object:
    """Security context of the training container, which CRIU works in."""
    named = {"type": "Localhost", "localhostProfile": platform.apparmor}
    return {
        **(UNMASKED if platform.privileges == USER_NAMESPACE else {}),
        # CRIU and namespaces need root in the container; the launcher starts the program as the job's user (`run_as`).
        "runAsUser": 0,
        "runAsGroup": 0,
        "runAsNonRoot": False,
        "privileged": False,
        "capabilities": {"add": [*LAUNCHER_CAPABILITIES]},
        # CRIU has to suspend the ranks' filter, which the kernel refuses to a process that is under one itself.
        "seccompProfile": {"type": "Unconfined"},
        # AppArmor's default profile denies mount, and every rank gets a /proc of its own.
        "appArmorProfile": named if platform.apparmor else {"type": "Unconfined"},
    }


def powerless() -> Object:
    """Security context of our own containers beside the training one."""
    return {
        # Root without capabilities: CRIU's images and the barrier page belong to root and are not for others to read.
        "runAsUser": 0,
        "runAsGroup": 0,
        "runAsNonRoot": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def restricted() -> Object:
    """Security context of every container of the state engine: what Pod Security `restricted` asks for."""
    return {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def restricted_pod() -> Object:
    """... and of the pod: one user, so that sidecar, launcher and ranks read what the others have written."""
    return {
        "runAsNonRoot": True,
        "runAsUser": NOBODY,
        "runAsGroup": NOBODY,
        "fsGroup": NOBODY,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _common_env(spec: TrainSpec, platform: PlatformConfig) -> list[Object]:
    return [
        _field(names.ENV_NAMESPACE, "metadata.namespace"),
        _field(names.ENV_POD, "metadata.name"),
        _field(names.ENV_POD_IP, "status.podIP"),
        _annotation(names.ENV_INDEX, INDEX_ANNOTATION),
        _annotation(names.ENV_ATTEMPT, job_names.ANN_ATTEMPT),
        _annotation(names.ENV_CHECKPOINT, names.ANN_CHECKPOINT),
        _annotation(names.ENV_WORKERS, job_names.ANN_WORKERS),
        _annotation(job_names.ENV_FLAVOR, job_names.ANN_FLAVOR),
        *_literals({
            names.ENV_JOB: spec.name,
            names.ENV_WORLD_SIZE: str(spec.ranks),
            names.ENV_STORE: store_access.url_of(spec.store, platform, spec.namespace),
            names.ENV_GRACE: str(spec.grace_period_s),
        }),
        *_literals(_engine_env(spec)),
    ]  # fmt: skip


def _engine_env(spec: TrainSpec) -> dict[str, str]:
    if spec.elastic:
        return {names.ENV_ENGINE: names.ENGINE_STATE, names.ENV_RANKS_PER_WORKER: str(spec.ranks // spec.workers)}
    return {names.ENV_ENGINE: names.ENGINE_BOTH} if spec.engine == names.ENGINE_BOTH else {}


def _own_volumes(spec: TrainSpec) -> list[Object]:
    token = {"audience": names.TOKEN_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    volumes: list[Object] = [
        {"name": _RUN, "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        {"name": _AGENT, "emptyDir": {}},
        {"name": _WORK, "emptyDir": {}},
        # On disk: in memory an image as large as the rank would count against the pod's limit.
        {"name": _IMAGES, "emptyDir": {}},
        {"name": _SHM, "emptyDir": {"medium": "Memory"}},
        {"name": _TOKEN, "projected": {"sources": [{"serviceAccountToken": token}]}},
    ]
    if spec.inputs:
        volumes.append({"name": _INPUTS, "emptyDir": {}})
    if spec.files:
        volumes.append({"name": _SOURCE, **_source(spec)})
    return volumes


def _source(spec: TrainSpec) -> Object:
    """Where the volume with the files of a job comes from."""
    keys = file_keys(spec)
    plain, secret = (
        [{"key": key, "path": path} for path, key in keys.items() if isinstance(spec.files[path], SecretText) is hidden]
        for hidden in (False, True)
    )
    files = {"name": files_name(spec.name), "items": plain}
    if not secret:
        return {"configMap": files}
    hidden_files = {"name": job_secrets.secret_name(spec.name), "items": secret}
    return {"projected": {"sources": [*([{"configMap": files}] if plain else []), {"secret": hidden_files}]}}


def _mount(volume: str, path: str, read_only: bool = False) -> Object:
    mount: Object = {"name": volume, "mountPath": path}
    return {**mount, "readOnly": True} if read_only else mount


def literal(value: object) -> str:
    """Kubernetes expands `$(NAME)` in values that stand in a manifest; `$$` stands for a plain `$`."""
    return value if isinstance(value, SecretText) else str(value).replace("$", "$$")


def _literals(values: dict[str, Any]) -> list[Object]:
    return [{"name": key, "value": literal(value)} for key, value in values.items()]


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _annotation(name: str, annotation: str) -> Object:
    return _field(name, f"metadata.annotations['{annotation}']")
