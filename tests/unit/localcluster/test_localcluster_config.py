"""Names, addresses and paths of a cluster."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations
from pathlib import Path

import pytest

from localcluster.config import MAX_CLUSTERS, NODES, ClusterConfig, cache_dir, check_name
from localcluster.errors import ConfigError
from localcluster.nodes import node


@pytest.mark.parametrize("name", ["default", "a", "x" * 24, "team-1"])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "Default", "1st", "-a", "a-", "x" * 25, "a/b", "..", "a b", "a\n"])
def test_bad_names_are_refused_with_the_value(name: str) -> None:
    with pytest.raises(ConfigError, match="cluster name = ") as caught:
        check_name(name)
    assert repr(name) in str(caught.value)


def test_no_two_clusters_share_an_address() -> None:
    networks: list[IPv4Network] = []
    for index in range(MAX_CLUSTERS):
        config = ClusterConfig(f"c{index}", index)
        networks += [config.uplink, config.pod_subnet, config.service_subnet]
    assert not [pair for pair in combinations(networks, 2) if pair[0].overlaps(pair[1])]


def test_both_ends_of_the_link_are_hosts_of_its_network() -> None:
    config = ClusterConfig("a", 3)
    hosts = [str(host) for host in config.uplink.hosts()]
    assert hosts == [config.host_address, config.address]
    assert len(ClusterConfig("a", MAX_CLUSTERS - 1).link) <= 15  # IFNAMSIZ - 1


def test_socket_paths_of_the_longest_name_fit_into_sun_path() -> None:
    config = ClusterConfig("x" * 24, 0)
    assert all(len(f"{node.socket(config, member)}.ttrpc") < 108 for member in NODES)


def test_nodes_share_an_address_so_their_ports_differ() -> None:
    ports = [port for member in NODES for port in (member.port, member.health_port)]
    assert len(set(ports)) == len(ports)
    assert sorted(member.flavor for member in NODES) == ["ondemand", "ondemand", "spot"]


def test_cache_folder_precedence() -> None:
    everything = {"SINGULARITY_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}
    assert cache_dir(everything) == Path("/a")
    del everything["SINGULARITY_CACHE"]
    assert cache_dir(everything) == Path("/b/singularity")
    del everything["XDG_CACHE_HOME"]
    assert cache_dir(everything) == Path("/c/.cache/singularity")


def test_relative_cache_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'here'.*absolute"):
        cache_dir({"SINGULARITY_CACHE": "here"})
