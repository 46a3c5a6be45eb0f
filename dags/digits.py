"""What the example Dags share: handwritten digits to train on, and how good a trained network is. No Dag in here.

Where things are: every node of the cluster mounts one shared directory at POD_SHARED. On the machine that runs Airflow,
it is SINGULARITY_SHARED_DIR (environment) or the Airflow Variable `singularity_shared_dir`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import Variable

POD_SHARED = os.environ.get("SINGULARITY_POD_SHARED_DIR", "/shared")
RUN_FOLDER = "runs/{{ dag.dag_id }}/{{ run_id | replace(':', '-') | replace('+', '-') }}"
"""`run_folder` of the Dag run, for templated fields."""


def run_folder(dag_id: str, run_id: str) -> str:
    """Folder of a Dag run, below the shared directory."""
    return f"runs/{dag_id}/{run_id.replace(':', '-').replace('+', '-')}"


def shared_dir() -> Path:
    """The shared directory as this machine sees it."""
    path = os.environ.get("SINGULARITY_SHARED_DIR") or Variable.get("singularity_shared_dir", default=None)
    if not path:
        raise ValueError(
            "SINGULARITY_SHARED_DIR is not set: give the directory that the cluster's nodes mount at "
            f"{POD_SHARED} (environment, or Airflow Variable singularity_shared_dir)"
        )
    return Path(path)


def write_digits(folder: str) -> str:
    """Write scikit-learn's handwritten digits as `folder`/digits.npz; returns the folder's path in the pods."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    held_out, rest = order[: len(order) // 5], order[len(order) // 5 :]
    target = shared_dir() / folder
    target.mkdir(parents=True, exist_ok=True)
    partial = target / "digits.partial.npz"
    np.savez(partial, x_train=images[rest], y_train=labels[rest], x_test=images[held_out], y_test=labels[held_out])
    partial.replace(target / "digits.npz")
    print(f"{len(rest)} images to train on, {len(held_out)} held out, in {target}")
    return f"{POD_SHARED}/{folder}"


def accuracy(folder: str) -> float:
    """Share of the held-out images that the weights in `folder`/output get right, computed with numpy alone."""
    import numpy as np

    with np.load(shared_dir() / folder / "output" / "weights.npz") as weights:
        return accuracy_of(folder, dict(weights))


def accuracy_of(folder: str, weights: dict[str, Any]) -> float:
    """The same of weights that are at hand, by name."""
    import numpy as np

    with np.load(shared_dir() / folder / "digits.npz") as data:
        images, labels = data["x_test"], data["y_test"]
    found = float((predict(weights, images) == labels).mean())
    print(f"accuracy on {len(labels)} held-out images: {found:.4f}")
    return found


def read_safetensors(path: Path) -> dict[str, Any]:
    """Arrays of float32 by name: a length, a JSON header, the bytes (https://github.com/huggingface/safetensors#format)."""
    import numpy as np

    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is of type {entry['dtype']}, and only F32 is read here")
        first, last = entry["data_offsets"]
        found[name] = np.frombuffer(data[begin + first : begin + last], np.float32).reshape(entry["shape"])
    return found


def predict(weights: dict[str, Any], images: Any) -> Any:
    """Digits that the network of `scripts/train_digits.py` sees in `images` (n x 8 x 8)."""
    import numpy as np

    def convolve(x: Any, name: str) -> Any:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        sums = np.einsum("nchwij,ocij->nohw", windows, weights[f"{name}.weight"], optimize=True)
        return np.maximum(sums + weights[f"{name}.bias"][:, None, None], 0.0)

    x = convolve(convolve(images[:, None].astype(np.float64), "conv1"), "conv2")
    count, channels, height, width = x.shape
    x = x.reshape(count, channels, height // 2, 2, width // 2, 2).max(axis=(3, 5)).reshape(count, -1)
    x = np.maximum(x @ weights["fc1.weight"].T + weights["fc1.bias"], 0.0)
    return (x @ weights["fc2.weight"].T + weights["fc2.bias"]).argmax(axis=1)
