"""`PlatformConfig`: what the platform team decided once, published by the Helm chart for everyone who submits jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PlatformConfig:
    """Key `platform.json` of the ConfigMap `singularity-platform` in the chart's namespace.

    :param agent_image: image with agent, launcher, CRIU and sidecar
    :param train_image: default training image, "" when users must name one
    :param store: default checkpoint store URL, "" when users must name one
    :param controller_url: `https://singularity-controller.<namespace>.svc:443`
    :param controller_ca: PEM text
    :param volumes, volume_mounts, env: added to every training pod (store, data sets, Python environment);
        mounts go to the training container and the sidecar
    :param max_budget_s: platform's ceiling for `checkpoint_budget_s`
    """

    agent_image: str
    controller_url: str
    controller_ca: str
    train_image: str = ""
    store: str = ""
    volumes: Sequence[Mapping[str, Any]] = ()
    volume_mounts: Sequence[Mapping[str, Any]] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    max_budget_s: int = 600
    image_pull_policy: str = "IfNotPresent"
