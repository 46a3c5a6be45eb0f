"""Which resources of a pod are devices that train: GPUs and the like, and neither network cards nor shares of memory.

Known accelerators count. A pod without any of these may have one that nobody has heard of. Then every other extended
resource counts, but for those whose names say that they are something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

_NATIVE = re.compile(r"cpu|memory|(ephemeral-)?storage|pods|(hugepages|attachable-volumes)-.*")
_KNOWN = re.compile(
    # Also the resource as which Kueue counts a DeviceClass, which may have no domain.
    r"([^/]+/)?(gpu|tpu|npu|hpu|xpu|ipu|dcu|gcu|mlu|gaudi|qaic)(\.shared)?"
    r"|nvidia\.com/mig-.+"
    r"|amd\.com/\w+_nps\d"
    r"|gpu\.intel\.com/(i915|xe)"
    r"|aws\.amazon\.com/neuron(core|device)?"
    r"|cloud-tpus\.google\.com/.+"
    r"|huawei\.com/ascend\w+(-\d+c\S*)?",
    re.IGNORECASE,
)
_OTHER = re.compile(
    r".*\b(k8s|kubernetes)\.io/.*|vpc\.amazonaws\.com/.*"
    r"|.*(?<![a-z])(rdma|roce|infiniband|hca|sriov|vhost|fuse|kvm|sgx|qat).*"
    r"|.*(?<![a-z])(efa|ib|nics?|vfs?|net|eni|tun)(?![a-z]).*"
    r"|.*/.*(mem|core|percent|milli).*",
    re.IGNORECASE,
)


def number(asks: Mapping[str, Fraction]) -> int:
    """Devices among the amounts, by resource; 0 without any."""
    return int(sum((asks[name] for name in _devices(asks)), Fraction(0)))


def flavor(flavors: Mapping[str, str]) -> str:
    """Of a pod's flavors by resource, the one that tells its kind of machine: its devices', else the CPU's.

    Kueue gives resources of different resource groups flavors of their own. "" without any.
    """
    found = [*_devices(flavors), "cpu", *flavors]
    return next((flavors[name] for name in found if flavors.get(name)), "")


def _devices(names: Iterable[str]) -> list[str]:
    """In alphabetical order."""
    found = sorted(name for name in names if not _NATIVE.fullmatch(name))
    known = [name for name in found if _KNOWN.fullmatch(name)]
    return known or [name for name in found if not _OTHER.fullmatch(name)]
