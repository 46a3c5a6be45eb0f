"""The container in which CRIU looks at a node: `doctor --probe` makes it, the guard policies know it."""

from __future__ import annotations

from ..spec.platform_config import NODE, USER_NAMESPACE

CRIU = "criu"
_FOLDER = "/opt/singularity/launcher"
_LOADER = (f"{_FOLDER}/ld-linux-x86-64.so.2", "--library-path", f"{_FOLDER}/lib", f"{_FOLDER}/criu")
FEATURE = {NODE: "seccomp_suspend", USER_NAMESPACE: "timens"}
"""What differs between nodes: it needs a kernel made for checkpoints, the capabilities, and no filter of the runtime.
CRIU looks at one feature at a time. All that `criu check` looks for would be too much: tun devices, for one."""


def command(privileges: str) -> tuple[str, ...]:
    """The one program besides the launcher that the guard policies let have its capabilities."""
    level = () if privileges == NODE else ("--unprivileged",)
    return (*_LOADER, "check", *level, "--feature", FEATURE[privileges])
