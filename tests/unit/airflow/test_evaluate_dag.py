"""The example that evaluates a checkpoint of a running training: its order, its spec, its tasks, its script."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import digits
import numpy as np
import pytest
from module_files import loaded
from torch_nursery import Nursery

from airflow_provider.identity import Claim, TaskKey, Try, job_name
from airflow_provider.submission import build_spec
from kueue_integration.jobs.export import Exported
from kueue_integration.spec.validate import validate

ROOT = Path(__file__).parents[3]
DAGS = ROOT / "dags"
CHECKPOINT = {"job": "train-1", "namespace": "team", "id": "train-1-a1-g3", "step": 240}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return loaded(DAGS / "evaluate.py")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINGULARITY_SHARED_DIR", str(tmp_path))
    return tmp_path


def run_task(example: ModuleType, name: str, *args: Any) -> Any:
    return example.dag.task_dict[name].python_callable(*args)


def write_safetensors(path: Path, arrays: dict[str, Any], dtype: str = "F32") -> None:
    header, data = {}, b""
    for name, array in arrays.items():
        first, data = len(data), data + array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [first, len(data)]}
    text = json.dumps({"__metadata__": {"step": "240"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def weights(width: int = 2) -> dict[str, Any]:
    shapes = {
        "conv1.weight": (width, 1, 3, 3), "conv1.bias": (width,), "conv2.weight": (2 * width, width, 3, 3),
        "conv2.bias": (2 * width,), "fc1.weight": (128, 32 * width), "fc1.bias": (128,), "fc2.weight": (10, 128),
        "fc2.bias": (10,),
    }  # fmt: skip
    rng = np.random.default_rng(3)
    return {f"main.{name}": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_the_evaluation_waits_for_a_checkpoint_and_not_for_the_training(example: ModuleType) -> None:
    tasks = example.dag.task_dict
    assert tasks["prepare"].downstream_task_ids == {"train", "saved"}
    assert tasks["train"].downstream_task_ids == set()
    assert tasks["saved"].downstream_task_ids == {"evaluate"}
    assert tasks["evaluate"].downstream_task_ids == {"register"}
    assert tasks["saved"].mode == "reschedule" and tasks["saved"].training_task_id == "train"


def test_the_training_is_a_valid_job_of_the_state_engine(example: ModuleType) -> None:
    train = example.dag.task_dict["train"].prepare_for_execution()
    given = {"params": example.dag.params.dump(), "run_id": "manual__2026-01-01T00:00:00+00:00", "dag": example.dag}
    train.render_template_fields(given)
    key = TaskKey("digits_evaluate", "r", "train")
    claim = Claim(key, 0, Try(1, 0, 0), train.namespace, job_name("train", key, 0))
    spec = build_spec(train, claim, example.dag.fileloc)
    validate(spec)
    assert (spec.engine, spec.elastic, spec.workers, spec.min_workers) == ("state", True, 2, 1)
    assert spec.command[:2] == ("python3", "train_digits_state.py") and spec.checkpoint_every == "30s"
    assert spec.store == "file:///shared/runs/digits_evaluate/manual__2026-01-01T00-00-00-00-00/checkpoints"
    for name in ("train_digits.py", "train_digits_state.py"):
        assert spec.files[name].rstrip() == (DAGS / "scripts" / name).read_text().rstrip(), "templates leave it alone"


def test_the_pods_may_write_where_the_run_is(example: ModuleType, shared: Path) -> None:
    assert run_task(example, "prepare", "runs/a") == "/shared/runs/a"
    for place in ("runs/a", "runs/a/checkpoints"):
        assert (shared / place).stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize("again", [False, True], ids=["first try", "a retry"])
def test_what_was_exported_is_evaluated_and_registered(
    example: ModuleType, shared: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    asked: list[Any] = []

    def export(self: Any, job: str, output: str, format: str, only: str) -> Exported:
        asked.append((self._namespace, job, output, format, only))
        here = shared / Path(output).relative_to("/shared")
        assert not here.exists(), "an export takes a new path"
        write_safetensors(here, weights())
        return Exported("train-1-a1-g4", 270, format, output, 8, ())

    monkeypatch.setattr(example.JobVerbs, "export", export)
    monkeypatch.setattr(example, "get_current_context", lambda: {"params": {"min_accuracy": 0.0}})
    run_task(example, "prepare", "run")
    if again:
        (shared / "run/evaluated.safetensors").write_bytes(b"half")
    model = run_task(example, "evaluate", "run", CHECKPOINT)
    assert asked == [("team", "train-1", "/shared/run/evaluated.safetensors", "safetensors", "models")]
    assert (model["checkpoint"], model["step"]) == ("train-1-a1-g4", 270) and 0 <= model["accuracy"] < 0.9
    card = Path(run_task(example, "register", model))
    assert json.loads(card.read_text()) == model and card.parent.name == "train-1-a1-g4"
    assert (card.parent / "model.safetensors").read_bytes() == (shared / "run/evaluated.safetensors").read_bytes()
    monkeypatch.setattr(example, "get_current_context", lambda: {"params": {"min_accuracy": 1.0}})
    with pytest.raises(ValueError, match="is below min_accuracy"):
        run_task(example, "evaluate", "run", CHECKPOINT)


def test_another_type_of_number_is_named(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "half", {"w": np.ones(2, np.float16)}, "F16")
    with pytest.raises(ValueError, match="w is of type F16"):
        digits.read_safetensors(tmp_path / "half")


@pytest.mark.criu  # root and the torch environment
def test_the_script_trains_a_network_that_its_export_shows(example: ModuleType, shared: Path) -> None:
    if Nursery.reason():
        pytest.skip(Nursery.reason())
    run_task(example, "prepare", "run")
    nursery = Nursery.of_environment(shared, [DAGS / "scripts"])
    try:
        python, state = nursery.python(), shared / "state"
        script = [python, DAGS / "scripts/train_digits_state.py", "--data", shared / "run/digits.npz", "--width", "8"]
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
        train = ["env", f"SINGULARITY_TRAIN_DIR={state}", *script, "--steps", "80"]
        subprocess.run(["sh", "-c", 'exec "$@"', "sh", *train], check=True, timeout=300, env=env)
        output = shared / "run/model.safetensors"
        export = [python, "-m", "singularity_train.export", state, "--format", "safetensors", "--only", "models"]
        subprocess.run([*export, "--output", output], check=True, timeout=300, env=env)
    finally:
        nursery.close()
    tensors = digits.read_safetensors(output)
    assert digits.accuracy_of("run", {name.removeprefix("main."): each for name, each in tensors.items()}) > 0.8
