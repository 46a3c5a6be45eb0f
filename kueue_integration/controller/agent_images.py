"""The agent images that the guard of pods trusts, in a Lease that its policies take as their parameter.

The pod template of a Job names the agent image of the release it was submitted under, and cannot be changed. So an
image that a release was configured with stays trusted until the last job that has it has ended. No image is added
because a job names it: only the chart's own values (`images.agent`, `images.trusted`) add one. The chart makes the
Lease without content, so neither `helm upgrade` nor Argo CD or Flux takes away what stands in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from ..contract import agent_images, job_names
from ..job import states
from ..kube.client import Kube
from ..kube.resources import LEASE, Object

log = logging.getLogger(__name__)

LINGER_S = 3600.0
"""How long an image stays without a job: who submits may have read the platform's settings before the upgrade."""
RENEW_S = LINGER_S / 4
"""How far the times on the Lease may be behind."""


def kept(
    before: Mapping[str, float | None], configured: Sequence[str], in_use: Collection[str], now: float
) -> dict[str, float]:
    """Return what is to be trusted at `now`: what the chart names, and of `before` what was in use lately. Pure."""
    found = dict.fromkeys(configured, now)
    for image, at in before.items():
        last = now if at is None or image in found or image in in_use else min(at, now)
        if now - last < LINGER_S:
            found[image] = last
    return found


class AgentImages:
    """Keeps the Lease. `configured` are the chart's images, `jobs` gives every managed job, `now` Unix seconds."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        configured: Sequence[str],
        jobs: Callable[[], Sequence[Object]],
        now: Callable[[], float],
    ) -> None:
        self._kube, self._namespace, self._configured = kube, namespace, configured
        self._jobs, self._now = jobs, now

    def keep(self) -> None:
        """Write the Lease if it is not what it should be. Raises KubeError."""
        if not self._configured:
            return  # a controller that was started by hand, without a chart
        found = self._kube.find(LEASE, self._namespace, job_names.TRUSTED_IMAGES_LEASE)
        before = agent_images.read(found or {"metadata": {}})
        in_use = {agent_images.of_job(job) or "" for job in self._jobs() if states.finished(job) is None}
        after = kept(before, self._configured, in_use, self._now())
        told = {"annotations": agent_images.to_annotations(after)}
        name = job_names.TRUSTED_IMAGES_LEASE
        if found is None:
            meta = {"name": name, "namespace": self._namespace, **told}
            self._kube.create({"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": meta})
        elif _differs(before, after):
            self._kube.patch(LEASE, self._namespace, name, {"metadata": told}, found["metadata"]["resourceVersion"])
        if set(before) != set(after):
            log.info("agent images that the guard trusts: %s", ", ".join(after))


def _differs(before: Mapping[str, float | None], after: Mapping[str, float]) -> bool:
    """Whether the Lease has to be written: its images have changed, or a time is too far behind."""
    return list(before) != list(after) or any(at - (before[image] or 0) >= RENEW_S for image, at in after.items())
