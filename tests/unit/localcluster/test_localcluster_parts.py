"""Configuration and command lines of the parts: what they say about addresses, folders and certificates."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
import tomllib

from localcluster.addons import dra, kueue, network
from localcluster.config import NODES, ClusterConfig
from localcluster.control_plane import components
from localcluster.control_plane.kubectl import json_stream
from localcluster.errors import BuildError, ConfigError
from localcluster.images import gobuild
from localcluster.images.gobuild import Binaries
from localcluster.nodes import node
from localcluster.shell import without_proxies


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    config = ClusterConfig("unit", 4, tmp_path)
    config.root.mkdir()
    return config


@pytest.fixture
def binaries() -> Binaries:
    files = {ours: Path("/cache", ours) for part in gobuild.PARTS for _, ours in part.binaries}
    return Binaries({part.name: Path("/cache") for part in gobuild.PARTS}, files)


def paths(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [path for entry in value.values() for path in paths(entry)]
    if isinstance(value, list):
        return [path for entry in value for path in paths(entry)]
    return [value] if isinstance(value, str) and value.removeprefix("unix://").startswith("/") else []


def test_containerd_keeps_to_the_folders_of_its_node(config: ClusterConfig) -> None:
    for member in NODES:
        document = tomllib.loads(node.containerd_toml(config, member, "/usr/sbin/runc"))
        own = (str(config.node_dir(member)), f"{config.containerd_state}/{member.name}")
        others = {"/usr/sbin/runc", "/usr/lib/cni"}
        assert [path for path in paths(document) if not path.startswith(own) and path not in others] == []
        assert document["version"] == 3


def test_kubelet_keeps_to_the_folders_of_its_node(config: ClusterConfig, binaries: Binaries) -> None:
    for member in NODES:
        document = json.loads(node.kubelet_config(config, member))
        shared = {f"/{config.cgroup}/{member.name}", str(config.pki / "ca.crt"), str(config.root / "resolv.conf")}
        left = [path.removeprefix("unix://") for path in paths(document) if path not in shared]
        assert all(path.startswith(str(config.node_dir(member))) for path in left)
        command = node.kubelet(config, member, binaries).command
        assert f"--node-labels=flavor={member.flavor}" in command
        assert f"--kubeconfig={config.pki}/node-{member.name}.kubeconfig" in command


def test_the_driver_of_a_node_writes_where_its_containerd_and_kubelet_look(config: ClusterConfig) -> None:
    for member in NODES:
        command = dra.part(config, Path("/cache/dradriver"), member, devices=2).command
        cdi, registry, plugins = (
            next(word.partition("=")[2] for word in command if word.startswith(f"--{flag}="))
            for flag in ("cdi-root", "kubelet-registrar-directory-path", "kubelet-plugins-directory-path")
        )
        containerd = tomllib.loads(node.containerd_toml(config, member, "/usr/sbin/runc"))
        assert containerd["plugins"]["io.containerd.cri.v1.runtime"]["cdi_spec_dirs"] == [cdi]
        root = config.node_dir(member) / node.KUBELET_ROOT
        assert (registry, plugins) == (str(root / "plugins_registry"), str(root / "plugins"))


def test_a_name_with_which_driver_and_kubelet_could_not_meet_is_refused() -> None:
    dra.check_socket(ClusterConfig("a" * 13, 0), NODES[0])
    dra.check_socket(ClusterConfig("a" * 17, 0), NODES[2])
    with pytest.raises(ConfigError, match="at most 13 characters"):
        dra.check_socket(ClusterConfig("a" * 14, 0), NODES[0])


def test_pods_get_addresses_of_the_pod_subnet(config: ClusterConfig) -> None:
    (plugin,) = json.loads(node.cni_conflist(config))["plugins"]
    assert [IPv4Network(item["subnet"]) for item in plugin["ipam"]["ranges"][0]] == [config.pod_subnet]


def test_written_files_are_what_the_programs_are_given(config: ClusterConfig, binaries: Binaries) -> None:
    member = NODES[2]
    node.write_files(config, member, "/usr/sbin/runc")
    for part in (node.containerd(config, member, binaries), node.kubelet(config, member, binaries)):
        named = [word.partition("=")[2] or word for word in part.command if word.endswith((".toml", "kubelet.json"))]
        assert named
        assert all(Path(name).exists() for name in named)


def test_etcd_listens_on_loopback_only(config: ClusterConfig, binaries: Binaries) -> None:
    urls = [word for word in components.etcd(config, binaries).command if "://" in word]
    assert urls
    assert all("//127.0.0.1:" in url for url in urls)


def test_api_server_serves_what_the_certificates_say(config: ClusterConfig, binaries: Binaries) -> None:
    command = components.apiserver(config, binaries).command
    assert f"--service-cluster-ip-range={config.service_subnet}" in command
    assert f"--advertise-address={config.address}" in command
    assert "--authorization-mode=Node,RBAC" in command


def test_dns_and_proxy_serve_this_cluster(config: ClusterConfig, binaries: Binaries) -> None:
    assert f"--cluster-cidr={config.pod_subnet}" in network.kube_proxy(config, binaries).command
    path = Path(network.coredns(config, binaries).command[-1])
    assert str(config.pki / "coredns.kubeconfig") in path.read_text()
    assert IPv4Address(json.loads(node.kubelet_config(config, NODES[0]))["clusterDNS"][0]) in config.uplink


def hook(path: str) -> dict[str, Any]:
    service = {"name": "webhook-service", "namespace": "system", "path": path}
    return {"name": path.strip("/"), "clientConfig": {"service": service}, "failurePolicy": "Fail"}


def document(*found: str) -> dict[str, Any]:
    return {
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "mutating-webhook-configuration", "creationTimestamp": None},
        "webhooks": [hook(path) for path in found],
    }


def test_webhooks_of_frameworks_that_do_not_run_are_left_out() -> None:
    given = document("/mutate-batch-v1-job", "/mutate--v1-pod", "/mutate-kueue-x-k8s-io-v1beta2-workload")
    (made,) = kueue.webhooks([given], b"CA")
    assert made["metadata"] == {"name": "kueue-mutating-webhook-configuration"}
    job, workload = made["webhooks"]
    assert job["clientConfig"] == {"url": "https://127.0.0.1:9443/mutate-batch-v1-job", "caBundle": "Q0E="}
    assert job["failurePolicy"] == "Fail"
    assert job["namespaceSelector"]["matchExpressions"][0]["values"] == ["kube-system", "kueue-system"]
    assert "namespaceSelector" not in workload


def test_unknown_webhook_manifest_is_an_error() -> None:
    with pytest.raises(BuildError, match="no webhook"):
        kueue.webhooks([document("/mutate--v1-pod")], b"CA")


def test_kueue_listens_where_we_look_and_does_not_elect(config: ClusterConfig, binaries: Binaries) -> None:
    command = kueue.part(config, binaries).command
    written = json.loads(Path(command[1].removeprefix("--config=")).read_text())
    assert written["health"]["healthProbeBindAddress"].startswith(config.address)
    assert written["leaderElection"] == {"leaderElect": False}


def test_json_documents_in_a_row() -> None:
    assert json_stream('{"a": 1}\n\n {"b": "} {"}\n') == [{"a": 1}, {"b": "} {"}]
    assert json_stream(" \n") == []


def test_proxies_are_not_for_the_cluster() -> None:
    given = {"HTTPS_PROXY": "x", "http_proxy": "y", "No_Proxy": "z", "PATH": "p"}
    assert without_proxies(given) == {"PATH": "p"}
