"""Which policies are on, in which order they are asked, and on which terms the arbiter lets them move jobs. Pure."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import replace

from ...planner.arbiter import Limits, Terms
from ...planner.model import ClusterSnapshot
from ...planner.policies import (
    Policy,
    attained_service,
    cordon,
    defragmentation,
    health,
    introspection,
    lending,
    marginal_gain,
    regrow,
    returns,
    sla_tiers,
    tidy,
    time_sharing,
)
from ...planner.proposals import Proposal
from ...planner.settings import PlannerSettings
from ..hold import Settings

ORDER = (
    cordon.NAME, returns.NAME, health.NAME, regrow.NAME, sla_tiers.NAME, attained_service.NAME, time_sharing.NAME,
    defragmentation.NAME, marginal_gain.NAME, lending.NAME, introspection.NAME, tidy.NAME,
)  # fmt: skip
"""Who comes first wins. A node that goes waits for nobody, and a loan is owed. Then jobs get what their owners have
asked for, and only then what policies find better."""


def in_order(asked: Mapping[str, Policy]) -> dict[str, Policy]:
    """By `ORDER`; others come last."""
    rank = {name: number for number, name in enumerate(ORDER)}
    return {name: asked[name] for name in sorted(asked, key=lambda name: rank.get(name, len(rank)))}


def chosen(planner: PlannerSettings, mode: str) -> dict[str, Policy]:
    """The policies with this mode."""
    found: dict[str, Policy] = {}
    if planner.cordon.mode == mode:
        found[cordon.NAME] = cordon.propose
    if planner.lending.mode == mode:
        found[returns.NAME] = functools.partial(returns.propose, expect_s=planner.lending.expect_s)
    if planner.health.mode == mode:
        found[health.NAME] = functools.partial(health.propose, settings=planner.health)
    tiers = planner.sla_tiers
    if tiers.mode == mode:
        found[sla_tiers.NAME] = functools.partial(
            sla_tiers.propose, tiers=tiers.tiers, window_s=tiers.window_s, min_run_s=planner.limits.min_run_s
        )
    service = planner.attained_service
    if service.mode == mode:
        found[attained_service.NAME] = functools.partial(
            attained_service.propose,
            thresholds=service.thresholds,
            promote_after=service.promote_after,
            min_run_s=planner.limits.min_run_s,
            history=service.history,
        )
    if planner.time_sharing.mode == mode:
        found[time_sharing.NAME] = functools.partial(time_sharing.propose, quantum_s=planner.time_sharing.quantum_s)
    if planner.defragmentation.mode == mode:
        moves = planner.defragmentation.most_moves
        found[defragmentation.NAME] = functools.partial(defragmentation.propose, most_moves=moves)
    if planner.marginal_gain.mode == mode:
        found[marginal_gain.NAME] = marginal_gain.propose
    if planner.lending.mode == mode:
        found[lending.NAME] = functools.partial(lending.propose, expect_s=planner.lending.expect_s)
    if planner.introspection.mode == mode:
        found[introspection.NAME] = functools.partial(
            introspection.propose, prices=planner.prices, settings=planner.introspection
        )
    return found


def terms(planner: PlannerSettings, asked: Mapping[str, Policy]) -> dict[str, Terms]:
    """Regrowth has a patience of its own. A node that goes is not weighed in device-seconds, and waits for no budget.

    What is lent comes back when its owner asks for it, and not when that pays.
    """
    free = Terms(Limits(0.0, None, None), weigh=False, only_held=False)
    grows = Terms(replace(planner.arbiter, min_run_s=0.0), only_held=False)
    leaves = Terms(Limits(0.0, None, None), weigh=False)
    own = {tidy.NAME: free, regrow.NAME: grows, cordon.NAME: leaves, health.NAME: leaves}
    own[returns.NAME] = Terms(Limits(0.0, None, None), weigh=False)
    return {name: own.get(name, Terms(planner.arbiter)) for name in asked}


def always(settings: Settings, acting: Collection[str]) -> dict[str, Policy]:
    """What is looked at after every change, whatever is on; `acting` are the policies that are."""
    grows = functools.partial(regrow.propose, enabled=settings.regrow == "act", min_run_s=settings.regrow_min_run_s)
    return {tidy.NAME: functools.partial(tidy.propose, acting={*acting}), regrow.NAME: grows}


def regrowth_tried(settings: Settings) -> dict[str, Policy]:
    """Regrowth in a dry run, if it is to be one."""
    if settings.regrow != "propose":
        return {}
    return {regrow.NAME: functools.partial(_unasked, min_run_s=settings.regrow_min_run_s)}


def _unasked(snapshot: ClusterSnapshot, min_run_s: float) -> list[Proposal]:
    """Regrowth that nobody has asked for. What somebody has asked for is carried out in every mode."""
    return [p for p in regrow.propose(snapshot, True, min_run_s) if not p.asked]
