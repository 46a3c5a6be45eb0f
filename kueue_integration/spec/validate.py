"""Is a TrainSpec valid? All rules together: those of its fields, of where its pods may stand, and of `pod_override`."""

from __future__ import annotations

from ..errors import SpecError
from . import pod_override, pod_placement, validation
from .platform_config import PlatformConfig
from .train_spec import TrainSpec


def validate(spec: TrainSpec, platform: PlatformConfig | None = None) -> None:
    """Raise SpecError listing every problem of `spec` by field, with value and fix; no I/O.

    Without `platform` the rules that depend on its defaults (image, store, budget ceiling) are left out.
    """
    found = [
        *validation.problems(spec, platform), *pod_placement.problems(spec), *pod_override.problems(spec, platform),
    ]  # fmt: skip
    if found:
        raise SpecError(found)
