"""How busy a job keeps a GPU, from its measured speeds on two models of GPU. Pure.

No trace tells the utilisation of Philly's jobs by family. It is reckoned from the speeds that Gavel measured. A step
has a part in which the GPU computes, and one in which it waits (for input, host, network). Only the first part takes
longer on a slower GPU. With `u`, the share of the first part on the faster GPU, and `r`, the ratio at which the GPUs
compute:

    speed on the slower one / speed on the faster one = 1 / (1 - u + r u)

A family that is as fast on the slower GPU keeps the faster one idle (0). One that loses all that the GPU loses keeps it
busy (1). The model knows nothing of memory bandwidth, or of kernels that suit one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping

TFLOPS: Mapping[str, float] = {"v100": 14.0, "p100": 9.3, "k80": 4.4}
"""32-bit floating point at boost clock, PCIe cards; K80: one of its two GPUs (NVIDIA's data sheets)."""


def busy_percent(speeds: Mapping[str, float], flavor: str) -> float | None:
    """Of the GPUs of `flavor`, 0 to 100, where the job runs on it; None: no second model to compare with.

    :param speeds: of a job by flavor, relative to any of them
    """
    others = [name for name in speeds if name != flavor and name in TFLOPS and speeds[name] > 0]
    if flavor not in TFLOPS or not others or speeds.get(flavor, 0.0) <= 0:
        return None
    other = min(others, key=lambda name: (abs(TFLOPS[name] - TFLOPS[flavor]), name))
    fast, slow = sorted((flavor, other), key=lambda name: -TFLOPS[name])
    ratio = TFLOPS[fast] / TFLOPS[slow]
    share = min(1.0, max(0.0, (speeds[fast] / speeds[slow] - 1.0) / (ratio - 1.0)))
    if flavor == slow:
        share = share * ratio / (1.0 - share + ratio * share)
    return round(100.0 * share, 1)
