"""Which engine a pod has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...protocol import names
from ..errors import CommandError
from ..paths import Paths
from .both_engine import BothEngine
from .engine import Engine, ProcessEngine
from .state_engine import StateEngine


def of(env: Mapping[str, str], paths: Paths) -> Engine[Any]:
    """The one that the container's environment names. Raises CommandError."""
    name = env.get(names.ENV_ENGINE) or names.ENGINE_PROCESS
    if name == names.ENGINE_STATE:
        return StateEngine(env, paths)
    if name == names.ENGINE_BOTH:
        return BothEngine(env, paths)
    if name == names.ENGINE_PROCESS:
        return ProcessEngine(env, paths)
    raise CommandError(f"{names.ENV_ENGINE} = {name!r}: this agent knows {', '.join(names.ENGINES)}")
