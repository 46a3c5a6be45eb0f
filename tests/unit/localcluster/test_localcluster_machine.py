"""Nodes that announce another machine: what their containers are shown, what the product makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib

from kueue_integration.controller import checkpoint_fit
from localcluster.config import NODES, ClusterConfig
from localcluster.errors import ConfigError
from localcluster.nodes import machine, node
from singularity_proxy.protocol.messages import CheckpointRef
from singularity_proxy.sidecar import hardware

NEW = "processor\t: 0\nflags\t\t: fpu avx avx2 avx512f avx512_vbmi amx_tile\nbugs\t: none\n\nprocessor\t: 1\n"
OLD = "flags\t\t: fpu avx avx2\n"
CONTAINERD = "io.containerd.cri.v1.runtime"


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    return ClusterConfig("unit", 4, tmp_path)


def runtime(config: ClusterConfig, member: Any) -> dict[str, Any]:
    document = tomllib.loads(node.containerd_toml(config, member, "/usr/sbin/runc"))
    found: dict[str, Any] = document["plugins"][CONTAINERD]["containerd"]["runtimes"]["runc"]
    return found


def test_an_older_machine_has_the_same_processors_with_fewer_features() -> None:
    other = machine.lesser(NEW)
    assert other == NEW.replace(" avx512f avx512_vbmi amx_tile", "")
    assert machine.lacks(NEW, other) == ["AMXTILE", "AVX512F"]
    assert machine.lesser(OLD).split(":")[1].split() == ["fpu", "avx"], "nothing newer to hide: what has a name goes"
    for bare in ("Features : fp asimd\n", "flags : fpu avx\n"):
        with pytest.raises(ConfigError, match="no extension beside AVX"):
            machine.lesser(bare)


@pytest.mark.parametrize(("cpuinfo", "lacking"), [(NEW, "AMXTILE, AVX512F"), (OLD, "AVX2")], ids=["newer", "older"])
def test_a_checkpoint_of_processes_is_kept_from_it_and_one_of_its_own_fits_everywhere(
    cpuinfo: str, lacking: str
) -> None:
    other = machine.lesser(cpuinfo)
    ref = CheckpointRef("c", 1, 1, 1, 1, "file:///s", 1, 1, 0.0, "0" * 64)
    here, there = ({checkpoint_fit.ARCHITECTURE: "amd64", **machine.labels(text)} for text in (cpuinfo, other))
    new, old = (hardware.needs("x86_64", text) for text in (cpuinfo, other))
    assert checkpoint_fit.missing(replace(ref, needs=new), [here]) == ""
    assert f"its nodes lack {lacking}" in checkpoint_fit.missing(replace(ref, needs=new), [there])
    assert checkpoint_fit.missing(replace(ref, needs=old), [here]) == ""


def test_containers_of_an_announced_node_see_its_cpuinfo_until_that_is_over(config: ClusterConfig) -> None:
    first, *_, last = NODES
    for member in NODES:
        node.write_files(config, member, "/usr/sbin/runc")
    assert "base_runtime_spec" not in runtime(config, last) and not machine.announced(config, last)
    machine.announce(config, last, OLD, {"ociVersion": "1", "mounts": [{"destination": "/proc"}]})
    assert machine.announced(config, last) and not machine.announced(config, first)
    spec = json.loads(Path(runtime(config, last)["base_runtime_spec"]).read_text())
    proc, over = spec["mounts"]
    assert (proc["destination"], over["destination"]) == ("/proc", "/proc/cpuinfo")
    assert Path(over["source"]).read_text() == OLD and "ro" in over["options"]
    machine.forget(config, last)
    assert "base_runtime_spec" not in runtime(config, last)
