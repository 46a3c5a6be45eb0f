"""Every figure, and which group measures it."""

from __future__ import annotations

from collections.abc import Sequence

from . import (
    asset_trigger,
    checkpoint,
    compare,
    control_plane,
    dead_cluster,
    hook,
    hostile_objects,
    large_state,
    leaving,
    loader_move,
    memory,
    move_small,
    moves,
    pod_starts,
    preemption,
    running_jobs,
    scale,
    state_resize,
    state_storage,
    status_list,
    steady,
    store_tls,
    strangers,
    triggerer,
    ui,
    user_namespaces,
    virtual_ranks,
    workers,
)
from .model import Group, Spec

GROUPS: Sequence[Group] = (
    hook.GROUP,
    steady.GROUP,
    moves.GROUP,
    checkpoint.GROUP,
    workers.GROUP,
    user_namespaces.GROUP,
    pod_starts.GROUP,
    leaving.GROUP,
    large_state.GROUP,
    compare.GROUP,
    memory.GROUP,
    store_tls.GROUP,
    virtual_ranks.GROUP,
    state_storage.GROUP,
    preemption.GROUP,
    move_small.GROUP,
    loader_move.GROUP,
    state_resize.GROUP,
    running_jobs.GROUP,
    dead_cluster.GROUP,
    control_plane.GROUP,
    status_list.GROUP,
    hostile_objects.GROUP,
    strangers.GROUP,
    scale.ADMISSION,
    scale.EVICTION,
    ui.GROUP,
    triggerer.GROUP,
    asset_trigger.GROUP,
)


def specs() -> list[Spec]:
    return [spec for group in GROUPS for spec in group.specs]


def select(only: Sequence[str]) -> list[tuple[Group, list[Spec]]]:
    """The groups to run, each with the figures that are wanted of it; all where `only` is empty.

    :raises ValueError: an unknown key; the message lists the known ones
    """
    known = {spec.key for spec in specs()}
    unknown = sorted(set(only) - known)
    if unknown:
        raise ValueError(f"--only = {','.join(unknown)}: no such figure; there are {', '.join(sorted(known))}")
    chosen = []
    for group in GROUPS:
        wanted = [spec for spec in group.specs if not only or spec.key in only]
        if wanted:
            chosen.append((group, wanted))
    return chosen
