"""Programs that the barrier must handle: unmodified scripts, real gloo ranks, one row each; docs/programs.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pod_harness import Pod
from program_runs import Program, Runner

pytestmark = [pytest.mark.criu, pytest.mark.timeout(400)]

ROWS = {
    "HSDP on a 2x2 mesh": Program("hsdp.py", ("20",), 5, ranks=4),
    "tensor parallel": Program("tensor_parallel.py", ("40",), 10),
    "pipeline": Program("pipeline.py", ("25",), 5, ranks=3),
    "evaluation with collectives": Program("eval_loop.py", ("2",), 3),
    "Join": Program("join.py", ("30",), 5),
    "LBFGS": Program("lbfgs.py", ("20",), 3),
    "gradient scaler": Program("grad_scaler.py", ("100",), 10),
    "compiled, eager backend": Program("compiled.py", ("60", "aot_eager"), 5),
    "no optimizer": Program("no_optimizer.py", ("150",), 10, ranks=4),
    "evaluation without collectives": Program("long_eval.py", ("200",), 5),
    "debug level DETAIL": Program("backends.py", ("40", "gloo"), 5, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "backend per device": Program("backends.py", ("60", "cpu:gloo,cuda:gloo"), 5),
    "loader that is ahead": Program("loader.py", ("60",), 15),
    "threads": Program("threads.py", ("80",), 10),
}
QUICK = ["pipeline", "Join", "no optimizer"]


def rows() -> list[object]:
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full], id=name) for name in ROWS]


@pytest.mark.parametrize("row", rows())
def test_stopped_and_restored_it_ends_as_if_nothing_had_happened(
    row: str, make_pod: Callable[..., Pod], rootfs: Path, torch_env: Path, criu_bundle: Path
) -> None:
    Runner(partial(make_pod, rootfs=rootfs, torch=torch_env, criu=criu_bundle), ROWS[row]).compare()
