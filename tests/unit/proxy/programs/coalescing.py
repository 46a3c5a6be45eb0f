"""Messages in a batch on a backend that issues a batch as one, as NCCL does and gloo does not. argv: steps."""

import sys

import torch
import torch.distributed as dist
from _singularity.agent import groups


class Several(dist.Work):
    def __init__(self, works):
        super().__init__()
        self._works = works

    def wait(self, *timeout):
        return all(work.wait() for work in self._works)


class Batching:
    """What is issued between start and end begins at the end."""

    supports_coalescing = True
    stands_in = True  # no stock group takes it

    def __init__(self, inner):
        self._inner, self._batch = inner, None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def _start_coalescing(self):
        assert self._batch is None
        self._batch = []

    def _end_coalescing(self):
        issued, self._batch = self._batch, None
        return Several([getattr(self._inner, name)(*arguments) for name, arguments in issued])

    def send(self, *arguments):
        self._batch.append(("send", arguments))

    def recv(self, *arguments):
        self._batch.append(("recv", arguments))


def main():
    dist.init_process_group("gloo")
    [backend] = groups.backends
    stock = backend.make
    backend.make = lambda generation: Batching(stock(generation))
    backend.inner = Batching(backend.inner)
    rank, world = dist.get_rank(), dist.get_world_size()
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen = []
    for step in range(int(sys.argv[1])):
        found = torch.empty(3)
        ops = [
            dist.P2POp(dist.isend, torch.full((3,), float(step + rank)), (rank + 1) % world),
            dist.P2POp(dist.irecv, found, (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        seen.append(found[0].item())
        optimizer.step()
    left = (rank - 1) % world
    assert seen == [step + left for step in range(len(seen))], seen
    print("all came", flush=True)
    dist.destroy_process_group()


main()
