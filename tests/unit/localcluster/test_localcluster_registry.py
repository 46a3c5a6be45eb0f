"""Indices: given once, given back, never where the host routes something else."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from localcluster import registry
from localcluster.config import MAX_CLUSTERS
from localcluster.errors import ConfigError, HostError


def test_index_is_kept_and_given_back(tmp_path: Path) -> None:
    first = registry.allocate("a", tmp_path)
    second = registry.allocate("b", tmp_path)
    assert first.index != second.index
    assert registry.allocate("a", tmp_path) == first
    assert registry.find("b", tmp_path) == second
    registry.release("a", tmp_path)
    assert registry.find("a", tmp_path) is None
    assert registry.allocate("c", tmp_path).index == first.index


def test_last_release_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "state"
    registry.allocate("a", root)
    registry.release("a", root)
    registry.remove_empty_root(root)
    assert not root.exists()
    registry.release("a", root)  # again: nothing to do
    assert not root.exists()


def test_networks_that_the_host_uses_are_left_out() -> None:
    used = [IPv4Network("10.200.0.0/15"), IPv4Network("10.232.7.0/24")]
    assert registry.choose_index("x", {"a": 3}, used) == 4  # 0, 1: pods; 2: services; 3: taken


def test_no_network_left_says_what_to_do() -> None:
    with pytest.raises(HostError, match="local down --name"):
        registry.choose_index("x", {}, [IPv4Network("10.0.0.0/8")])
    everyone = {f"c{index}": index for index in range(MAX_CLUSTERS)}
    with pytest.raises(HostError, match="16 clusters exist"):
        registry.choose_index("x", everyone, [])


def test_bad_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        registry.allocate("../etc", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_host_networks_reads_the_real_table() -> None:
    assert any(network.overlaps(IPv4Network("127.0.0.0/8")) for network in registry.host_networks())
