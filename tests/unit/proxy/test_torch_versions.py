"""The agent in older torches than test_programs has, down to the oldest whose ranks can let go of each other."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pod_harness import Pod
from program_runs import ENV, LOSSES, PROGRAMS, Program, Runner
from rank_world import Ranks
from test_programs import ROWS
from waits import until

from localcluster.cache import made_once
from localcluster.config import cache_dir
from localcluster.images.rootfs import OLDER_TORCH, torch
from localcluster.shell import run_logged
from singularity_proxy.protocol import names, page

pytestmark = [pytest.mark.criu, pytest.mark.full, pytest.mark.timeout(1800)]
Make = Callable[..., Pod]


def folder(version: str) -> Path:
    """With that torch, 5 GB, made once."""
    return torch(cache_dir(), print, (f"torch=={version}", "numpy"))


@pytest.fixture(scope="module", params=OLDER_TORCH)
def older(request: pytest.FixtureRequest, rootfs: Path) -> tuple[str, Path]:
    return request.param, folder(request.param)


@pytest.mark.parametrize("row", ["FSDP2, sub-groups, works in flight", "tensor parallel", "no_sync"])
def test_ranks_are_moved(row: str, older: tuple[str, Path], make_pod: Make, rootfs: Path, criu_bundle: Path) -> None:
    Runner(partial(make_pod, rootfs=rootfs, torch=older[1], criu=criu_bundle), ROWS[row]).compare()


def test_a_job_of_one_rank_is_moved(older: tuple[str, Path], make_pod: Make, rootfs: Path, criu_bundle: Path) -> None:
    """Whatever the rank starts, two processes that meet over gloo here, is saved as it stands."""
    Runner(partial(make_pod, rootfs=rootfs, torch=older[1], criu=criu_bundle), ROWS["mp.spawn"]).compare()


# --- the oldest, which has no wheels for the suite's Python -----------------------------------------------------------
OLDEST = ".".join(map(str, names.OLDEST_TORCH))
"""Its ranks go as far as they go without CRIU: their communication is dropped, and made again."""


@pytest.fixture(scope="module")
def oldest() -> Path:
    """With the oldest torch, for this interpreter, 6 GB, made once."""
    if sys.version_info >= (3, 14):
        pytest.skip(f"torch {OLDEST} has no wheels for Python {sys.version_info[0]}.{sys.version_info[1]}")
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"

    def make(draft: Path) -> None:
        uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--target", str(draft)]
        run_logged([*uv, f"torch=={OLDEST}.0", "numpy"], cache_dir() / "logs" / "torch.log", timeout=3600)

    return made_once(cache_dir() / "torch" / f"{python}-{OLDEST}", make, what=f"torch {OLDEST}", progress=print)


@pytest.mark.parametrize(
    "row",
    [
        "FSDP2, sub-groups, works in flight", "HSDP on a 2x2 mesh", "tensor parallel", "pipeline", "Join", "threads",
        "debug level DETAIL", "backend per device", "groups that come and go", "collectives in a thread",
        "no optimizer",
    ],
)  # fmt: skip
def test_ranks_of_the_oldest_let_go_of_each_other(row: str, oldest: Path, tmp_path: Path) -> None:
    program = ROWS[row]
    expected = _trained(program, oldest, tmp_path / "alone", stops=0)
    assert _trained(program, oldest, tmp_path / "stopped", stops=3) == expected


def _trained(program: Program, torch: Path, folder: Path, stops: int) -> list[str]:
    """What each rank writes to its file of losses."""
    folder.mkdir()
    shutil.copy(PROGRAMS / program.script, folder)
    env = {**ENV, **program.env, "TMPDIR": str(folder), "PYTHONPATH": f"{folder}/lib:{torch}"}
    ranks = Ranks(folder, [str(folder / program.script), *program.arguments], program.ranks, env)
    losses = [ranks.cwd(rank) / LOSSES for rank in range(program.ranks)]
    try:
        for number in range(1, stops + 1):
            _wait_lines(ranks, losses[0], number * program.stop_at)
            generation = page.generation(1, number)
            assert [report["sockets"] for report in ranks.stop(generation, 0)] == [[]] * program.ranks
            ranks.go_on(generation)
        ranks.wait(300)
    finally:
        ranks.close()
    return [path.read_text() if path.exists() else "" for path in losses]


def _wait_lines(ranks: Ranks, path: Path, lines: int) -> None:
    there = lambda: path.exists() and path.read_text().count("\n") >= lines  # noqa: E731
    until(there, f"{lines} lines", alive=ranks.alive, progress=ranks.cpu_s, detail=ranks.log)
