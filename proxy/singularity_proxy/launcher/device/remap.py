"""Which GPU of this pod takes the place of which GPU of the pod that dumped. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import RestoreError
from .driver import Device


def pairs(old: Sequence[Device], used: Sequence[str], new: Sequence[Device], place: int) -> dict[str, str]:
    """Old UUID -> new UUID, for every device that the dumping pod saw; the driver wants all of them.

    :param used: UUIDs of `old` that the rank has state on
    :param place: position of the rank among the ranks of this pod: ranks that share a pod spread over its GPUs
    Raises RestoreError, naming what does not fit.
    """
    if len(used) > len(new):
        raise RestoreError(
            f"the checkpoint has state on {len(used)} GPUs, this pod has {len(new)}: give its pods nvidia.com/gpu: "
            f"{len(used)}"
        )
    by_uuid = {device.uuid: device for device in old}
    free = [new[(place * max(1, len(used)) + k) % len(new)] for k in range(len(new))]
    found: dict[str, str] = {}
    for name in used:
        was = by_uuid[name]
        fits = next((device for device in free if device.name == was.name and device.memory >= was.memory), None)
        if fits is None:
            raise RestoreError(
                f"the checkpoint was taken on {was.name} ({was.memory >> 30} GiB); this pod has "
                f"{', '.join(sorted({device.name for device in new}))}: a restore needs the same type of GPU"
            )
        free.remove(fits)
        found[name] = fits.uuid
    rest = [device.uuid for device in old if device.uuid not in found]
    # Devices that the rank does not use: any will do, and where none is left they stay as they are.
    found |= {name: (free.pop(0).uuid if free else name) for name in rest}
    return found
