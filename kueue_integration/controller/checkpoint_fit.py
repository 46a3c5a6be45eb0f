"""Can the nodes of the flavor that Kueue chose continue the checkpoint? If not: another flavor. Pure.

Only a proven misfit counts. Unknown cases pass: a node without a label, a flavor without nodes (it may be scaled to
none), a checkpoint without its needs. The sidecar examines the machine itself before it restores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from singularity_proxy.protocol.messages import RESTORES, CheckpointRef, Needs, to_json

from ..contract import job_names
from ..contract.record_types import NodeRequirement, Placement
from ..errors import SpecError
from ..requests import placement
from . import attempt_history, reshape
from .actions import RequestReadmission
from .machines import Labels, MachinesOf
from .snapshot import Job, Preemption, Snapshot, Surroundings, Workload, required

NOTE = "does not fit the checkpoint"
"""Every message and note about an admission that is sent back because of its machines starts with this."""
ARCHITECTURE = "kubernetes.io/arch"
CPUID = "feature.node.kubernetes.io/cpu-cpuid."
NO_FIT_S = 5
"""Seconds before Kueue tries again where no flavor fits: only a new node could help."""


def missing(checkpoint: CheckpointRef, nodes: Sequence[Labels]) -> str:
    """Why none of `nodes` can continue `checkpoint`, "" if one can, or may."""
    needs = checkpoint.needs
    if needs is None:
        return ""
    lacks = [_lacks(needs, labels) for labels in nodes]
    if not lacks or not all(lacks):
        return ""
    features = min((found for found in lacks if found != [ARCHITECTURE]), key=len, default=None)
    if features is None:
        here = "/".join(sorted({node[ARCHITECTURE] for node in nodes}))
        return f"its nodes are {here}, checkpoint {checkpoint.id} needs {needs.architecture}"
    return f"its nodes lack {', '.join(features)}, which checkpoint {checkpoint.id} needs"


def _lacks(needs: Needs, node: Labels) -> list[str]:
    if needs.architecture and node.get(ARCHITECTURE, needs.architecture) != needs.architecture:
        return [ARCHITECTURE]
    if not any(key.startswith(CPUID) for key in node):
        return []  # nobody has looked at its CPU
    return [name for name in needs.cpu if node.get(CPUID + name) != "true"]


def sent_back(snapshot: Snapshot, workload: Workload, check_name: str) -> RequestReadmission | None:
    """The action for an admission on machines that cannot continue the Job's checkpoint, None for a good admission.

    If another flavor of the queue fits, the Job gets such a placement: Kueue would choose the same flavor again.
    Otherwise Kueue tries again at growing intervals, because a node may be added. Raises BadAnnotationError.
    """
    job, around, by = snapshot.job, snapshot.around, snapshot.preemption
    checkpoint, given = required(job.checkpoint), workload.admission
    if checkpoint is None or checkpoint.needs is None or given is None:
        return None
    chosen = sorted(set(given.flavors.values()))
    problem = unfit(job, workload, around.machines_of)
    if not problem:
        return None
    message = f"{NOTE}: {problem}"
    others = _others(job, chosen, checkpoint, around)
    new = _placement(job, others, around) if len(chosen) == 1 else None
    if new is not None:
        text = f"{message}; next: {' or '.join(new.flavors)}"
        change = {**noted(job, text, by), job_names.ANN_PLACEMENT: to_json(new)}
        return RequestReadmission(change, message=text, requeue_after_s=reshape.SENT_BACK_S, cause="machines")
    advice = "the nodeLabels of its flavors do not tell them apart" if others else "no flavor it may use fits"
    text = f"{message}; {advice}"
    pause = pause_s(workload, check_name)
    return RequestReadmission(noted(job, text, by), message=text, requeue_after_s=pause, cause="machines")


def elsewhere(snapshot: Snapshot) -> RequestReadmission | None:
    """The action before the last try of a checkpoint: rather not on the nodes on which its restores have failed.

    It is a wish: where no other node is free, the pods go there all the same. None if that is not the last try, or the
    scheduler cannot be told. Raises BadAnnotationError.
    """
    job = snapshot.job
    checkpoint, before = required(job.checkpoint), required(job.placement)
    if checkpoint is None or len(checkpoint.failed) != RESTORES - 1:
        return None
    shunned = sorted({failed.node for failed in checkpoint.failed if failed.node and not failed.passes})
    fixed = job.raw["spec"].get("template") is None or placement.own_affinity(job.raw)
    if not shunned or fixed or before.shuns == shunned:
        return None
    text = f"the last try of checkpoint {checkpoint.id} is made away from node {', '.join(shunned)}, if another is free"
    change = {job_names.ANN_PLACEMENT: to_json(replace(before, shuns=shunned)), **noted(job, text, snapshot.preemption)}
    return RequestReadmission(change, message=text, requeue_after_s=reshape.SENT_BACK_S, cause="machines")


def unfit(job: Job, workload: Workload, machines_of: MachinesOf) -> str:
    """Why the machines of the Workload's admission cannot continue the Job's checkpoint, "" if they can, or may.

    Raises BadAnnotationError.
    """
    checkpoint, given = required(job.checkpoint), workload.admission
    if checkpoint is None or checkpoint.needs is None or given is None:
        return ""
    chosen = sorted(set(given.flavors.values()))
    problem = missing(checkpoint, _common(chosen, machines_of))
    return f"flavor {' with '.join(chosen)}: {problem}" if problem else ""


def pause_s(workload: Workload, check_name: str) -> int:
    """How long an admission that no machines fit waits: longer each time."""
    return reshape.doubled(NO_FIT_S, workload, check_name)


def _common(flavors: Sequence[str], machines_of: MachinesOf) -> list[Labels]:
    """Nodes that belong to all of `flavors`; none if a flavor is unknown."""
    found = [machines_of(flavor) for flavor in flavors]
    known = [machines.nodes for machines in found if machines is not None]
    if not known or len(known) < len(found):
        return []
    return [labels for name, labels in known[0].items() if all(name in nodes for nodes in known[1:])]


def _others(job: Job, chosen: Sequence[str], checkpoint: CheckpointRef, around: Surroundings) -> list[str]:
    """Flavors of the Job's queue that it may use, and that fit as far as is known."""
    pinned = required(job.placement).flavors
    may = [f for f in around.flavors_of(job.raw) or () if f not in chosen and (not pinned or f in pinned)]
    return [f for f in may if not missing(checkpoint, _common([f], around.machines_of))]


def _placement(job: Job, others: Sequence[str], around: Surroundings) -> Placement | None:
    """The Job's placement, narrowed to `others`; None if that is impossible, or would not change Kueue's choice."""
    before = required(job.placement)
    if job.raw["spec"].get("template") is None or placement.own_affinity(job.raw):
        return None  # nothing of ours to change, or an affinity that the user brings
    known = {name: around.machines_of(name) for name in around.flavors_of(job.raw) or ()}
    flavors = [placement.Flavor(name, found.labels) for name, found in known.items() if found is not None]
    usable = [name for name in others if _told_apart(name, flavors)]
    if not usable:
        return None
    return placement.make(flavors, usable, before.avoid_nodes, _hosts(before.terms))


def _told_apart(name: str, flavors: Sequence[placement.Flavor]) -> bool:
    try:
        placement.check_flavor(name, flavors)
    except SpecError:
        return False
    return True


def _hosts(terms: Sequence[Sequence[NodeRequirement]]) -> list[str]:
    """Host names that the placement stays away from already."""
    away = [r for term in terms for r in term if (r.key, r.operator) == (placement.HOSTNAME, "NotIn")]
    return sorted({host for requirement in away for host in requirement.values})


def noted(job: Job, text: str, by: Preemption | None = None) -> dict[str, str | None]:
    """Annotations: the message also goes to the last attempt's record, once, as Kueue clears it from the check."""
    history = required(job.history)
    record = attempt_history.last(history)
    if record is None or text in (record.note or ""):
        return {}
    return attempt_history.stored(attempt_history.with_last(history, attempt_history.noted(record, text)), by)
