"""Blocks of the pages for the platform team, typed as they stand, on a real API server with the chart's own Helm."""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from rendered import HELM, NO_HELM
from typed_cluster import Cluster, cluster_in

from kueue_integration.contract import job_names
from kueue_integration.controller import certificates
from kueue_integration.kube.resources import CONFIG_MAP, DEPLOYMENT, NAMESPACE, SECRET

SYSTEM = job_names.SYSTEM_NAMESPACE
pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The chart is there, by the command of the page."""
    with cluster_in(tmp_path_factory.mktemp("helm")) as cluster:
        assert "STATUS: deployed" in cluster.play("install.md", "Install", codes=(0, 3))  # doctor misses Kueue
        yield cluster


def test_namespaces_are_prepared(installed: Cluster) -> None:
    installed.play("install.md", "What you allow")
    labels = installed.kube.get(NAMESPACE, None, "default")["metadata"]["labels"]
    assert labels[job_names.LABEL_TRAINING] == job_names.TRAINING_ENABLED
    installed.play("images.md", "Private registries")
    assert installed.kube.get(SECRET, "default", "registry")["type"] == "kubernetes.io/dockerconfigjson"


def test_before_an_upgrade_jobs_and_images_are_listed(installed: Cluster) -> None:
    said = installed.play("upgrade.md", "Before the upgrade")
    assert said.startswith("NAMESPACE") and job_names.TRUSTED_IMAGES_LEASE in said and "USER-SUPPLIED VALUES" in said


def test_keys_are_marked_for_a_rotation_saved_and_restored(installed: Cluster) -> None:
    installed.play("keys.md", "Rotate")
    meta = installed.kube.get(SECRET, SYSTEM, job_names.KEYS_SECRET)["metadata"]
    assert "singularity.dev/rotate" in meta["annotations"]
    installed.play("keys.md", "Backup and restore")


def test_keys_of_checkpoints_are_made_rotated_and_put_back(installed: Cluster) -> None:
    """The rest of the block of the rotation is typed by `test_store_encryption` and `test_cli_checkpoints`."""
    kube, secret = installed.kube, "singularity-store-key"
    team = {"team-a": "default", "helm upgrade": "helm upgrade --no-hooks"}
    installed.play("keys.md", "Encrypted checkpoints", edit=team)
    assert secret in json.dumps(kube.get(DEPLOYMENT, SYSTEM, job_names.CONTROLLER_NAME)["spec"])
    first = kube.get(SECRET, "default", secret)["data"]
    wrapped_anew = "singularityctl checkpoints rewrap digits --namespace default --where pod"
    for_all = "SINGULARITY_STORE_KEYS=/path/with/both/keys"
    installed.play("keys.md", "Rotate the key of checkpoints", edit={**team, wrapped_anew: "true", for_all: "true ||"})
    second = kube.get(SECRET, "default", secret)["data"]
    (new,) = second.keys() - first.keys()
    assert max(second) == new and len({*second.values()}) == 2
    assert all(len(b64decode(b64decode(value))) == 32 for value in second.values())
    kube.patch(SECRET, "default", secret, {"data": dict.fromkeys(first)})
    installed.play("keys.md", "A key of checkpoints is lost", edit=team)
    assert kube.get(SECRET, "default", secret)["data"] == second


def test_the_secret_of_0_1_0_goes_if_nobody_knows_its_authority_any_more(installed: Cluster) -> None:
    kube, name = installed.kube, job_names.CONTROLLER_NAME
    known, forgotten = (certificates.authority(time.time(), 30)[0] for _ in range(2))
    platform = {"platform.json": json.dumps({"controller_ca": certificates.authority(0, 30)[0] + known})}
    kube.patch(CONFIG_MAP, SYSTEM, job_names.PLATFORM_CONFIGMAP, {"data": platform})
    for authority, kept in ((known, True), (forgotten, False), (None, False)):
        if authority is not None:
            data = {"ca.crt": b64encode(authority.encode()).decode()}
            meta = {"name": name, "namespace": SYSTEM}
            kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
        installed.play("upgrade.md", "To 0.1.0 after a rotation")
        assert (kube.find(SECRET, SYSTEM, name) is not None) == kept
        if kept:
            kube.delete(SECRET, SYSTEM, name)


def test_a_render_is_applied(installed: Cluster, tmp_path: Path) -> None:
    """In a cluster without the chart as the page has it, and over a release of Helm's with the flag that it names."""
    with cluster_in(tmp_path) as fresh:
        for cluster, flag in ((fresh, ""), (installed, "--force-conflicts")):
            cluster.type(f"kubectl create namespace {SYSTEM} 2>&1 || true")
            cluster.type(f"kubectl -n {SYSTEM} create secret generic {job_names.CONTROLLER_NAME}")  # of 0.1.0
            cluster.play("gitops.md", "With Argo CD or Flux", flag=flag)
            kept = cluster.kube.get(SECRET, SYSTEM, job_names.CONTROLLER_NAME)["metadata"]["annotations"]
            assert kept["helm.sh/resource-policy"] == "keep"
