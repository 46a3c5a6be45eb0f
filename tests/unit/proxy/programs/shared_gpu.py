"""DDP of two ranks on one GPU: with NCCL, which then speaks for both, and with gloo. argv: steps."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(group, steps):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).cuda()
    net = DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(10 + dist.get_rank())
    losses = []
    for _ in range(steps):
        batch = torch.randn(32, 64, generator=data).cuda()
        loss = (net(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main():
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    wanted = train(dist.new_group(backend="gloo"), int(sys.argv[1]))
    found = train(dist.group.WORLD, int(sys.argv[1]))
    assert found == wanted, (found, wanted)  # a sum of two has one order
    parts = [torch.empty(4, device="cuda") for _ in range(2)]
    dist.all_gather(parts, torch.full((4,), float(rank), device="cuda"))
    assert torch.stack(parts).tolist() == [[0.0] * 4, [1.0] * 4]
    piece = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(piece, torch.arange(4.0, device="cuda"), dist.ReduceOp.AVG)
    assert piece.tolist() == [2.0 * rank, 2.0 * rank + 1]
    peer = torch.empty(3, device="cuda")
    works = [dist.isend(torch.full((3,), float(rank), device="cuda"), 1 - rank), dist.irecv(peer, 1 - rank)]
    for work in works:
        work.wait()
    assert peer.tolist() == [1.0 - rank] * 3
    dist.barrier()
    print(len(found), "alike", flush=True)
    dist.destroy_process_group()


main()
