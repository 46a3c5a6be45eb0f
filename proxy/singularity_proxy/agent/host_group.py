"""A group whose operations go through host memory and gloo, whatever device the tensors are on.

One half of `device_group`: the rare operations, which do not depend on bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import staging
from .in_order import InOrder, Issued

Tensors = Sequence[Any]
_c10d: Any = torch._C._distributed_c10d


class _Plain:
    """In the place of torch's Backend where none can be written in Python, before 2.14: `swap_group` calls it."""

    def __init__(self, rank: int, size: int) -> None: ...


IN_PYTHON = hasattr(torch.distributed.distributed_c10d.Backend, "_ensure_backend_registered")
_BASE: Any = _c10d.Backend if IN_PYTHON else _Plain


class HostGroup(_BASE):  # type: ignore[misc]
    """:param label: name of the stock backend whose place this takes
    :param everyone: gloo group of all ranks
    """

    supports_coalescing = False
    supports_splitting = False
    stands_in = not IN_PYTHON
    """It is no Backend to torch."""

    def __init__(self, label: str, rank: int, size: int, everyone: Any) -> None:
        super().__init__(rank, size)
        self._label, self._rank, self._size = label, rank, size
        self._everyone = everyone
        self._thread = InOrder(f"singularity-{label}")

    def name(self) -> str:
        return self._label

    def parts(self) -> list[Any]:
        """The backends that this one consists of."""
        return [self._everyone]

    @property
    def options(self) -> Any:
        return self.parts()[-1].options

    def close(self) -> None:
        """End the thread, after what has been issued, and let go of all connections."""
        self._thread.close()
        self._everyone = None

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Issued:
        return self.issue(inputs, lambda: staging.gather(self._everyone, outputs, inputs, opts))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Issued:
        return self.issue(outputs, lambda: staging.scatter(self._everyone, outputs, inputs, opts))

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Issued:
        return self.issue(outputs, lambda: staging.all_to_all(self._everyone, outputs, inputs))

    def all_to_all_single(
        self, output: Any, own: Any, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: Any
    ) -> Issued:
        outputs, inputs = self.rows(output, output_sizes), self.rows(own, input_sizes)

        def operation() -> Tensors:
            staging.all_to_all(self._everyone, outputs, inputs)
            return [output]

        return self.issue([output], operation)

    def barrier(self, opts: Any) -> Issued:
        gpu = torch.cuda.is_initialized()
        device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")

        def operation() -> Tensors:
            self._everyone.barrier().wait()
            return []

        return self._thread.issue(operation, device)

    def send(self, tensors: Tensors, peer: int, tag: int) -> staging.Sent:
        return staging.Sent(self._everyone, tensors, peer, tag)

    def recv(self, tensors: Tensors, peer: int, tag: int) -> staging.Received:
        return staging.Received(self._everyone, tensors, peer, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        if any(tensor.is_cuda for tensor in tensors):  # NCCL has none either
            raise RuntimeError("recv from any source: not for tensors on GPUs that several ranks share; name the rank")
        return self._everyone.recv_anysource(tensors, tag)

    def allreduce_sparse(self, tensors: Tensors, opts: Any) -> Any:
        raise RuntimeError("all-reduce of sparse tensors: not for ranks that share a device; use dense gradients")

    def monitored_barrier(self, timeout: Any, wait_all_ranks: bool = False) -> Any:
        return self._everyone.monitored_barrier(timeout, wait_all_ranks)

    def set_timeout(self, timeout: Any) -> None:
        for part in self.parts():
            (part.set_timeout if hasattr(part, "set_timeout") else part._set_default_timeout)(timeout)

    _set_default_timeout = set_timeout
    """Its name before torch 2.14."""

    def abort(self) -> None:
        for part in self.parts():
            part.abort()

    shutdown = abort

    def _set_sequence_number_for_group(self) -> None:
        self._everyone._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self) -> int:
        return int(self._everyone._get_sequence_number_for_group())

    def get_error(self) -> Any:
        return self.parts()[-1].get_error()

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def issue(self, tensors: Tensors, operation: Callable[[], Tensors]) -> Issued:
        """:param tensors: at least one, on the device on which all are"""
        if any(tensor.layout is not torch.strided for tensor in tensors):
            raise RuntimeError("sparse tensors: not for ranks that share a device; use dense ones")
        return self._thread.issue(operation, tensors[0].device)

    def rows(self, whole: Any, sizes: Sequence[int] = ()) -> list[Any]:
        """What belongs to each rank, as views of `whole`, which is contiguous. No sizes: equal parts."""
        if sizes:
            return list(whole.split(list(sizes)))
        return list(whole.view(-1).view(self._size, -1)) if whole.numel() else [whole] * self._size
