"""One API server with the chart's policies, and the pods' API, for all tests that ask for them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from api_server import ApiServer, Policies, api_server
from kueue_samples import PLATFORM, STORE_PODS
from rendered import HELM, NO_HELM
from sidecar_scene import certificate, served  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    programs = [os.environ.get(f"SINGULARITY_{name}") for name in ("APISERVER", "ETCD")]
    if not all(programs):
        pytest.skip("no API server: `python -m localcluster.prepare --env` says where to find it")
    with api_server(tmp_path_factory.mktemp("api-server"), *map(str, programs)) as started:
        yield started


@pytest.fixture(scope="session")
def policies(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Policies:
    """The chart's policies are in force there."""
    if HELM is None:
        pytest.skip(NO_HELM)
    values = tmp_path_factory.mktemp("values") / "values.json"
    pods = {"volumes": [*PLATFORM.volumes], "volumeMounts": [*PLATFORM.volume_mounts], "env": dict(PLATFORM.env)}
    images = {"agent": PLATFORM.agent_image}
    store = {"volumes": [*STORE_PODS["volumes"]], "volumeMounts": [*STORE_PODS["volumeMounts"]], "secret": "s3"}
    worker = {"worker": {"enabled": True}}
    values.write_text(json.dumps({"images": images, "pods": pods, "store": store, "multikueue": worker}))
    return Policies(server, values=str(values))
