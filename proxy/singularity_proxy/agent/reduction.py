"""torch's ReduceOp in four parts: before, among the ranks of a device, across devices, after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_SUMS = ("SUM", "AVG", "PREMUL_SUM")


class Reduction:
    """:param op: torch's ReduceOp
    :param ranks: how many take part
    """

    def __init__(self, op: Any, ranks: int) -> None:
        kind, self._factor = op.__getstate__()
        self._name: str = kind.name
        self._kind = torch.distributed.ReduceOp.SUM if self._name in _SUMS else kind
        self._fold = _FOLD["SUM" if self._name in _SUMS else self._name]
        self._ranks = ranks

    def prepare(self, own: Any) -> Any:
        """A rank's contribution: `own` itself, or a new tensor. Averages are divided before they are summed, as NCCL
        does with floating point, so that they do not overflow where their result would not."""
        if self._name == "AVG" and own.is_floating_point():
            return own * (1 / self._ranks)
        return own * self._factor if self._name == "PREMUL_SUM" else own

    def fold(self, parts: Sequence[Any]) -> Any:
        """Neighbours first: ((0+1)+(2+3)). Needs at least two parts; a new tensor."""
        while len(parts) > 1:
            pairs = [self._fold(parts[n], parts[n + 1]) for n in range(0, len(parts) - 1, 2)]
            parts = pairs + list(parts[len(pairs) * 2 :])
        return parts[0]

    def across(self, options: Any) -> Any:
        """`options` for the leaders of their devices."""
        options.reduceOp = self._kind
        return options

    def finish(self, total: Any) -> Any:
        if self._name == "AVG" and not total.is_floating_point():
            return torch.div(total, self._ranks, rounding_mode="trunc")
        return total
