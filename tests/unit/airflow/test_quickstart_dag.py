"""The quickstart DAG parses in Airflow, its tasks work on real data, and its scripts know nothing of this project."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import digits
import numpy as np
import pytest
from module_files import loaded

DAGS = Path(__file__).parents[3] / "dags"


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    return loaded(DAGS / "quickstart.py")


def test_the_dag_parses_and_has_the_three_tasks_in_order(quickstart: ModuleType) -> None:
    dag = quickstart.dag
    dag.validate()
    assert dag.task_dict["prepare"].downstream_task_ids == {"train"}
    assert dag.task_dict["train"].downstream_task_ids == {"evaluate"}
    assert dag.task_dict["train"].task_type == "SingularityTrainOperator"


def test_the_dag_can_be_serialised_for_the_scheduler(quickstart: ModuleType) -> None:
    from airflow_versions import DagSerialization

    data = DagSerialization.to_dict(quickstart.dag)
    again = DagSerialization.from_dict(data)
    assert set(again.task_dict) == {"prepare", "train", "evaluate"}


def test_rendered_parameters_make_a_valid_spec(quickstart: ModuleType) -> None:
    from airflow_provider.identity import Claim, TaskKey, Try, job_name
    from airflow_provider.submission import build_spec
    from kueue_integration.spec.validate import validate

    train = quickstart.dag.task_dict["train"].prepare_for_execution()
    params = quickstart.dag.params.dump()
    train.render_template_fields(
        {"params": params, "run_id": "manual__2026-01-01T00:00:00+00:00", "dag": quickstart.dag}
    )
    key = TaskKey("quickstart", "r", "train")
    claim = Claim(key, 0, Try(1, 0, 0), train.namespace, job_name(train.name, key, 0))
    spec = build_spec(train, claim, quickstart.dag.fileloc)
    validate(spec)
    assert (spec.queue, spec.workers, spec.min_workers, spec.ranks, spec.priority_class) == ("training", 4, 2, 4, "low")
    assert spec.command[:2] == ("python3", "train_digits.py")
    assert spec.command[spec.command.index("--steps") + 1] == "900"
    assert ":" not in spec.command[spec.command.index("--output") + 1]
    assert spec.files["train_digits.py"] == (DAGS / "scripts" / "train_digits.py").read_text()


def run_task(quickstart: ModuleType, name: str, *args: Any) -> Any:
    return quickstart.dag.task_dict[name].python_callable(*args)


def test_prepare_writes_the_digits_once_and_alike(
    quickstart: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINGULARITY_SHARED_DIR", str(tmp_path))
    assert run_task(quickstart, "prepare", "runs/a") == "/shared/runs/a"
    run_task(quickstart, "prepare", "runs/b")
    first, second = ((tmp_path / "runs" / run / "digits.npz").read_bytes() for run in "ab")
    assert first == second
    with np.load(tmp_path / "runs/a/digits.npz") as data:
        assert data["x_train"].shape == (1438, 8, 8) and data["x_train"].dtype == np.float32
        assert len(data["x_test"]) == len(data["y_test"]) == 359
        assert set(data["y_train"]) == set(range(10))
    assert [path.name for path in (tmp_path / "runs/a").iterdir()] == ["digits.npz"]


def test_a_missing_shared_directory_is_named(quickstart: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SINGULARITY_SHARED_DIR", raising=False)
    monkeypatch.setattr(digits.Variable, "get", lambda *args, **kwargs: None)
    with pytest.raises(ValueError, match="SINGULARITY_SHARED_DIR is not set"):
        digits.shared_dir()


def weights(width: int = 2, seed: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {
        "conv1.weight": (width, 1, 3, 3), "conv1.bias": (width,), "conv2.weight": (2 * width, width, 3, 3),
        "conv2.bias": (2 * width,), "fc1.weight": (128, 32 * width), "fc1.bias": (128,), "fc2.weight": (10, 128),
        "fc2.bias": (10,),
    }  # fmt: skip
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def test_predict_agrees_with_the_network_written_out_by_hand(quickstart: ModuleType) -> None:
    w, images = weights(), np.random.default_rng(1).random((5, 8, 8))

    def slow(image: Any) -> int:
        planes = [image]
        for name in ("conv1", "conv2"):
            kernel, bias = w[f"{name}.weight"], w[f"{name}.bias"]
            padded = [np.pad(plane, 1) for plane in planes]
            planes = [
                np.array(
                    [
                        [
                            max(0.0, bias[o] + sum((padded[c][y : y + 3, x : x + 3] * kernel[o, c]).sum()
                                                   for c in range(len(padded))))
                            for x in range(8)
                        ]
                        for y in range(8)
                    ]
                )
                for o in range(len(bias))
            ]  # fmt: skip
        pooled = [p[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].max() for p in planes for y in range(4) for x in range(4)]
        hidden = np.maximum(w["fc1.weight"] @ np.array(pooled) + w["fc1.bias"], 0)
        return int((w["fc2.weight"] @ hidden + w["fc2.bias"]).argmax())

    assert list(digits.predict(w, images)) == [slow(image) for image in images]


@pytest.mark.parametrize(("threshold", "passes"), [(0.0, True), (1.0, False)])
def test_evaluate_holds_the_weights_to_the_threshold(
    quickstart: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: float, passes: bool
) -> None:
    monkeypatch.setenv("SINGULARITY_SHARED_DIR", str(tmp_path))
    monkeypatch.setattr(quickstart, "get_current_context", lambda: {"params": {"min_accuracy": threshold}})
    run_task(quickstart, "prepare", "run")
    (tmp_path / "run" / "output").mkdir()
    np.savez(tmp_path / "run" / "output" / "weights.npz", **weights())
    if passes:
        assert 0.0 <= run_task(quickstart, "evaluate", "run") < 0.9
    else:
        with pytest.raises(ValueError, match="is below min_accuracy"):
            run_task(quickstart, "evaluate", "run")


@pytest.mark.parametrize("script", ["train_digits.py", "no_boundary.py"])
def test_the_scripts_import_nothing_of_this_project(script: str) -> None:
    roots = set()
    for node in ast.walk(ast.parse((DAGS / "scripts" / script).read_text())):
        if isinstance(node, ast.Import):
            roots |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").split(".")[0])
    allowed = {"__future__", "argparse", "ctypes", "hashlib", "math", "os", "pathlib", "shutil", "time"}
    allowed |= {"numpy", "torch"}
    assert roots and roots <= allowed


def test_no_boundary_runs_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, str(DAGS / "scripts" / "no_boundary.py"), "--seconds", "1"],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["second 1 of 1, no step boundary", "done"]


def test_the_sweep_parses_and_maps_over_the_rates() -> None:
    from airflow_versions import DagSerialization

    module = loaded(DAGS / "sweep.py")
    module.dag.validate()
    again = DagSerialization.from_dict(DagSerialization.to_dict(module.dag))
    assert again.task_dict["fit"].is_mapped
    assert again.task_dict["fit"].downstream_task_ids == {"best"}
