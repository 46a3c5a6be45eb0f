"""A namespace for pods without a privilege: its claims are bound to the platform's own folders."""

from __future__ import annotations

from localcluster.addons import restricted

SHARED = {"name": "shared", "hostPath": {"path": "/data", "type": "Directory"}}
VOLUMES = [SHARED, {"name": "scratch", "emptyDir": {}}]


def test_the_pods_have_claims_where_the_platform_has_folders() -> None:
    claim = {"name": "shared", "persistentVolumeClaim": {"claimName": "team-shared"}}
    assert restricted.claimed("team", VOLUMES) == [claim, VOLUMES[1]]


def test_each_claim_is_bound_to_the_folder() -> None:
    namespace, volume, claim = restricted.documents("team", VOLUMES)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert namespace["metadata"]["labels"]["singularity.dev/training"] == "enabled"
    assert volume["spec"]["hostPath"] == SHARED["hostPath"]
    assert volume["spec"]["claimRef"] == claim["metadata"] == {"namespace": "team", "name": "team-shared"}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""


def test_two_namespaces_have_volumes_of_their_own() -> None:
    names = {restricted.documents(name, VOLUMES)[1]["metadata"]["name"] for name in ("team", "other")}
    assert len(names) == 2
