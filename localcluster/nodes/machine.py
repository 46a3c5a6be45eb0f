"""A node that announces a lesser machine than this one: fewer features of the processor. Writes files, starts nothing.

What the product looks at differs: the /proc/cpuinfo that containers see, and the labels that node feature discovery
would set. The processor itself is what it is: a program that asks it by the instruction CPUID hears the truth.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kueue_integration.controller.checkpoint_fit import CPUID
from singularity_proxy.protocol import cpu

from ..config import ClusterConfig, Node
from ..errors import ConfigError
from . import node

CPUINFO = Path("/proc/cpuinfo")
"""runc lets this file, unlike most of /proc, be mounted over."""
NEWER = ("avx512", "amx", "avx_vnni")
"""How flags begin that an older server of the same architecture has not."""
OLDEST = "avx"


def lesser(cpuinfo: str) -> str:
    """/proc/cpuinfo of an older machine: without the newer extensions, or where there are none, with AVX alone.

    One extension stays: a node without any label of an extension counts as one that nobody has looked at.
    :raises ConfigError: the processor has no extension that a checkpoint could miss
    """
    found = cpu.flags(cpuinfo)
    newer = {flag for flag in found if flag.startswith(NEWER)}
    hidden = newer if any(map(cpu.extension, newer)) else set(filter(cpu.extension, found)) - {OLDEST}
    if not hidden:
        raise ConfigError("this machine's processor has no extension beside AVX that could be hidden")
    return "".join(_without(hidden, line) for line in cpuinfo.splitlines(keepends=True))


def _without(hidden: set[str], line: str) -> str:
    key, colon, value = line.partition(":")
    if key.strip() not in cpu.FLAGS:
        return line
    kept = [flag for flag in value.split() if flag not in hidden]
    return f"{key}{colon} {' '.join(kept)}\n"


def lacks(cpuinfo: str, other: str) -> list[str]:
    """Extensions of the machine of `cpuinfo` that the `other` one has not."""
    return sorted(set(cpu.extensions(cpuinfo)) - set(cpu.extensions(other)))


def labels(cpuinfo: str) -> dict[str, str]:
    """As node feature discovery sets them for the extensions of such a machine."""
    return {CPUID + name: "true" for name in cpu.extensions(cpuinfo)}


def announce(config: ClusterConfig, member: Node, cpuinfo: str, spec: dict[str, Any]) -> None:
    """Containers of the node see `cpuinfo`, from the next start of its containerd on.

    :param spec: what containerd makes containers from, `ctr oci spec`
    """
    text = config.node_dir(member) / "cpuinfo"
    text.write_text(cpuinfo)
    over = {"destination": str(CPUINFO), "type": "bind", "source": str(text), "options": ["bind", "ro"]}
    node.base_spec(config, member).write_text(json.dumps({**spec, "mounts": [*spec["mounts"], over]}))


def announced(config: ClusterConfig, member: Node) -> bool:
    return node.base_spec(config, member).exists()


def forget(config: ClusterConfig, member: Node) -> None:
    """Containers of the node see what there is, from the next start of its containerd on."""
    node.base_spec(config, member).unlink(missing_ok=True)
