"""A group in which several ranks share a device: a local part, one rank per device across devices, a local part.

All-reduce, all-gather, reduce-scatter and broadcast (and what is made of them) go that way. The first rank of each
device is its leader, and leaders have a stock backend among themselves. Ranks of one device meet in a gloo group
through host memory (CUDA IPC would keep the driver from checkpointing them). The rest, rarer and not about bandwidth,
goes through one gloo group of all ranks, staged through host memory on both sides.

Order of a sum: neighbours first, ((0+1)+(2+3)) among the ranks of one device, then the stock backend across devices.
It depends on nothing but which ranks share; docs/shared-devices.md says what that promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import fork, staging
from .host_group import HostGroup, Tensors
from .in_order import Issued
from .reduction import Reduction
from .store import OURS

_c10d: Any = torch._C._distributed_c10d


def make(label: str, options: Any, sets: Sequence[Sequence[int]], stock: Callable[[], Any]) -> Any:
    """:param options: torch's _DistributedBackendOptions of the group, left as they were
    :param sets: ranks in the group by device
    :param stock: makes the stock backend of what `options` says
    """
    rank, size, store = options.group_rank, options.group_size, options.store
    kept = list(options.global_ranks_in_group)
    mine = next(ranks for ranks in sets if rank in ranks)

    def gloo(name: str, ranks: Sequence[int]) -> Any:
        below = _c10d.PrefixStore(f"{OURS}{name}", store)
        before = fork.seen()
        made = _c10d.ProcessGroupGloo(below, ranks.index(rank), len(ranks), timeout=options.timeout)
        fork.communication(before)
        return made

    everyone = gloo("everyone", range(size))
    local = gloo(f"device-{mine[0]}", mine) if len(mine) > 1 else None
    leaders = None
    if rank == mine[0] and len(sets) > 1:
        firsts = [ranks[0] for ranks in sets]
        world = kept or list(range(size))
        try:
            options.store = _c10d.PrefixStore(f"{OURS}leaders", store)
            options.group_rank, options.group_size = firsts.index(rank), len(firsts)
            options.global_ranks_in_group = [world[first] for first in firsts]
            leaders = stock()
        finally:
            options.store, options.group_rank, options.group_size = store, rank, size
            options.global_ranks_in_group = kept
    return DeviceGroup(label, rank, sets, everyone, local, leaders)


class DeviceGroup(HostGroup):
    """:param sets: ranks in the group by device
    :param everyone: gloo group of all ranks
    :param local: gloo group of the ranks on this device; None: there is one
    :param leaders: stock backend of one rank per device; None: this rank is no leader, or there is one device
    """

    def __init__(
        self, label: str, rank: int, sets: Sequence[Sequence[int]], everyone: Any, local: Any, leaders: Any
    ) -> None:
        super().__init__(label, rank, sum(map(len, sets)), everyone)
        self._sets, self._local, self._leaders = sets, local, leaders
        self._here = next(n for n, ranks in enumerate(sets) if rank in ranks)
        self._leads = rank == sets[self._here][0]
        self._widest = max(map(len, sets))

    def parts(self) -> list[Any]:
        return [part for part in (self._everyone, self._local, self._leaders) if part is not None]

    def close(self) -> None:
        super().close()
        self._local = self._leaders = None

    def broadcast(self, tensors: Tensors, opts: Any) -> Issued:
        root = opts.rootRank
        return self.issue(tensors, lambda: [self._broadcast(tensor, root) for tensor in tensors])

    def allreduce(self, tensors: Tensors, opts: Any) -> Issued:
        reduction = Reduction(opts.reduceOp, self._size)
        return self.issue(tensors, lambda: [self._all_reduce(tensor, reduction) for tensor in tensors])

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Issued:
        reduction, root = Reduction(opts.reduceOp, self._size), opts.rootRank

        def operation() -> Tensors:
            for tensor in tensors:
                total = self._all_reduce(tensor.clone(), reduction)
                if self._rank == root:
                    tensor.copy_(total)
            return tensors

        return self.issue(tensors, operation)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Issued:
        return self._issue_gather(outputs, inputs, [tensor for found in outputs for tensor in found])

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Issued:
        return self.allgather([list(found) for found in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: Any, own: Any, opts: Any) -> Issued:
        return self.all_gather_single_coalesced([output], [own], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Issued:
        return self._issue_gather([self.rows(output) for output in outputs], inputs, outputs)

    def _issue_gather(self, outputs: Sequence[Tensors], inputs: Tensors, result: Tensors) -> Issued:
        def operation() -> Tensors:
            for found, own in zip(outputs, inputs, strict=True):
                self._all_gather(found, own)
            return result

        return self.issue(inputs, operation)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Issued:
        reduction = Reduction(opts.reduceOp, self._size)

        def operation() -> Tensors:
            for output, parts in zip(outputs, inputs, strict=True):
                self._reduce_scatter(output, parts, reduction)
            return outputs

        return self.issue(outputs, operation)

    def reduce_scatter_single(self, output: Any, own: Any, opts: Any) -> Issued:
        return self.reduce_scatter_single_coalesced([output], [own], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Issued:
        return self.reduce_scatter(outputs, [self.rows(own) for own in inputs], opts)

    # --- in the thread ----------------------------------------------------------------------------------------------
    def _broadcast(self, tensor: Any, root: int) -> Any:
        flat = tensor.contiguous().view(-1)
        home = next(n for n, ranks in enumerate(self._sets) if root in ranks)
        if not flat.numel():
            return tensor
        if self._local is not None and self._here == home:
            staging.broadcast(self._local, flat, self._sets[home].index(root))
        if self._leaders is not None:
            options = _c10d.BroadcastOptions()
            options.rootRank = home
            self._leaders.broadcast([flat], options).wait()
        if self._local is not None and self._here != home:
            staging.broadcast(self._local, flat, 0)
        return staging.put(tensor, flat)

    def _all_reduce(self, tensor: Any, reduction: Reduction) -> Any:
        flat = tensor.contiguous().view(-1)
        if not flat.numel():
            return tensor
        total = self._local_total(flat, reduction)
        if self._leaders is not None:
            self._leaders.allreduce([total], reduction.across(_c10d.AllreduceOptions())).wait()
        if self._local is not None:
            staging.broadcast(self._local, total, 0)
        return staging.put(tensor, reduction.finish(total))

    def _local_total(self, flat: Any, reduction: Reduction) -> Any:
        """On the leader the combined data of the ranks of this device, on the others memory for the result; may be
        `flat`."""
        own = reduction.prepare(flat)
        if self._local is None:
            return own
        parts = staging.collect(self._local, own)
        return reduction.fold(parts) if parts else torch.empty_like(own)

    def _all_gather(self, outputs: Tensors, own: Any) -> None:
        width = max(staging.nbytes(tensor) for tensor in (*outputs, own))
        if not width:
            return
        room = self._widest * width
        table = torch.empty((len(self._sets), room), dtype=torch.uint8, device=own.device)
        block = torch.zeros(room, dtype=torch.uint8, device=own.device)
        mine = staging.padded(own, width)
        rows = [mine] if self._local is None else staging.collect(self._local, mine)
        for place, row in enumerate(rows):
            block[place * width : (place + 1) * width] = row
        if self._leaders is not None:
            self._leaders.allgather([list(table)], [block]).wait()
        else:
            table[0] = block
        if self._local is not None:
            staging.broadcast(self._local, table.view(-1), 0)
        for number, ranks in enumerate(self._sets):
            for place, rank in enumerate(ranks):
                row = table[number, place * width : place * width + staging.nbytes(outputs[rank])]
                outputs[rank].copy_(row.view(outputs[rank].dtype).view_as(outputs[rank]))

    def _reduce_scatter(self, output: Any, parts: Tensors, reduction: Reduction) -> None:
        width = max(part.numel() for part in parts)
        if not width:
            return
        whole = torch.zeros((self._size, width), dtype=output.dtype, device=output.device)
        for rank, part in enumerate(parts):
            whole[rank, : part.numel()] = part.reshape(-1)
        total = self._local_total(whole.view(-1), reduction).view(self._size, width)
        block = torch.zeros((self._widest, width), dtype=output.dtype, device=output.device)
        if self._leaders is not None:
            blocks = [torch.zeros_like(block) for _ in self._sets]
            for number, ranks in enumerate(self._sets):
                blocks[number][: len(ranks)] = total[list(ranks)]
            options = reduction.across(_c10d.ReduceScatterOptions())
            self._leaders.reduce_scatter([block], [blocks], options).wait()
        elif self._leads:
            block[: self._size] = total[list(self._sets[0])]
        row = block[0] if self._local is None else staging.deal(self._local, block, self._leads)
        output.copy_(reduction.finish(row[: output.numel()]).view_as(output))
