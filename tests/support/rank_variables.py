"""Which of torchrun's variables a program gets, from the pod that was made for it to the environment of its rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kueue_integration.contract import job_names
from kueue_integration.manifests.pod import LAUNCHER
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.ranks import environment, torchrun
from singularity_proxy.protocol import messages, names
from singularity_proxy.protocol.placement import ranks_of

ALL = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}


def told(pod: Mapping[str, Any], admitted: int, program: Mapping[str, Any] | None = None) -> set[str]:
    """:param pod: spec of the pods
    :param admitted: how many of them Kueue has let in
    :param program: container with the program, if the pod has none
    """
    sidecar = next(each for each in pod["initContainers"] if each["name"] == job_names.CONTAINER_SIDECAR)
    world = int(_literals(sidecar)[names.ENV_WORLD_SIZE])
    train = program or next(each for each in pod["containers"] if each["name"] == job_names.CONTAINER_TRAIN)
    words = [*train["command"], *(train.get("args") or ())]
    assert words[: len(LAUNCHER)] == [*LAUNCHER]
    base = _literals(train)
    argv = environment.command(base, words[len(LAUNCHER) :])
    plan = messages.Plan("fresh", 1, world, ranks_of(0, admitted, world), "10.0.0.1", names.MASTER_PORT)
    started = torchrun.unwrapped(argv, world) != argv
    return ALL & environment.environment(base, plan, 0, Paths(Path(names.ROOT)), torchrun=started).keys()


def _literals(container: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
