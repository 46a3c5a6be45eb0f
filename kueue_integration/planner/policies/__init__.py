"""The policies, and the one place that asks them. Pure.

Each has a module with its source, and a page in docs/policies. The order here is the order in which they win.

Nothing here allows a move: the arbiter does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..model import ClusterSnapshot
from ..proposals import Proposal, nonsense

Policy = Callable[[ClusterSnapshot], Sequence[Proposal]]


def ask(
    policies: Mapping[str, Policy], snapshot: ClusterSnapshot, trouble: Callable[[str, str, BaseException | None], None]
) -> list[Proposal]:
    """What all `policies` propose. A policy that raises, or whose proposals make no sense, does not stop the others.

    `trouble(policy, what, error)` hears of both.
    """
    found: list[Proposal] = []
    for name, policy in policies.items():
        try:
            proposals = list(policy(snapshot))
        except Exception as error:
            trouble(name, f"raised {type(error).__name__}", error)
            continue
        for proposal in proposals:
            why = nonsense(proposal, name, snapshot)
            if why:
                what = f"{proposal.action} of {'/'.join(proposal.job)}" if isinstance(proposal, Proposal) else "this"
                trouble(name, f"proposed nonsense, {what}: {why}"[:400], None)
            else:
                found.append(proposal)
    return found
