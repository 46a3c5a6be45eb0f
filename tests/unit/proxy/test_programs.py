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
    "HSDP on a 2x2 mesh": Program("hsdp.py", ("60",), 10, ranks=4),
    "tensor parallel": Program("tensor_parallel.py", ("300",), 20),
    "pipeline": Program("pipeline.py", ("120",), 10, ranks=3),
    "evaluation with collectives": Program("eval_loop.py", ("12",), 4),
    "Join": Program("join.py", ("60",), 20),
    "LBFGS": Program("lbfgs.py", ("60",), 5),
    "gradient scaler": Program("grad_scaler.py", ("300",), 30),
    "compiled, eager backend": Program("compiled.py", ("200", "aot_eager"), 20),
    "no optimizer": Program("no_optimizer.py", ("2500",), 100, ranks=4),
    "evaluation without collectives": Program("long_eval.py", ("150",), 5),
    "debug level DETAIL": Program("backends.py", ("200", "gloo"), 20, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "backend per device": Program("backends.py", ("300", "cpu:gloo,cuda:nccl"), 20),
}
QUICK = ["HSDP on a 2x2 mesh", "pipeline", "Join", "no optimizer"]


def rows() -> list[object]:
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full], id=name) for name in ROWS]


@pytest.mark.parametrize("row", rows())
def test_stopped_and_restored_it_ends_as_if_nothing_had_happened(
    row: str, make_pod: Callable[..., Pod], rootfs: Path, torch_env: Path, criu_bundle: Path
) -> None:
    Runner(partial(make_pod, rootfs=rootfs, torch=torch_env, criu=criu_bundle), ROWS[row]).compare()
