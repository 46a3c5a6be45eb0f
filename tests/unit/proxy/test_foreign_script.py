"""A training script that nobody here wrote, unchanged: TRL's sft.py (Hugging Face Trainer, Accelerate, DDP) from PyPI.

It is stopped three times and moves 2 pods -> 1 pod -> 2 pods -> 1 pod. Compared with a run that nothing disturbs is the
script's own last checkpoint: weights, optimizer, learning rates, random generators of both ranks, logged losses.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pod_harness import TRAIN, Pod
from pod_moves import end, free_port, fresh, restored, stop_and_dump

from singularity_proxy.protocol import messages, page

pytestmark = [pytest.mark.criu, pytest.mark.full, pytest.mark.timeout(1500)]
HERE = Path(__file__).parent
STEPS = 24
PYTHON = "3.14"
"""Of the training root file system."""
PATIENCE_S = 300.0
SCRIPT = "/shared/site/trl/scripts/sft.py"
OPTIONS = {
    "model_name_or_path": "/shared/model", "dataset_name": "/shared/data", "output_dir": "out", "max_steps": STEPS,
    "use_cpu": True, "bf16": False, "ddp_backend": "gloo", "per_device_train_batch_size": 4, "max_length": 64,
    "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "logging_steps": 1, "save_steps": STEPS, "report_to": "none",
    "dataloader_num_workers": 1, "gradient_accumulation_steps": 2,
}  # fmt: skip
ENV = {
    "PYTHONPATH": f"/singularity/agent/lib:{TRAIN}:/shared/site", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1", "HF_HOME": "/tmp/hf", "PYTHONDONTWRITEBYTECODE": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The volume of all pods: TRL, as PyPI has it."""
    folder = tmp_path_factory.mktemp("foreign") / "shared"
    platforms = [f"--platform={name}_x86_64" for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes",
            f"--python-version={PYTHON}", "--implementation=cp", *platforms, f"--target={folder}/site",
            f"--requirement={HERE}/foreign_requirements.txt",
        ],
        check=True,
        timeout=600,
    )  # fmt: skip
    return folder


@pytest.fixture
def pod(make_pod: Callable[..., Pod], rootfs: Path, torch_env: Path, criu_bundle: Path, shared: Path) -> object:
    def make(name: str, plan: messages.Plan, command: list[str] | None = None) -> Pod:
        words = ["python3", SCRIPT, *(str(word) for key, value in OPTIONS.items() for word in (f"--{key}", value))]
        return make_pod(
            name, rootfs=rootfs, torch=torch_env, plan=plan, env=ENV, criu=criu_bundle, shared=shared,
            command=command or words,
        )  # fmt: skip

    return make


def outcome(pods: dict[int, Pod]) -> dict[str, object]:
    """What the script has saved at its end, by name of the file."""
    saved = pods[0].work(0) / f"cwd/out/checkpoint-{STEPS}"
    other = pods[1].work(1) / f"cwd/out/checkpoint-{STEPS}"
    files = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"]
    found: dict[str, object] = {name: (saved / name).read_bytes() for name in files}
    found["rng_state_1.pth"] = (other / "rng_state_1.pth").read_bytes()
    log = json.loads((saved / "trainer_state.json").read_text())["log_history"]
    found["log"] = [{key: value for key, value in line.items() if not key.startswith("train_")} for line in log]
    return found


def test_three_moves_change_no_bit(pod: Callable[..., Pod], shared: Path) -> None:
    shutil.copy(HERE / "foreign_model.py", shared)
    maker = pod("maker", fresh([0], free_port(), 1), ["python3", "/shared/foreign_model.py", "/shared"]).start()
    assert maker.wait(PATIENCE_S) == 0, maker.log()

    reference = pod("reference", fresh([0, 1], free_port())).start()
    assert reference.wait(2 * PATIENCE_S) == 0, reference.log()
    whole = outcome({0: reference, 1: reference})
    log = whole["log"]
    assert isinstance(log, list) and len({line["loss"] for line in log}) > STEPS // 2, log

    port = free_port()
    pods = {rank: pod(f"first-{rank}", fresh([rank], port)).start() for rank in (0, 1)}
    steps = []
    for attempt, (ranks, step) in enumerate([([[0, 1]], 5), ([[0], [1]], 10), ([[0, 1]], 15)], 2):
        generation, name = page.generation(attempt - 1, 1), f"c{attempt}"
        steps.append(stop_and_dump(pods, generation, name, step, PATIENCE_S))
        end(list(dict.fromkeys(pods.values())))
        old, pods, port = pods, {}, free_port()
        for group in ranks:
            target = pod(f"attempt-{attempt}-{group[0]}", restored(group, port, generation, name, attempt))
            for rank in group:
                target.bring(old[rank], name, rank)
                pods[rank] = target
            target.start()
        for target in dict.fromkeys(pods.values()):
            target.wait_event("restored", timeout=PATIENCE_S)
    assert steps == sorted(set(steps)) and steps[-1] < STEPS, "each move was in the midst of the training"
    last = pods[0]
    assert last.wait(2 * PATIENCE_S) == 0, last.log()
    moved = outcome(pods)
    assert moved.keys() == whole.keys()
    assert [name for name in whole if moved[name] != whole[name]] == []
