"""A transformer: bf16 autocast, AdamW, dropout, a pinned loader. argv: steps, width, layers.

Writes the loss of each step to `losses`, and at its end a digest of all weights to `digest`.
"""

import ctypes
import hashlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, WIDTH, LAYERS = (int(word) for word in sys.argv[1:4])
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Text(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, number):
        return torch.randint(0, 256, (65,), generator=torch.Generator().manual_seed(number))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.body(self.embed(tokens), mask=mask))


def main():
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Text(), batch_size=8, num_workers=1, pin_memory=DEVICE == "cuda", persistent_workers=True)
    with open("losses", "a", buffering=1) as losses:
        for step, tokens in enumerate(loader):
            if step == STEPS:
                break
            tokens = tokens.to(DEVICE, non_blocking=True)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                found = model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(found.float().flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.write(f"{step} {loss.item().hex()}\n")
    digest = hashlib.sha256()
    for value in [*model.state_dict().values(), torch.get_rng_state()]:
        here = value.cpu().contiguous()  # numpy may not be there
        digest.update(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))
    with open("digest", "w") as file:
        file.write(digest.hexdigest())


if __name__ == "__main__":
    main()
