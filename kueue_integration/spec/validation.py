"""The rules of a valid TrainSpec, each a generator of `(field, value, what is wrong and what to do)`. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from singularity_proxy.protocol import exit_codes, inputs, names, page, starters

from ..kube import quantities
from ..kube.resources import KUEUE_GROUP
from . import engine, mount_paths, outputs_place, privileges, save_interval, store_access
from .platform_config import PlatformConfig
from .train_spec import TrainSpec

Problem = tuple[str, object, str]

MAX_NAME = 52
MAX_FILES_BYTES = 900_000
"""A ConfigMap ends at 1 MiB with its metadata."""
STORE_SCHEMES = ("file", "gs", "s3", "az")
LAUNCHER_ENV = frozenset(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
     "MASTER_PORT")
)  # fmt: skip
RESERVED_DOMAINS = (names.DOMAIN, KUEUE_GROUP, "batch.kubernetes.io", "job-name", "controller-uid")
MAX_EXECUTION_LABEL = f"{KUEUE_GROUP}/max-exec-time-seconds"
"""Kueue's own label for the longest that a job may run, all attempts together: the one of its labels that is free."""
MAX_EXIT_CODES = 200
"""Kubernetes takes 255 in a rule; some are ours."""
MAX_RETRIES = 10_000
MAX_TTL_S = 2**31 - 1
"""As in Kubernetes."""
LEAST_DISK = 2**20
LEAST_MEMORY = 2**24
VOLUME_PREFIX = "singularity-"
"""Of the names of our own volumes in the pod."""

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")


def problems(spec: TrainSpec, platform: PlatformConfig | None = None) -> list[Problem]:
    """Every problem of `spec`, in the order of its fields; empty when it is valid."""
    return [
        *_names(spec), *_command(spec), *_sizes(spec), *_image(spec, platform), *_resources(spec), *_env(spec),
        *_files(spec), *_workdir(spec), *_store(spec, platform), *_inputs(spec, platform), *_outputs(spec, platform),
        *_times(spec, platform),
        *_volumes(spec, platform),
        *_metadata(spec), *_exit_codes(spec), *_rooms(spec, platform),
        *_privileges(spec, platform),
    ]  # fmt: skip


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names(spec: TrainSpec) -> Iterator[Problem]:
    if not isinstance(spec.name, str) or not _DNS_1035.fullmatch(spec.name):
        yield "name", spec.name, "must start with a letter and have only lower-case letters, digits and '-' in it"
    elif len(spec.name) > MAX_NAME:
        yield "name", spec.name, f"has {len(spec.name)} characters; use at most {MAX_NAME}: pods get a suffix"
    if not spec.queue:
        yield "queue", spec.queue, "is empty; name the Kueue LocalQueue to submit to"
    elif not isinstance(spec.queue, str) or len(spec.queue) > 253 or not _SUBDOMAIN.fullmatch(spec.queue):
        yield "queue", spec.queue, "is not a name that a LocalQueue can have (lower-case letters, digits, '-', '.')"
    if not isinstance(spec.namespace, str) or len(spec.namespace) > 63 or not _DNS_LABEL.fullmatch(spec.namespace):
        yield "namespace", spec.namespace, "is not a name that a namespace can have (lower-case letters, digits, '-')"
    if spec.priority_class is not None and not _SUBDOMAIN.fullmatch(str(spec.priority_class)):
        yield "priority_class", spec.priority_class, "is not a name that a WorkloadPriorityClass can have"
    if spec.identity is not None and (not spec.identity or not _LABEL_VALUE.fullmatch(str(spec.identity))):
        yield "identity", spec.identity, "is not a label value (1-63 letters, digits, '-', '_', '.')"
    if spec.engine not in (engine.AUTO, *names.ENGINES):
        yield "engine", spec.engine, "must be 'auto', 'process', 'state' or 'both'"
    for field in ("hold", "reproducible_layout"):
        if not isinstance(getattr(spec, field), bool):
            yield field, getattr(spec, field), "must be true or false"


def _command(spec: TrainSpec) -> Iterator[Problem]:
    if isinstance(spec.command, str):
        yield "command", spec.command, "must be a list of words, for example ['python3', 'train.py']"
    elif not isinstance(spec.command, Sequence) or not spec.command:
        yield "command", spec.command, "is empty; give the program to run, for example ['python3', 'train.py']"
    elif not all(isinstance(word, str) and "\0" not in word for word in spec.command) or not spec.command[0]:
        yield "command", spec.command, "must be a list of texts that starts with a program"
    elif _is_int(spec.ranks) and (problem := starters.problem(spec.command, spec.ranks)):
        yield "command", spec.command, problem


def _sizes(spec: TrainSpec) -> Iterator[Problem]:
    if not _is_int(spec.workers) or spec.workers < 1:
        yield "workers", spec.workers, "must be a whole number, 1 or more"
        return
    if spec.min_workers is not None:
        if not _is_int(spec.min_workers) or spec.min_workers < 1:
            yield "min_workers", spec.min_workers, "must be a whole number, 1 or more"
        elif spec.min_workers > spec.workers:
            yield "min_workers", spec.min_workers, f"is more than workers ({spec.workers}); lower it or raise workers"
    if not _is_int(spec.ranks) or spec.ranks < 1:
        yield "world_size", spec.world_size, "must be a whole number, 1 or more"
    elif spec.ranks % spec.workers:
        lower, upper = spec.ranks // spec.workers * spec.workers, (spec.ranks // spec.workers + 1) * spec.workers
        fix = f"{lower} or {upper}" if lower else str(upper)
        yield "world_size", spec.world_size, f"cannot be divided among {spec.workers} workers; use {fix}"
    elif spec.ranks > page.MAX_WORLD:
        field = "workers" if spec.world_size is None else "world_size"
        yield field, spec.ranks, f"more than {page.MAX_WORLD} ranks are not supported"


def _image(spec: TrainSpec, platform: PlatformConfig | None) -> Iterator[Problem]:
    if spec.image:
        if not isinstance(spec.image, str) or re.search(r"\s", spec.image):
            yield "image", spec.image, "is not an image reference"
    elif platform is not None and not platform.train_image:
        yield "image", spec.image, "is missing and the platform has no default; name the training image"


def _resources(spec: TrainSpec) -> Iterator[Problem]:
    for name, value in spec.resources.items():
        where = f"resources[{name!r}]"
        prefix, _, base = str(name).rpartition("/")
        if not _LABEL_NAME.fullmatch(base) or (prefix and not _SUBDOMAIN.fullmatch(prefix)):
            yield where, value, "is not a resource name, as 'cpu', 'memory' or 'nvidia.com/gpu' are"
            continue
        try:
            amount = quantities.parse(value)
        except ValueError:
            yield where, value, "is not a quantity, as '500m', '2' or '2Gi' are"
            continue
        if amount <= 0:
            yield where, value, "must be more than 0; leave it out instead"
        elif prefix and amount.denominator != 1:
            yield where, value, "must be a whole number of devices"


def _env(spec: TrainSpec) -> Iterator[Problem]:
    for name, value in spec.env.items():
        where = f"env[{name!r}]"
        if not _ENV_NAME.fullmatch(str(name)):
            yield where, value, "is not a name for an environment variable (letters, digits, '_')"
        elif name.startswith("SINGULARITY_") or name in LAUNCHER_ENV:
            yield where, value, "is set by the launcher; choose another name"
        elif not isinstance(value, str) or "\0" in value:
            yield where, value, "must be text; quote it"


def _files(spec: TrainSpec) -> Iterator[Problem]:
    total = 0
    for path, text in spec.files.items():
        where = f"files[{path!r}]"
        parts = str(path).split("/")
        if str(path).startswith("/"):
            yield where, path, "is an absolute path; use one relative to the working directory"
        elif any(part in ("", ".") or part.startswith("..") for part in parts) or "\0" in str(path):
            yield where, path, "has an empty, '.' or '..' part; use a plain relative path"
        elif any("/".join(parts[:depth]) in spec.files for depth in range(1, len(parts))):
            yield where, path, "lies below a path that is itself a file"
        if isinstance(text, str):
            total += len(text.encode("utf-8", "surrogatepass")) + len(str(path).encode("utf-8", "surrogatepass"))
        else:
            yield where, type(text).__name__, "must be text; put binary data into the image or the store"
    if total > MAX_FILES_BYTES:
        yield (
            "files",
            f"{len(spec.files)} files, {total} bytes",
            (f"are more than {MAX_FILES_BYTES} bytes; put large ones into the image, a volume or the store"),
        )


def _workdir(spec: TrainSpec) -> Iterator[Problem]:
    if spec.workdir is not None and not str(spec.workdir).startswith("/"):
        yield "workdir", spec.workdir, "must be an absolute path in the image"
    elif spec.workdir is not None and spec.files:
        yield "workdir", spec.workdir, "files are shipped into the per-rank directory; leave workdir out or files"


def _store(spec: TrainSpec, platform: PlatformConfig | None) -> Iterator[Problem]:
    access = store_access.of(platform, spec.namespace)
    url = spec.store or access.url
    if not url:
        if platform is not None:
            yield "store", spec.store, "is missing and the platform has no default; give a URL such as gs://bucket/path"
        return
    parts = urlsplit(str(url))
    if parts.scheme == "memory":
        yield "store", url, "memory:// lives in one process and would vanish with the pod; use file, gs, s3 or az"
    elif parts.scheme not in STORE_SCHEMES or "::" in str(url):
        known = ", ".join(f"{scheme}://" for scheme in STORE_SCHEMES)
        yield "store", url, f"is of a kind that the agent image has no library for; use {known}"
    elif parts.scheme != "file":
        if not parts.netloc:
            yield "store", url, f"has no bucket; use {parts.scheme}://bucket/path"
    elif parts.netloc or not parts.path.startswith("/") or ".." in PurePosixPath(parts.path).parts:
        yield "store", url, "must be file:/// with an absolute path"
    elif platform is not None and not _writable(
        f"{parts.path}/jobs/{spec.namespace}", [*platform.volume_mounts, *access.mounts, *spec.volume_mounts]
    ):
        yield (
            "store",
            url,
            (
                "is not writable: no writable volume is mounted at this path or above it, so checkpoints would vanish "
                "with the pod; add a volume and a volume_mount, or use a path below one"
            ),
        )


def _place(url: str, spec: TrainSpec, platform: PlatformConfig | None) -> str:
    """Why the job may not have this URL for inputs or outputs; "" if it may."""
    return outputs_place.malformed(url) if platform is None else outputs_place.problem(url, platform, spec.namespace)


def _inputs(spec: TrainSpec, platform: PlatformConfig | None) -> Iterator[Problem]:
    if not isinstance(spec.inputs, Mapping):
        yield "inputs", spec.inputs, "must be a mapping: name -> URL of a folder"
        return
    for name, url in spec.inputs.items():
        where = f"inputs[{name!r}]"
        if not isinstance(name, str) or not inputs.NAME.fullmatch(name):
            yield where, name, "names a folder: use 1-63 letters, digits, '-' and '_', a letter or digit first"
        elif text := _place(url, spec, platform):
            yield where, url, text
    if len(spec.inputs) > inputs.MOST:
        yield "inputs", len(spec.inputs), f"more than {inputs.MOST}; put them below one URL"
    if spec.inputs and names.ENV_INPUTS in spec.env:
        yield f"env[{names.ENV_INPUTS!r}]", spec.env[names.ENV_INPUTS], "is set where a job has inputs; leave it out"


def _outputs(spec: TrainSpec, platform: PlatformConfig | None) -> Iterator[Problem]:
    url = spec.outputs
    if url is None:
        return
    if text := _place(url, spec, platform):
        yield "outputs", url, text
    elif platform is not None and url.startswith("file://"):
        access = store_access.of(platform, spec.namespace)
        mounts = [*platform.volume_mounts, *access.mounts, *spec.volume_mounts]
        if not _writable(url.removeprefix("file://"), mounts):
            yield (
                "outputs",
                url,
                "is not writable: no writable volume of the sidecar is mounted at this path or above it, so the files "
                "would vanish with the pod; use a path below one",
            )
    if names.ENV_OUTPUTS in spec.env:
        yield f"env[{names.ENV_OUTPUTS!r}]", spec.env[names.ENV_OUTPUTS], "is set where a job has outputs; leave it out"


def _writable(path: str, mounts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the innermost mount that holds `path` is writable."""
    target = PurePosixPath(path)
    holding = [m for m in mounts if target.is_relative_to(PurePosixPath(str(m.get("mountPath", "\0"))))]
    innermost = max(holding, key=lambda m: len(PurePosixPath(str(m["mountPath"])).parts), default=None)
    return innermost is not None and not innermost.get("readOnly", False)


def _times(spec: TrainSpec, platform: PlatformConfig | None) -> Iterator[Problem]:
    for field in ("checkpoint_budget_s", "grace_period_s"):
        value = getattr(spec, field)
        if not _is_int(value) or value < 1:
            yield field, value, "must be a whole number of seconds, 1 or more"
        elif field == "checkpoint_budget_s" and platform is not None and value > platform.max_budget_s:
            yield field, value, f"is more than the platform's ceiling; use at most {platform.max_budget_s}"
    if spec.ttl_s is not None and (not _is_int(spec.ttl_s) or not 0 <= spec.ttl_s <= MAX_TTL_S):
        yield "ttl_s", spec.ttl_s, f"must be a whole number of seconds, 0 to {MAX_TTL_S}, or None for never"
    try:
        save_interval.parse(spec.checkpoint_every)
    except ValueError as error:
        yield "checkpoint_every", spec.checkpoint_every, str(error)


def _rooms(spec: TrainSpec, platform: PlatformConfig | None) -> Iterator[Problem]:
    disk = ("checkpoint_disk", "unlimited", LEAST_DISK, "1Mi, as '50Gi' is, or 'unlimited'", "pods.checkpointDisk")
    memory = ("checkpoint_memory", "0", LEAST_MEMORY, "16Mi, as '4Gi' is, or '0' for none", "pods.checkpointMemory")
    for field, word, least, least_words, value in (disk, memory):
        wish, whose = getattr(spec, field), ""
        if wish is None and platform is not None and getattr(platform, field):
            wish, whose = getattr(platform, field), f" (the chart's value {value})"
        if wish is not None and wish != word and not _at_least(wish, least):
            yield field, wish, f"must be a quantity of at least {least_words}{whose}"


def _at_least(wish: object, least: int) -> bool:
    try:
        return isinstance(wish, str) and quantities.parse(wish) >= least
    except ValueError:
        return False


def _privileges(spec: TrainSpec, platform: PlatformConfig | None) -> Iterator[Problem]:
    known = isinstance(spec.engine, str) and spec.engine in (engine.AUTO, *names.ENGINES)
    if known and spec.elastic and spec.reproducible_layout is True:
        yield "reproducible_layout", True, "must be left out: engine 'state' saves no processes"
    if text := privileges.problem(spec.privileges, None if not known or spec.elastic else platform):
        yield "privileges", spec.privileges, text


def _volumes(spec: TrainSpec, platform: PlatformConfig | None) -> Iterator[Problem]:
    access = store_access.of(platform, spec.namespace)
    shared = platform.volumes if platform else ()
    yield from volumes("volumes", spec.volumes, (*shared, *access.volumes))
    known = {volume.get("name") for volume in (*shared, *spec.volumes)} if platform else None
    theirs = (*platform.volume_mounts, *access.mounts) if platform else ()
    yield from mounts("volume_mounts", spec.volume_mounts, known, theirs)


def volumes(
    field: str, given: Sequence[Mapping[str, Any]], others: Iterable[Mapping[str, Any]] = ()
) -> Iterator[Problem]:
    """Rules of the volumes that a user adds; `others` are in the pod already."""
    known = {volume.get("name") for volume in others}
    for number, volume in enumerate(given):
        name, where = volume.get("name"), f"{field}[{number}].name"
        if not isinstance(name, str) or not _DNS_LABEL.fullmatch(name) or len(name) > 63:
            yield where, name, "is not a name that a volume can have (lower-case letters, digits, '-')"
        elif name in known:
            yield where, name, "is taken by another volume of the job or the platform"
        elif name.startswith(VOLUME_PREFIX):
            yield where, name, f"names that start with {VOLUME_PREFIX!r} are reserved"
        known.add(name)


def mounts(
    field: str, given: Sequence[Mapping[str, Any]], known: Container[Any] | None, others: Iterable[Mapping[str, Any]]
) -> Iterator[Problem]:
    """Rules of the mounts that a user adds. `known`: names of all volumes, None when not known; `others` are there."""
    taken = {str(mount.get("mountPath")).rstrip("/") for mount in others}
    for number, mount in enumerate(given):
        where, path = f"{field}[{number}]", str(mount.get("mountPath", ""))
        if known is not None and mount.get("name") not in known:
            yield f"{where}.name", mount.get("name"), "is not one of the volumes; add it to volumes"
        if problem := mount_paths.problem(path):
            yield f"{where}.mountPath", path, problem
        elif path.rstrip("/") == "/dev/shm":  # noqa: S108 - a mount path
            yield f"{where}.mountPath", path, "is mounted by the platform; use another path"
        elif path.rstrip("/") in taken:
            yield f"{where}.mountPath", path, "is mounted twice; use another path"
        elif mount_paths.nested(path, taken):
            yield f"{where}.mountPath", path, mount_paths.APART
        taken.add(path.rstrip("/"))


def _exit_codes(spec: TrainSpec) -> Iterator[Problem]:
    if not isinstance(spec.resume_on_exit_codes, tuple):
        yield "resume_on_exit_codes", spec.resume_on_exit_codes, "must be a list of exit codes, for example [75]"
        return
    for code in spec.resume_on_exit_codes:
        if not _is_int(code) or not 1 <= code <= 255:
            yield "resume_on_exit_codes", code, "is not an exit code of a failure (1 to 255)"
        elif code in exit_codes.RESERVED:
            said = exit_codes.of(code).happened
            yield "resume_on_exit_codes", code, f"is a code of the platform's ({said}); use another code"
    if len(spec.resume_on_exit_codes) > MAX_EXIT_CODES:
        yield "resume_on_exit_codes", len(spec.resume_on_exit_codes), f"are too many; at most {MAX_EXIT_CODES}"
    limit = spec.infrastructure_retries
    if limit is not None and (not _is_int(limit) or not 0 <= limit <= MAX_RETRIES):
        yield "infrastructure_retries", limit, f"must be a whole number, 0 to {MAX_RETRIES}, or None for no limit"


def _metadata(spec: TrainSpec) -> Iterator[Problem]:
    for field, entries in (("labels", spec.labels), ("annotations", spec.annotations)):
        yield from metadata(field, entries)


def metadata(field: str, entries: Mapping[str, Any]) -> Iterator[Problem]:
    """Rules of the labels or annotations that a user adds; `field` ends with one of the two words."""
    kind = field.rpartition(".")[2]
    for key, value in entries.items():
        where = f"{field}[{key!r}]"
        prefix, _, base = str(key).rpartition("/")
        if not _LABEL_NAME.fullmatch(base) or (prefix and not _SUBDOMAIN.fullmatch(prefix)):
            yield where, value, f"the key is not a valid one for {kind}"
        elif kind == "labels" and key == MAX_EXECUTION_LABEL:
            if not re.fullmatch(r"[1-9][0-9]{0,8}", str(value)):
                yield where, value, "must be a whole number of seconds, 1 or more, as text"
        elif (prefix or base) in RESERVED_DOMAINS:
            yield where, value, f"keys of {prefix or base} are set by the platform; use another key"
        elif not isinstance(value, str) or (kind == "labels" and not _LABEL_VALUE.fullmatch(value)):
            yield where, value, "the value is not a valid one; labels: at most 63 letters, digits, '-', '_', '.'"
