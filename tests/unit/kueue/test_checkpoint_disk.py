"""How much disk the images of a checkpoint may take: a limit of their volume, which the launcher knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kueue_samples import PLATFORM, spec

from kueue_integration.contract import job_names
from kueue_integration.errors import SpecError
from kueue_integration.manifests.checkpoint_disk import FILES
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec.platform_config import PlatformConfig
from kueue_integration.spec.validate import validate
from singularity_proxy.protocol import names

GIB = 2**30


def pod_of(platform: PlatformConfig = PLATFORM, **changes: Any) -> Any:
    job = render(spec(**changes), platform)[-1]
    return job["spec"]["template"]["spec"]


def limits(pod: Any) -> tuple[str | None, str | None]:
    """Of the volume, and as launcher and sidecar are told: always the same."""
    (images,) = [volume for volume in pod["volumes"] if volume["name"] == "singularity-images"]
    sidecar = next(each for each in pod["initContainers"] if each["name"] == job_names.CONTAINER_SIDECAR)
    told = {
        next((entry["value"] for entry in each["env"] if entry["name"] == names.ENV_IMAGE_ROOM), None)
        for each in (pod["containers"][0], sidecar)
    }
    assert len(told) == 1
    return images["emptyDir"].get("sizeLimit"), told.pop()


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"resources": {"memory": "2Gi"}}, 4 * GIB + 4 * FILES),
        ({"resources": {"cpu": "1"}}, None),
        ({"resources": {}}, None),
        ({"resources": {"memory": "2Gi", "nvidia.com/gpu": "1"}}, None),
        ({"resources": {"memory": "2Gi", "hugepages-2Mi": "1Gi"}}, None),
        ({"resources": {"memory": "2Gi", "nvidia.com/gpu": "1"}, "checkpoint_disk": "200Gi"}, 200 * GIB),
        ({"resources": {"memory": "2Gi"}, "checkpoint_disk": "1Gi"}, GIB),
        ({"resources": {"memory": "2Gi"}, "checkpoint_disk": "unlimited"}, None),
    ],
)
def test_it_follows_from_the_memory_unless_somebody_says(changes: dict[str, Any], most: int | None) -> None:
    assert limits(pod_of(**changes)) == ((None, None) if most is None else (str(most), str(most)))


def test_what_an_override_makes_of_the_pod_counts() -> None:
    more = {"resources": {"requests": {"memory": "8Gi"}, "limits": {"memory": "8Gi"}}}
    over = {"spec": {"containers": [{"name": "train", **more}]}}
    assert limits(pod_of(resources={"memory": "2Gi"}, pod_override=over))[0] == str(16 * GIB + 4 * FILES)
    claims = {"spec": {"containers": [{"name": "train", "resources": {"claims": [{"name": "gpu"}]}}]}}
    assert limits(pod_of(resources={"memory": "2Gi"}, pod_override=claims)) == (None, None), "a device by another way"


def test_the_platforms_default_is_for_who_names_none() -> None:
    platform = replace(PLATFORM, checkpoint_disk="3Gi")
    assert limits(pod_of(platform))[0] == str(3 * GIB)
    assert limits(pod_of(platform, checkpoint_disk="unlimited")) == (None, None)
    with pytest.raises(SpecError, match=r"pods\.checkpointDisk"):
        validate(spec(), replace(PLATFORM, checkpoint_disk="much"))


def test_a_resize_can_put_all_ranks_into_one_pod() -> None:
    few = pod_of(workers=2, min_workers=1, world_size=8, resources={"memory": "2Gi"})
    assert limits(few)[0] == str(4 * GIB + 8 * FILES)


def test_nothing_is_requested_that_a_queue_may_not_cover() -> None:
    """Kueue admits no Workload with a request for a resource that its ClusterQueue does not cover."""
    for container in (*pod_of()["containers"], *pod_of()["initContainers"]):
        asked = container.get("resources") or {}
        assert "ephemeral-storage" not in {**asked.get("requests", {}), **asked.get("limits", {})}
    wished = pod_of(resources={"memory": "1Gi", "ephemeral-storage": "20Gi"})["containers"][0]["resources"]
    assert wished == {"requests": {"memory": "1Gi", "ephemeral-storage": "20Gi"}, "limits": {"memory": "1Gi"}}


def test_the_launcher_lets_as_many_bytes_of_files_travel() -> None:
    from singularity_proxy.launcher.snapshot import container_layer

    assert container_layer.limit({}) == FILES
