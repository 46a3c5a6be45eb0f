"""Health: jobs leave nodes that fail, before they fail again; errors of programs are not blamed on nodes. Pure.

Source: Philly's failure study (Jeon et al., USENIX ATC 2019). Most failures there are errors of users, which come back
wherever the job is tried again. Failures of the infrastructure stay where their cause is. So:

- The same error of a job on two nodes is the job's own.
- An error of a program that only one node has seen may be the node's. The job has to have run without it elsewhere at
  the same time, or another job has failed on the node as well.
- What the hardware says of itself is the node's at once.

A program that was killed for memory is never held against a node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..job import JobKey
from ..model import ClusterSnapshot, Symptom
from ..proposals import Proposal
from ..settings import Health
from . import cordon

NAME = "health"
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True)
class Sick:
    """A node, and why jobs should leave it."""

    node: str
    why: str


@dataclass(frozen=True)
class OwnError:
    """An error of a job that no node is to blame for."""

    job: JobKey
    words: str
    nodes: tuple[str, ...]
    """That have seen it; the jobs of the namespace with the same error are counted together."""


def propose(snapshot: ClusterSnapshot, settings: Health) -> list[Proposal]:
    """Jobs on sick nodes are saved, and then leave; one of a cohort at a time."""
    return cordon.evacuate(snapshot, {each.node: each.why for each in sick(snapshot, settings)}, NAME)


def sick(snapshot: ClusterSnapshot, settings: Health) -> list[Sick]:
    """Nodes that are there, and are better left."""
    recent = [s for s in snapshot.symptoms if s.at > snapshot.now - settings.window_s]
    blamed = _blamed(recent)
    found = []
    for name, node in sorted(snapshot.nodes.items()):
        if not node.ready:
            continue  # nothing can be saved there any more
        bad = next((kind for kind in settings.conditions if kind in node.conditions), None)
        gpu = next((s.words for s in reversed(recent) if s.node == name and s.kind == "gpu"), None)
        failed = {(s.job, s.attempt): s.words for s in blamed if s.node == name}
        if bad is not None:
            found.append(Sick(name, f"reports {bad}"))
        elif gpu is not None:
            found.append(Sick(name, f"has a bad GPU: {gpu}"[:200]))
        elif len(failed) >= settings.failures:
            words = list(failed.values())[-1]
            found.append(Sick(name, f"alone has lost {len(failed)} attempts, the last so: {words}"[:200]))
    return found


def own_errors(snapshot: ClusterSnapshot, settings: Health) -> list[OwnError]:
    """Errors that two nodes have seen, once for each job that has them."""
    recent = [s for s in snapshot.symptoms if s.at > snapshot.now - settings.window_s]
    seen_on = _seen_on(recent)
    found: dict[tuple[JobKey, str], OwnError] = {}
    for symptom in recent:
        nodes = seen_on[_same(symptom)]
        if symptom.kind == "program" and len(nodes) > 1:
            found[symptom.job, signature(symptom.words)] = OwnError(symptom.job, symptom.words, tuple(sorted(nodes)))
    return list(found.values())


def signature(words: str) -> str:
    """What is the same of an error wherever it happens: ranks, addresses and other numbers are not."""
    return _NUMBERS.sub("#", words)


def _blamed(recent: Sequence[Symptom]) -> list[Symptom]:
    """Failures that count against their node."""
    nodes = _seen_on(recent)
    confined = [s for s in recent if s.kind in ("program", "machine") and len(nodes[_same(s)]) == 1]
    jobs: dict[str, set[JobKey]] = {}
    for symptom in confined:
        jobs.setdefault(symptom.node, set()).add(symptom.job)
    return [s for s in confined if s.kind == "machine" or s.beside - {s.node} or len(jobs[s.node]) > 1]


def _seen_on(recent: Sequence[Symptom]) -> dict[tuple[str, ...], set[str]]:
    """Failure -> the nodes that had it."""
    found: dict[tuple[str, ...], set[str]] = {}
    for symptom in recent:
        found.setdefault(_same(symptom), set()).add(symptom.node)
    return found


def _same(symptom: Symptom) -> tuple[str, ...]:
    """What two sightings of one failure have in common. An error of a program is looked for in the whole namespace:
    users try again under other names. A kill says too little for that."""
    where = symptom.job[:1] if symptom.kind == "program" else symptom.job
    return symptom.kind, signature(symptom.words), *where
