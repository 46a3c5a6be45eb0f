"""Generated objects of affinity cells against the schemas and rules of Kueue's own CRDs, on a real API server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from api_server import ApiServer, api_server
from cells_scene import TEXT, hall

from kueue_integration.cells import binding, description, look, objects
from kueue_integration.errors import KubeError
from kueue_integration.kube.resources import COHORT, KINDS, NODE, Kind, Object, kind_of
from localcluster.config import cache_dir
from localcluster.images import gobuild
from localcluster.shell import wait_until

CRD = Kind("CustomResourceDefinition", "apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
NAMES = ("topologies", "resourceflavors", "cohorts", "clusterqueues", "localqueues")


@pytest.fixture(scope="module")
def kueue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server of its own: the shared one has CRDs of Kueue that take anything."""
    crds = gobuild.folder(gobuild.KUEUE, cache_dir()) / "crds"
    programs = [os.environ.get(f"SINGULARITY_{name}") for name in ("APISERVER", "ETCD")]
    if not all(programs) or not crds.is_dir():
        pytest.skip("no API server, or no CRDs of Kueue: `python -m localcluster.prepare --env` makes them")
    with api_server(tmp_path_factory.mktemp("kueue-schema"), *map(str, programs)) as server:
        for name in NAMES:
            server.kube()._json("POST", CRD.path(), body=_crd(crds / f"kueue.x-k8s.io_{name}.yaml"))
        kinds = [KINDS[kind] for kind in ("Topology", "ResourceFlavor", "Cohort", "ClusterQueue", "LocalQueue")]
        for kind in kinds:
            wait_until(_served(server, kind), f"{kind.name} is served", timeout=60, interval=0.2)
        yield server


def _crd(path: Path) -> Object:
    """Without the conversion webhook of a running Kueue."""
    found: Object = yaml.safe_load(path.read_text())
    found["spec"].pop("conversion", None)
    note = {"api-approved.kubernetes.io": "unapproved, a test"}
    return {**found, "metadata": {"name": found["metadata"]["name"], "annotations": note}}


def _served(server: ApiServer, kind: Kind) -> Callable[[], bool]:
    def listed() -> bool:
        try:
            server.kube().list(kind)
        except KubeError:
            return False
        return True

    return listed


def made(text: str) -> list[Object]:
    there = look.read(hall())
    said = description.read(text)
    return objects.manifests(said, binding.bound(said, there.labels, there.broken), there.capacity)


@pytest.mark.parametrize("lend", [True, False])
def test_kueue_s_schemas_take_every_object(kueue: ApiServer, lend: bool) -> None:
    name = f"lend-{str(lend).lower()}"
    text = TEXT.replace("name: lab", f"name: {name}").replace("resources:", f"lend: {str(lend).lower()}\nresources:")
    text = text.replace("namespaces: [vision, vision-dev]", "namespaces: [default]")
    text = text.replace("name: vision", f"name: vision-{str(lend).lower()}")
    for manifest in made(text):
        if kind_of(manifest) is not NODE:
            stored = kueue.kube().create(manifest)
            assert stored["spec"].items() >= _plain(manifest["spec"]).items(), "a field that is no field is cut"


def _plain(spec: Object) -> Object:
    """The fields whose content the API server gives no defaults to."""
    return {key: value for key, value in spec.items() if key in ("levels", "nodeLabels", "topologyName", "cohortName")}


def test_the_schemas_refuse_what_is_wrong(kueue: ApiServer) -> None:
    """Else the test above could not fail."""
    queue = next(m for m in made(TEXT) if m["kind"] == "ClusterQueue")
    with pytest.raises(KubeError, match="whenCanPreempt"):
        kueue.kube().create({**queue, "spec": {**queue["spec"], "flavorFungibility": {"whenCanPreempt": "Never"}}})
    cohort = {"apiVersion": COHORT.api_version, "kind": "Cohort", "metadata": {"name": "x"}}
    with pytest.raises(KubeError, match="parentName"):
        kueue.kube().create({**cohort, "spec": {"parentName": "-"}})
