"""A function on its way to the ranks and its value on the way back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider import taskflow
from kueue_integration.errors import SpecError

SOURCE = '''
    def fit(rate, *, layers=(1,), name="{x}"):
        print("loss 0.5")
        return {"rate": rate, "layers": layers, "name": name, "rank": __import__("os").environ["RANK"]}
'''


def run(folder: Path, files: dict[str, str], rank: int = 0) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    env = {**os.environ, "RANK": str(rank)}
    return subprocess.run(
        [sys.executable, taskflow.SCRIPT], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )


def test_arguments_and_value_make_the_round_trip(tmp_path: Path) -> None:
    done = run(tmp_path, taskflow.files("fit", SOURCE, [0.1], {"layers": [2, 3]}))
    assert done.returncode == 0, done.stderr
    value = taskflow.returned(f"[rank 0] {line}" for line in done.stdout.splitlines())
    assert value == {"rate": 0.1, "layers": [2, 3], "name": "{x}", "rank": "0"}


def test_only_rank_0_returns(tmp_path: Path) -> None:
    done = run(tmp_path, taskflow.files("fit", SOURCE, [0.1], {}), rank=1)
    assert done.stdout == "loss 0.5\n"
    with pytest.raises(LookupError, match="printed no return value"):
        taskflow.returned(done.stdout.splitlines())


def test_a_long_value_comes_in_pieces_and_a_lost_piece_is_noticed(tmp_path: Path) -> None:
    done = run(tmp_path, taskflow.files("fit", "def fit(n):\n    return 'x' * n", [20_000], {}))
    lines = done.stdout.splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) < taskflow.PIECE + 100
    assert taskflow.returned(lines) == "x" * 20_000
    with pytest.raises(LookupError, match="piece 3 of"):
        taskflow.returned(lines[:2] + lines[3:])


def test_a_value_that_is_too_long_fails_with_a_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, taskflow.files("fit", "def fit(n):\n    return 'x' * n", [taskflow.MAX_RETURN_BYTES], {}))
    assert done.returncode != 0
    assert "write it to a file and return its path" in done.stderr


def test_the_value_of_the_last_attempt_counts() -> None:
    assert taskflow.returned([f"{taskflow.MARKER} 1/1 MQ==", f"{taskflow.MARKER} 1/1 Mg=="]) == 2


@pytest.mark.parametrize(
    ("args", "kwargs", "field"), [([object()], {}, "op_args[0]"), ([], {"model": {1, 2}}, "model")]
)
def test_what_is_not_json_is_named(args: list[Any], kwargs: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        taskflow.files("fit", SOURCE, args, kwargs)
    assert caught.value.problems[0][0] == field
