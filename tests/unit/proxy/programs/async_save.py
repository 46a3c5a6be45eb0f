"""FSDP2 with checkpoints of the script's own, which a thread writes beside the training.

argv: steps, steps between, folder of both ranks.

All that was saved is read at the end: it must be what the state was when saving began.
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


class FarAway(dcp.FileSystemWriter):
    """Takes some steps of the training."""

    def write_data(self, plan, planner):
        time.sleep(0.05)
        return super().write_data(plan, planner)


def total(state):
    return sum(value.full_tensor().double().sum().item() for value in state.values()).hex()


def main():
    steps, every, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    beside = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    for layer in (net[0], net[2], net):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    log = open("losses", "a", buffering=1)  # noqa: SIM115
    saving, totals = None, {}
    for step in range(steps):
        batch = torch.randn(4, 8)
        loss = (net(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            if saving is not None:
                saving.result()
            state = get_model_state_dict(net)
            totals[step] = total(state)
            saving = dcp.async_save(state, storage_writer=FarAway(f"{folder}/saved-{step}"), process_group=beside)
        time.sleep(0.002)
        log.write(f"{step} {loss.item().hex()}\n")
    saving.result()
    for step, wanted in totals.items():
        state = get_model_state_dict(net)
        dcp.load(state, checkpoint_id=f"{folder}/saved-{step}")
        assert total(state) == wanted, f"checkpoint {step} of the script"
    log.write(f"{len(totals)} checkpoints: {totals[max(totals)]}\n")
    dist.destroy_process_group()


main()
