"""Programs of many kinds, none of which knows of us. argv: kind, steps. Writes as train.py does."""

import ctypes
import hashlib
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute

KIND, STEPS = sys.argv[1], int(sys.argv[2])
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def data(step):
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(step)).to(DEVICE)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)).to(DEVICE)


def steps(net, forward=None, scaler=None):
    """The usual loop; yields the loss of each step."""
    forward = forward or net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        batch = data(step)
        if scaler is None:
            loss = (forward(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
        else:
            with torch.autocast(DEVICE, dtype=torch.float16):
                loss = (forward(batch) - batch).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        yield loss


def compiled(net):
    yield from steps(net, torch.compile(net))


def scaled(net):
    yield from steps(net, scaler=torch.amp.GradScaler(DEVICE))


def recomputed(net):
    yield from steps(net, lambda batch: recompute(net, batch, use_reentrant=False))


def streams(net):
    side = torch.cuda.Stream()

    def forward(batch):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            extra = (batch @ batch.T).tanh().sum() * 1e-6
        found = net(batch)
        torch.cuda.current_stream().wait_stream(side)
        return found + extra

    yield from steps(net, forward)


def graphs(net):
    """Forward, backward and step in one CUDA graph."""
    net.eval()  # dropout in a graph is another matter
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, capturable=True)
    batch = data(0)

    def once():
        optimizer.zero_grad(set_to_none=True)
        loss = (net(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = once()
    marker = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)  # a step, to who watches steps
    for step in range(STEPS):
        batch.copy_(data(step))
        graph.replay()
        marker.step()
        yield loss


def nvml(net):
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for loss in steps(net):
        assert pynvml.nvmlDeviceGetMemoryInfo(handle).used > 0
        yield loss


def nanogpt(net):
    """Karpathy's loop in small: gradient accumulation, clipping, a cosine rate."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 + torch.cos(torch.tensor(step / STEPS * 3.14)).item()) / 2
        for part in range(2):
            batch = data(2 * step + part)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = (net(batch) - batch).square().mean() / 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss


def trainer(net):
    """Hugging Face's Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 16 * STEPS

        def __getitem__(self, number):
            return {"x": torch.randn(64, generator=torch.Generator().manual_seed(number))}

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return {"loss": (self.net(x) - x).square().mean()}

    found = []

    class Take(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            found.append(float((logs or {}).get("loss", 0.0)))

    arguments = TrainingArguments(
        "out", max_steps=STEPS, per_device_train_batch_size=16, logging_steps=1, save_strategy="no", report_to=[]
    )
    Trainer(Wrapped(), arguments, train_dataset=Rows(), callbacks=[Take()]).train()
    yield from map(torch.tensor, found)


def lightning(net):
    import lightning as pl

    found = []

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, number):
            loss = (self.net(batch) - batch).square().mean()
            found.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    rows = torch.randn(16 * STEPS, 64, generator=torch.Generator().manual_seed(5))
    loader = torch.utils.data.DataLoader(rows, batch_size=16)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    pl.Trainer(max_steps=STEPS, devices=1, **quiet).fit(Module(), loader)
    yield from found


def main():
    torch.use_deterministic_algorithms(True, warn_only=True)
    net = model()
    with open("losses", "a", buffering=1) as losses:
        for step, loss in enumerate(globals()[KIND](net)):
            losses.write(f"{step} {loss.item().hex()}\n")
    digest = hashlib.sha256()
    for value in net.parameters():
        here = value.detach().cpu().contiguous()
        digest.update(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))
    with open("digest", "w") as file:
        file.write(digest.hexdigest())


if __name__ == "__main__":
    main()
