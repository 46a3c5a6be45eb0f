"""`TrainSpec`: everything a user says about a training job. Plain data; `spec.validate` checks it without any I/O."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from singularity_proxy.protocol import decode, names

from ..errors import SpecError
from . import engine

_INTEGERS = (
    "workers", "min_workers", "world_size", "checkpoint_budget_s", "grace_period_s", "infrastructure_retries",
    "ttl_s",
)  # fmt: skip
_BOOLEANS = ("hold", "reproducible_layout")
_TUPLES = ("command", "tolerations", "resource_claims", "volumes", "volume_mounts", "resume_on_exit_codes")
_MAPPINGS = ("resources", "node_selector", "env", "inputs", "files", "labels", "annotations", "pod_override")


@dataclass(frozen=True)
class TrainSpec:
    """One training job.

    :param name: name of the Job, a DNS label of at most 52 characters (pod names get an index and a suffix)
    :param queue: Kueue LocalQueue in `namespace`
    :param command: argv of the user's program, one process per rank. The variables of torchrun are set if the command
        begins with torchrun, or if there are several ranks
    :param workers: pods wanted
    :param min_workers: fewest pods the job accepts (partial admission); None: `workers`
    :param world_size: ranks, a multiple of `workers`; None: `workers`. With the process engine this number is constant
        over the life of the job; with the state engine the number of ranks per worker is constant
    :param namespace: namespace of the Job
    :param priority_class: Kueue WorkloadPriorityClass; None: Kueue's default
    :param image: training image; None: the platform's default
    :param resources: per pod, `{"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"}`: requests, and limits for
        everything but CPU and ephemeral storage
    :param topology: place of the pods relative to each other: `{"required": LABEL}` (all in one domain of the level
        with this node label), `{"preferred": LABEL}`, or `"unconstrained"`; None: the queue's choice
    :param node_selector: node labels that every pod needs, besides the labels of the flavor
    :param tolerations: taints that the pods accept, as in a Pod, besides the tolerations of the flavor
    :param resource_claims: devices by DRA, per pod: `{"name": "gpu", "device_class": "gpu.nvidia.com", "count": 1,
        "selectors": [CEL, ...]}`, or `{"name": "gpu", "template": ResourceClaimTemplate}`
    :param env: literal values (`$(NAME)` is not expanded), numbers and booleans as text; PYTHONPATH is put before the
        platform's
    :param files: texts by relative path, shipped in a ConfigMap (at most 900 kB) and copied into each rank's working
        directory at a fresh start
    :param workdir: directory in the image to start in; None: the per-rank directory that travels with the checkpoint
    :param store: URL of the checkpoint store; None: the platform's default
    :param inputs: name -> URL of a folder that lies in `$INPUTS/NAME` before the ranks start, read-only, fetched once
        for each pod: below a place that the platform allows, as for `outputs`
    :param outputs: URL to which the files that ranks write to `$OUTPUTS` are stored once all of them have ended well:
        below a place that the platform allows. The job ends well only with them; None: there is no `$OUTPUTS`
    :param engine: `process` saves whole processes of any program, between like machines. `state` saves the objects
        that the script has given to `singularity_train`, for any machine and number of workers, in pods without
        privileges. `both` saves processes and, beside them, this state, for nodes that cannot take the processes.
        `auto` is `state` if the script, or a file of `files` that it imports, imports `singularity_train`, else
        `process`
    :param checkpoint_budget_s: how long Kueue's preemption may be held for a checkpoint, seconds
    :param grace_period_s: terminationGracePeriodSeconds: time for a checkpoint when the hold is off or bypassed
    :param checkpoint_every: interval of checkpoints after which the job trains on: `"300s"`, `"10m"`, a number of
        seconds, `"500 steps"`, or `"auto"` (the interval that loses the least time, from measured cost and failures);
        None or `"off"`: only when the job is stopped or a user asks
    :param checkpoint_disk: most disk that checkpoint images may take in a pod, as `"50Gi"`, or `"unlimited"`. None: the
        platform's default, else twice the memory limit and 10 GiB per rank. No limit in pods that have devices or no
        memory limit
    :param checkpoint_memory: memory of each pod, beside that of the ranks, into which a checkpoint goes from which the
        job trains on, as `"4Gi"`. The ranks stand still for less time than they would for the disk. What is larger goes
        to the disk. None: the platform's default, else none
    :param reproducible_layout: whether processes have their memory at addresses without randomness and one
        PYTHONHASHSEED for the job, so that ranks with the same content share more in the store. The price: whoever
        finds a memory fault in the program or a library knows where everything lies, and Python's hashes can be
        foretold. Not for programs that read what strangers send. Not for the state engine, which saves no processes
    :param privileges: where the launcher's capabilities count: `userns` (in a user namespace of the pod only, where
        they give nothing on the node), `node`, or `auto` (`userns` where all nodes of the queue's flavors can). None:
        the platform's choice, which also says what a job may have. Not for the state engine, which has none
    :param hold: whether preemptions wait for a checkpoint; False: plain Kueue, and a checkpoint within the grace period
    :param volumes, volume_mounts: added to the pods, as in a Pod manifest
    :param labels, annotations: added to Job and pods
    :param pod_override: a Pod as plain data, merged into the training pods; see `kueue_integration.spec.pod_override`
    :param infrastructure_retries: attempts that may be lost to the infrastructure (a lost node or pod, a kill by the
        kernel) or to `resume_on_exit_codes`. One more fails the job. None: pods and nodes may be lost without limit,
        but only 6 pods killed
    :param resume_on_exit_codes: exit codes of the program after which the job continues from its last checkpoint
    :param ttl_s: seconds after its end at which Kubernetes deletes the Job, and with it the record of its checkpoints;
        None: never
    :param identity: owner's identity (label value); submit adopts a live Job with the same one
    """

    name: str
    queue: str
    command: Sequence[str]
    workers: int = 1
    min_workers: int | None = None
    world_size: int | None = None
    namespace: str = "default"
    image: str | None = None
    priority_class: str | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    topology: Mapping[str, str] | str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    resource_claims: Sequence[Mapping[str, Any]] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    store: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: str | None = None
    engine: str = "auto"
    checkpoint_budget_s: int = 120
    grace_period_s: int = 90
    checkpoint_every: str | float | None = None
    checkpoint_disk: str | None = None
    checkpoint_memory: str | None = None
    reproducible_layout: bool = False
    privileges: str | None = None
    hold: bool = True
    volumes: Sequence[Mapping[str, Any]] = ()
    volume_mounts: Sequence[Mapping[str, Any]] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_override: Mapping[str, Any] | None = None
    infrastructure_retries: int | None = None
    resume_on_exit_codes: Sequence[int] = ()
    ttl_s: int | None = None
    identity: str | None = None

    def __post_init__(self) -> None:
        for name in _TUPLES:
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):  # a string is left for `validate` to refuse
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.command, tuple):
            object.__setattr__(self, "command", tuple(_text(word) for word in self.command))
        for name in ("env", "labels", "annotations"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                object.__setattr__(self, name, {key: _text(item) for key, item in value.items()})

    @property
    def ranks(self) -> int:
        """World size after the default."""
        return self.workers if self.world_size is None else self.world_size

    @property
    def elastic(self) -> bool:
        """Whether it has the state engine: the number of ranks follows the number of workers."""
        return engine.chosen(self).name == names.ENGINE_STATE

    @property
    def fewest_workers(self) -> int:
        """`min_workers` after the default."""
        return self.workers if self.min_workers is None else self.min_workers


def from_mapping(data: Mapping[str, Any]) -> TrainSpec:
    """A TrainSpec from decoded JSON or YAML, or from rendered templates, where numbers and booleans come as text.

    Raises SpecError for unknown, missing and unreadable fields; `validate` is a second step.
    """
    fields = {f.name: f for f in dataclasses.fields(TrainSpec)}
    problems: list[tuple[str, object, str]] = []
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            problems.append((name, value, "unknown field" + (f"; did you mean {near[0]}?" if near else "")))
        elif value is None and fields[name].default is not None:
            continue  # an empty YAML entry means the default
        elif name in _INTEGERS and isinstance(value, str):
            try:
                values[name] = int(value)
            except ValueError:
                problems.append((name, value, "must be a whole number"))
        elif name in _MAPPINGS:
            try:
                values[name] = _structure(value, Mapping)
            except ValueError:
                problems.append((name, value, "must be a mapping, or the JSON text of one"))
        elif name == "resume_on_exit_codes":
            try:
                values[name] = [int(code) if isinstance(code, str) else code for code in _structure(value, Sequence)]
            except ValueError:
                problems.append((name, value, "must be a list of exit codes, or the JSON text of one"))
        elif name in _TUPLES and isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = _structure(value, Sequence)
            values[name] = value  # `validate` says how each has to look
        elif name == "topology" and isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = _structure(value, Mapping)
            values[name] = value
        elif name in _BOOLEANS and isinstance(value, str):
            if value.lower() in ("true", "false"):
                values[name] = value.lower() == "true"
            else:
                problems.append((name, value, "must be true or false"))
        else:
            values[name] = value
    for name in ("name", "queue", "command"):
        if name not in values:
            problems.append((name, None, "is missing"))
    if problems:
        raise SpecError(problems)
    return TrainSpec(**values)


def _text(value: Any) -> Any:
    """A number or boolean as text, as YAML writes it; anything else as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


MAX_TEXT = 1 << 20
"""Bytes of one field."""


def _structure(value: Any, wanted: type) -> Any:
    """`value`, or what its JSON text says, if it is `wanted`. Raises ValueError."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value = decode.json_value(value, MAX_TEXT)
    if isinstance(value, str) or not isinstance(value, wanted):
        raise ValueError(value)
    return value
