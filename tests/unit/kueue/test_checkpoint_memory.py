"""Memory into which periodic checkpoints go: the sidecar is told, and requests it where the ranks request memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kueue_samples import PLATFORM, spec

from kueue_integration.contract import job_names
from kueue_integration.errors import SpecError
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec.platform_config import PlatformConfig
from kueue_integration.spec.validate import validate
from singularity_proxy.protocol import names

GIB = 2**30


def sidecar(platform: PlatformConfig = PLATFORM, **changes: Any) -> tuple[str | None, Any]:
    """What it is told, and what it requests."""
    pod = render(spec(**changes), platform)[-1]["spec"]["template"]["spec"]
    (found,) = [c for c in pod["initContainers"] if c["name"] == job_names.CONTAINER_SIDECAR]
    told = [e["value"] for e in found["env"] if e["name"] == names.ENV_CHECKPOINT_MEMORY]
    others = [c for c in (*pod["containers"], *pod["initContainers"]) if c is not found]
    assert not [e for c in others for e in c.get("env", ()) if e["name"] == names.ENV_CHECKPOINT_MEMORY]
    return (told or [None])[0], found.get("resources")


@pytest.mark.parametrize(
    ("platform", "changes", "told", "requested"),
    [
        ("", {}, None, None),
        ("", {"checkpoint_memory": "4Gi", "resources": {"cpu": "1"}}, str(4 * GIB), None),
        ("", {"checkpoint_memory": "4Gi", "resources": {"memory": "2Gi"}}, str(4 * GIB), str(4 * GIB)),
        ("2Gi", {"resources": {"memory": "2Gi"}}, str(2 * GIB), str(2 * GIB)),
        ("2Gi", {"checkpoint_memory": "0", "resources": {"memory": "2Gi"}}, None, None),
        ("2Gi", {"engine": "state", "resources": {"memory": "2Gi"}}, None, None),
    ],
)
def test_the_sidecar_is_told_and_requests_it(
    platform: str, changes: dict[str, Any], told: str | None, requested: str | None
) -> None:
    resources = {"requests": {"memory": requested}} if requested else None
    assert sidecar(replace(PLATFORM, checkpoint_memory=platform), **changes) == (told, resources)


def test_a_request_of_an_override_counts() -> None:
    over = {"spec": {"containers": [{"name": "train", "resources": {"limits": {"memory": "8Gi"}}}]}}
    assert sidecar(checkpoint_memory="1Gi", pod_override=over)[1] == {"requests": {"memory": str(GIB)}}


def test_a_default_of_the_platform_that_is_none_is_named() -> None:
    with pytest.raises(SpecError, match=r"checkpoint_memory.*pods\.checkpointMemory"):
        validate(spec(), replace(PLATFORM, checkpoint_memory="much"))
