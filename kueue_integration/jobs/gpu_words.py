"""What an attempt's GPUs have done, in words. Pure."""

from __future__ import annotations

from singularity_proxy.protocol.messages import Gpus

GIB = 1 << 30
XIDS = {
    13: "an error of the program", 31: "an error of the program", 43: "an error of the program",
    48: "memory errors that could not be corrected", 63: "memory was remapped", 64: "memory could not be remapped",
    74: "an error of NVLink", 79: "the GPU has fallen off the bus", 94: "memory errors that were contained",
    95: "memory errors that were not contained", 119: "the GPU's own processor does not answer",
}  # fmt: skip
"""Those that users meet; NVIDIA's list has them all."""


def usage(gpus: Gpus) -> str:
    """How busy and how full."""
    busy = "" if gpus.utilisation is None else f"{gpus.utilisation:.0f} % busy, "
    memory = f"{gpus.memory_peak / GIB:.1f} of {gpus.memory_total / GIB:.1f} GiB at most"
    return f"{gpus.count} GPU{'s' if gpus.count > 1 else ''}: {busy}{memory}"


def troubles(gpus: Gpus) -> str:
    """What was wrong with them, "" for nothing."""
    found = []
    for fault in gpus.faults:
        known = f" ({XIDS[fault.xid]})" if fault.xid in XIDS else ""
        times = f", {fault.count} times" if fault.count > 1 else ""
        found.append(f"Xid {fault.xid}{known} on {fault.gpu}{times}")
    if gpus.faults_more:
        found.append(f"{gpus.faults_more} further Xids")
    if gpus.ecc_uncorrected:
        found.append(f"{gpus.ecc_uncorrected} memory errors that could not be corrected")
    return "; ".join(found)
