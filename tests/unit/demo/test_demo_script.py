"""What the script of the state engine's story writes is what the story reads, on one rank and on three."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from torch_nursery import Nursery

from localcluster.demo import samples, state
from localcluster.demo.compare import compare, read_output

pytestmark = pytest.mark.criu  # root and the torch environment
STEPS, IMAGES, MICRO_BATCH = 8, 50, 2
"""6 steps of 8 images in an epoch; two images are left out of each."""


@pytest.fixture
def nursery(tmp_path: Path) -> Nursery:
    if Nursery.reason():
        pytest.skip(Nursery.reason())
    return Nursery.of_environment(tmp_path, [state.SCRIPTS])


def train(nursery: Nursery, data: Path, ranks: int) -> Path:
    output = data.parent / f"output-{ranks}"
    output.mkdir()
    # A machine's own name need not resolve to an address that it listens at.
    launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", f"--nproc-per-node={ranks}"]
    options = {"data": data, "output": output, "steps": STEPS, "batch-size": MICRO_BATCH, "width": 4}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    script = [*(launch if ranks > 1 else []), state.SCRIPT, *words]
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([nursery.python(), *script], check=True, timeout=250, env=env)
    return output


def test_one_rank_and_three_write_the_same_losses_weights_and_samples(nursery: Nursery, tmp_path: Path) -> None:
    data = tmp_path / "digits.npz"
    random = np.random.default_rng(0)
    images = random.random((IMAGES, 8, 8), np.float32)
    np.savez(data, x_train=images, y_train=random.integers(0, 10, IMAGES))
    try:
        alone, three = train(nursery, data, 1), train(nursery, data, 3)
    finally:
        nursery.close()
    found = compare(read_output(three, 1), read_output(alone, 1))
    assert found.bit_identical and found.steps == STEPS, found.differences
    for output in (alone, three):
        assert samples.wrong(samples.read(output), STEPS, state.VIRTUAL_RANKS * MICRO_BATCH) == []
    assert {given.epoch for given in samples.read(three)} == {0, 1}
    assert len(list(three.glob(samples.FILES))) == 3
