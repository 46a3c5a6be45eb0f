"""What a manager and its workers are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster import multikueue
from localcluster.config import check_name, nodes
from localcluster.errors import ConfigError
from localcluster.namespaces.holder import COVERED


def test_names_are_those_of_clusters():
    assert multikueue.names("mk") == ["mk", "mk-a", "mk-b"]
    for name in multikueue.names("a" * 22):
        check_name(name)


def test_the_shared_folder_is_one_that_every_cluster_sees():
    assert not any(multikueue.SHARED_ROOT.is_relative_to(cover) for cover in COVERED)


def test_a_small_machine_gets_clusters_of_fewer_nodes():
    assert [node.name for node in nodes({})] == ["ondemand-0", "ondemand-1", "spot-0"]
    assert [node.name for node in nodes({"SINGULARITY_LOCAL_NODES": "1"})] == ["ondemand-0"]
    for bad in ("0", "4", "many"):
        with pytest.raises(ConfigError, match="SINGULARITY_LOCAL_NODES"):
            nodes({"SINGULARITY_LOCAL_NODES": bad})


def test_the_managers_queue_sends_to_exactly_these_workers():
    objects = {(o["kind"], o["metadata"]["name"]): o["spec"] for o in multikueue.manager_objects(["x", "y"])}
    assert objects["MultiKueueConfig", "global"]["clusters"] == ["x", "y"]
    for name in ("x", "y"):
        source = objects["MultiKueueCluster", name]["clusterSource"]["kubeConfig"]
        assert source == {"locationType": "Secret", "location": name}
    check = objects["AdmissionCheck", "global"]
    assert check["parameters"]["name"] == "global"
    assert objects["ClusterQueue", "global"]["admissionChecksStrategy"]["admissionChecks"] == [{"name": "global"}]
    assert objects["LocalQueue", "global"] == {"clusterQueue": "global"}


def test_pods_get_the_shared_folder_and_keep_the_rest():
    torch = {"name": "torch", "hostPath": {"path": "/t", "type": "Directory"}}
    own = {"name": "shared", "hostPath": {"path": "/own", "type": "Directory"}}
    values = {"pods": {"volumes": [own, torch], "env": {"A": "1"}}, "images": {"agent": "x"}}
    made = multikueue.overlay(values, {"multikueue": {}}, Path("/srv/all"))
    assert made["pods"]["volumes"] == [{**own, "hostPath": {"path": "/srv/all", "type": "Directory"}}, torch]
    assert made["pods"]["env"] == {"A": "1"} and made["images"] == values["images"]
    assert values["pods"]["volumes"][0] == own


@pytest.mark.parametrize("status", [{}, {"conditions": [{"type": "Active", "status": "False"}]}])
def test_what_is_not_active_is_waited_for(status):
    assert not multikueue._active({"status": status})
    assert multikueue._active({"status": {"conditions": [{"type": "Active", "status": "True"}]}})
