"""A checkpoint of the state engine as a file or folder that a framework reads, from the store of its job. Blocking.

Two programs do it: `singularity_proxy.store` fetches and verifies the checkpoint, `singularity_train.export` writes it
anew. Both run in one pod that is made as the pods of the job are, or both as processes of this machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from singularity_proxy.protocol import names

from ..contract import branches, job_names, kinds
from ..errors import JobNotFoundError, PlatformError, SpecError
from ..job.view import Job
from ..kube.api import Kube
from ..kube.resources import Object, pod_spec
from ..manifests.pod import AGENT_VOLUME, IMAGES_VOLUME, INSTALL
from ..requests import user_requests
from ..spec import platform_config
from ..spec.platform_config import PlatformConfig
from . import store_pod

FORMATS: Final = ("safetensors", "dcp", "torch", "trainer", "lightning")
"""As `singularity_train.export` has them."""
CONTAINER: Final = "export"
FETCHED: Final = f"{names.IMAGE_DIR}/fetched"
TIMEOUT_S = 600.0
_EXPORT = ("-m", "singularity_train.export")


@dataclass(frozen=True)
class Stored:
    """A checkpoint, and where it is.

    :param maker: the job in whose folder of the store it lies
    :param sha256: of its manifest, as it was committed; "": nobody knows
    :param job: whose pods reach the store; None: it is gone
    """

    namespace: str
    maker: str
    checkpoint: str
    url: str
    sha256: str = ""
    job: Object | None = None

    @property
    def question(self) -> tuple[str, ...]:
        """For `singularity_proxy.store`: all but the folder."""
        return ("fetch", self.namespace, self.maker, self.checkpoint)


@dataclass(frozen=True)
class Wanted:
    """:param output: a new file, or a new folder for `dcp` and `trainer`: a path in the pod, or of this machine
    :param only: a first key of the state, such as `models`; what is below it is exported without it
    :param python: with torch and `singularity_train`. Default: `python3` of the job's image, or the running one
    """

    format: str
    output: str
    only: str = ""
    python: str = ""

    def words(self, folder: str) -> list[str]:
        """Arguments of the exporter."""
        only = ["--only", self.only] if self.only else []
        return [*_EXPORT, folder, "--format", self.format, "--output", self.output, "--json", *only]


@dataclass(frozen=True)
class Exported:
    """:param left_out: objects of the state that the format has no place for"""

    checkpoint: str
    step: int
    format: str
    output: str
    tensors: int
    left_out: tuple[str, ...]


def stored(
    kube: Kube, namespace: str, name: str, checkpoint: str | None = None, store: str | None = None
) -> Stored:
    """The checkpoint of job `name`; None: the newest that can be restored.

    :param store: URL of the store, where this machine sees it elsewhere than the pods do
    :raises SpecError: no such checkpoint; JobNotFoundError, KubeError
    """
    job = kinds.named(kube, namespace, name)
    if job is None:
        raise JobNotFoundError(f"no training job {name!r} in namespace {namespace!r}; see `singularityctl status`")
    if checkpoint is None:
        usable = [ref.id for ref in branches.line(job) if not ref.unusable]
        checkpoint = usable[-1] if usable else None
    ref, problem = user_requests.committed(job, checkpoint)
    if ref is None:
        raise SpecError([problem or ("checkpoint", checkpoint, "is not there")])
    maker = branches.maker(job, kinds.job_key(job), ref.id)
    url = store or Job.parse(job).store or ref.url
    return Stored(namespace, maker, ref.id, url, ref.sha256, job)


def in_pod(kube: Kube, found: Stored, wanted: Wanted, timeout_s: float = TIMEOUT_S) -> Exported:
    """Export in a short-lived pod, which has the volumes and the image of the job.

    :raises SpecError: bad input; StoreSaidNo: it cannot be exported, and the sentence says why
    :raises PlatformError: the pod does not come up, or does not end in time; KubeError
    """
    made = pod(found, wanted, platform_config.load(kube), timeout_s)
    lines = store_pod.carry_out(kube, made, timeout_s)
    for container in (store_pod.CONTAINER, CONTAINER):
        done = store_pod.result(lines.get(container, []), f"container {container} of pod {made['metadata']['name']}")
    return _exported(found, wanted, done)


def pod(found: Stored, wanted: Wanted, platform: PlatformConfig, timeout_s: float) -> Object:
    """Its manifest. Pure. Raises SpecError."""
    template = pod_spec(found.job)
    train = next((c for c in template.get("containers") or () if c["name"] == job_names.CONTAINER_TRAIN), None)
    if train is None:
        raise SpecError([("job", found.maker, "its pods are not known any more: read the store from here instead")])
    made = store_pod.manifest(found.namespace, platform, found.url, (), timeout_s, found.job)
    (fetch,) = made["spec"]["containers"]
    mounts = fetch["volumeMounts"]
    problems = _problems(wanted, [m["mountPath"] for m in mounts if not m.get("readOnly")])
    if problems:
        raise SpecError(problems)
    room = {"name": IMAGES_VOLUME, "mountPath": names.IMAGE_DIR}
    agent = {"name": AGENT_VOLUME, "mountPath": names.AGENT_DIR}
    question = [*found.question, FETCHED, *([found.sha256] if found.sha256 else [])]
    fetch = {**fetch, "command": [*fetch["command"], *question], "volumeMounts": [*mounts, room]}
    same = ("image", "imagePullPolicy", "securityContext")
    install = {
        "name": job_names.CONTAINER_INSTALL, **{key: fetch[key] for key in same},
        "command": [*INSTALL], "volumeMounts": [agent],
    }  # fmt: skip
    export = {
        "name": CONTAINER, **{key: train[key] for key in same if key in train},
        "securityContext": fetch["securityContext"], "env": _environment(train),
        "command": [wanted.python or "python3", *wanted.words(FETCHED)],
        "volumeMounts": [*mounts, room, {**agent, "readOnly": True}],
    }  # fmt: skip
    ours = [{"name": name, "emptyDir": {}} for name in (AGENT_VOLUME, IMAGES_VOLUME)]
    secrets = {key: template[key] for key in ("imagePullSecrets",) if key in template}
    spec = {**made["spec"], **secrets, "initContainers": [install, fetch], "containers": [export]}
    return {**made, "spec": {**spec, "volumes": [*spec["volumes"], *ours]}}


def _environment(train: Mapping[str, Any]) -> list[Object]:
    """The user's, with which the image finds torch; not what makes a process a rank."""
    own = [e for e in train.get("env") or () if "value" in e and not str(e["name"]).startswith("SINGULARITY_")]
    # torch asks for a name and a home, which the image's passwd need not have for this user.
    known = {str(each["name"]) for each in own}
    more = {"HOME": "/tmp", "USER": "train", "PYTHONUNBUFFERED": "1"}  # noqa: S108 - of the container alone
    return [*own, *({"name": name, "value": value} for name, value in more.items() if name not in known)]


def here(found: Stored, wanted: Wanted, timeout_s: float = TIMEOUT_S) -> Exported:
    """Export in processes of this machine, which reaches the store.

    :raises SpecError: bad input; StoreSaidNo: it cannot be exported, and the sentence says why
    :raises PlatformError: no torch or no `singularity_proxy.store` here, or it takes longer than `timeout_s`
    """
    python, target = wanted.python or sys.executable, Path(wanted.output)
    problems = _problems(wanted, None)
    if target.exists():
        problems.append(("output", wanted.output, "it is there already; give a new path"))
    if problems:
        raise SpecError(problems)
    tried = _run([python, *_EXPORT, "--help"], timeout_s)
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["no reason"])[-1]
        fix = "name a Python that has torch and airflow-provider-singularity[train], with --python (python=)"
        raise PlatformError(f"{python} cannot export checkpoints ({last}): {fix}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as room:
        folder = f"{room}/fetched"
        digest = [found.sha256] if found.sha256 else []
        _ask([sys.executable, "-m", "singularity_proxy.store", found.url, *found.question, folder, *digest], timeout_s)
        return _exported(found, wanted, _ask([python, *wanted.words(folder)], timeout_s))


def _problems(wanted: Wanted, mounts: Sequence[str] | None) -> list[tuple[str, object, str]]:
    """:param mounts: folders of the pod where it may write; None: this machine"""
    found: list[tuple[str, object, str]] = []
    if wanted.format not in FORMATS:
        found.append(("format", wanted.format, f"give one of {', '.join(FORMATS)}"))
    if not wanted.output:
        found.append(("output", wanted.output, "give a new path"))
    elif mounts is not None:
        path = PurePosixPath(wanted.output)
        above = [mount for mount in mounts if PurePosixPath(mount) in path.parents]
        if not path.is_absolute() or ".." in path.parts or not above:
            where = ", ".join(mounts) or "there is none"
            found.append(("output", wanted.output, f"a pod writes it: give a path below a volume of the job: {where}"))
    return found


def _exported(found: Stored, wanted: Wanted, said: Mapping[str, Any]) -> Exported:
    return Exported(
        found.checkpoint, int(said["step"]), wanted.format, wanted.output, int(said["tensors"]),
        tuple(map(str, said["left_out"])),
    )  # fmt: skip


def _run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except OSError as error:
        raise PlatformError(f"{command[0]} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise PlatformError(f"{' '.join(command[:3])} has not ended within {timeout_s:g} s. Try --timeout") from error


def _ask(command: Sequence[str], timeout_s: float) -> Any:
    done = _run(command, timeout_s)
    return store_pod.result([*done.stderr.splitlines(), *done.stdout.splitlines()], " ".join(command[:3]))
