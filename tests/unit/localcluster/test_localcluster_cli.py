"""`singularityctl local`: errors are sentences with exit status 1, and nothing is made by asking."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from localcluster import status
from localcluster.cli import local
from localcluster.config import NODES, ClusterConfig

NOBODY = "no-such-cluster"


@pytest.mark.parametrize("command", [["status"], ["kubeconfig"], ["logs", "kueue"]])
def test_unknown_cluster(command: list[str]) -> None:
    result = CliRunner().invoke(local, [*command, "--name", NOBODY])
    assert result.exit_code == 1
    assert "does not exist: `singularityctl local up" in result.output.replace("\n", " ")


@pytest.mark.parametrize("command", ["up", "down", "status", "kubeconfig"])
def test_bad_name(command: str) -> None:
    result = CliRunner().invoke(local, [command, "--name", "Not/Good"])
    assert result.exit_code == 1
    assert "cluster name = 'Not/Good'" in result.output


def test_nodes_of_no_cluster_announce_nothing() -> None:
    result = CliRunner().invoke(local, ["machines", "--name", NOBODY])
    assert (result.exit_code, result.output) == (0, "")
    assert CliRunner().invoke(local, ["machines", "moon"]).exit_code == 2


@pytest.mark.parametrize("command", ["up", "down"])
def test_not_root(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(local, [command, "--name", NOBODY])
    assert result.exit_code == 1
    assert "needs root" in result.output


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_down_of_nothing_is_no_error() -> None:
    result = CliRunner().invoke(local, ["down", "--name", NOBODY])
    assert result.exit_code == 0
    assert f"cluster {NOBODY} does not exist" in result.output


def test_every_health_address_belongs_to_a_part() -> None:
    names = status.part_names()
    assert len(set(names)) == len(names) == 7 + 2 * len(NODES)
    assert set(status.health_urls(ClusterConfig("unit", 0))) < set(names)
