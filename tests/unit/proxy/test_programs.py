"""Programs that the barrier must handle: unmodified scripts, real gloo ranks, one row each; docs/programs.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pod_harness import Pod
from pod_moves import free_port
from program_runs import Program, Runner, needs_torch

from localcluster.config import cache_dir
from localcluster.images.rootfs import PACKAGES, debian
from singularity_proxy.protocol import messages, page

pytestmark = pytest.mark.criu

ROWS = {
    "FSDP2, sub-groups, works in flight": Program("fsdp.py", ("30",), 5, ranks=4, since=(2, 8)),
    "HSDP on a 2x2 mesh": Program("hsdp.py", ("20",), 5, ranks=4, since=(2, 8)),
    "tensor parallel": Program("tensor_parallel.py", ("40",), 10),
    "groups that come and go": Program("destroyed_groups.py", ("60",), 20),
    "pipeline": Program("pipeline.py", ("25",), 5, ranks=3),
    "evaluation with collectives": Program("eval_loop.py", ("2",), 3),
    "Join": Program("join.py", ("30",), 5),
    "no_sync": Program("no_sync.py", ("8",), 12),
    "GAN": Program("gan.py", ("40",), 10),
    "LBFGS": Program("lbfgs.py", ("20",), 3),
    "gradient scaler": Program("grad_scaler.py", ("100",), 10),
    "compiled, eager backend": Program("compiled.py", ("60", "aot_eager"), 5),
    "no optimizer": Program("no_optimizer.py", ("150",), 10, ranks=4),
    "evaluation without collectives": Program("long_eval.py", ("200",), 5),
    "debug level DETAIL": Program("backends.py", ("40", "gloo"), 5, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "backend per device": Program("backends.py", ("60", "cpu:gloo,cuda:gloo"), 5),
    "loader that is ahead": Program("loader.py", ("60",), 15),
    "threads": Program("threads.py", ("80",), 10),
    "child processes": Program("children.py", ("80",), 10),
    "async_save": Program("async_save.py", ("60", "2", "/var/tmp"), 10, since=(2, 8)),
    "collectives in a thread": Program("beside.py", ("60",), 10, ranks=3),
    "mp.spawn": Program("spawned.py", ("120", "2"), 10, ranks=1, anywhere=True),
}
QUICK = ["pipeline", "no optimizer"]
"""Stopped at a step boundary, and at a collective, send or receive; at a second optimizer's in `test_agent_torch`."""


Make = Callable[..., Pod]


@pytest.fixture
def make(make_pod: Make, rootfs: Path, torch_env: Path, criu_bundle: Path) -> Make:
    return partial(make_pod, rootfs=rootfs, torch=torch_env, criu=criu_bundle)


def rows() -> list[object]:
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full], id=name) for name in ROWS]


@pytest.mark.parametrize("row", rows())
def test_stopped_and_restored_it_ends_as_if_nothing_had_happened(row: str, make: Make, torch_env: Path) -> None:
    needs_torch(torch_env, ROWS[row].since)
    Runner(make, ROWS[row]).compare()


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_what_torch_compile_has_compiled_travels(make_pod: Make, torch_env: Path, criu_bundle: Path) -> None:
    """Inductor loads machine code from below TMPDIR, and keeps processes that compile; in an image with a compiler."""
    compiler = debian(cache_dir(), print, packages=(*PACKAGES, "g++", "python3-dev"))
    make = partial(make_pod, rootfs=compiler, torch=torch_env, criu=criu_bundle)
    Runner(make, Program("compiled.py", ("60", "inductor"), 5)).compare()


@pytest.mark.full
def test_a_torchrun_command_gives_what_torchrun_itself_gives(make: Make) -> None:
    """Compared with torchrun, which starts both ranks in one slot when it is hidden from the launcher in a shell."""
    steps, told = "40", ("--nproc-per-node", "2", "--rdzv-id", "seven", "--role", "trainer")
    port = str(free_port())
    words = ["python3", "-m", "torch.distributed.run", *told, "--master-addr", "127.0.0.1", "--master-port", port]
    hidden = Runner(make, Program("under_torchrun.py", (steps, "together"), 10, ranks=1))
    plan = messages.Plan("fresh", 1, 1, [0], "127.0.0.1", free_port())
    shell = ["sh", "-c", "\t".join([*words, "under_torchrun.py", steps, "together"])]
    real = hidden.pod("torchrun", plan, shell).start()
    assert real.wait() == 0, real.log()
    wanted = [(real.work(0) / f"cwd/losses-{rank}").read_text().splitlines() for rank in (0, 1)]
    assert all(lines[0] == lines[-5] and "'seven'" in lines[0] and len(lines) == 40 + 6 for lines in wanted)

    runner = Runner(make, Program("under_torchrun.py", (steps, "alone"), 10, starter=("torchrun", *told)))
    pod = runner.start("old")
    runner.wait_lines(pod, runner.program.stop_at)
    generation = page.generation(1, 1)
    runner.stop(pod, generation)
    assert len(runner.losses(pod)[0]) < 41, "stopped after its end: nothing was tested"
    new = runner.restore("new", pod, generation)
    assert new.wait() == 0, new.log()
    assert runner.losses(new) == wanted


@pytest.mark.full
def test_a_world_of_ranks_that_the_script_starts_in_several_slots_is_not_saved_and_goes_on(make: Make) -> None:
    """mp.spawn in a job of two ranks: two processes each make a world of four. Stopped halfway, it would break."""
    program = Program("spawned.py", ("800", "2"), 10, anywhere=True)
    runner = Runner(make, program)
    pod = runner.start("pod")
    runner.wait_lines(pod, program.stop_at)
    for text in ("it meets a world of 4 ranks, the job has 2", "one rank that starts them all"):
        assert pod.log().count(text) == 4, pod.log()
    generation = page.generation(1, 1)
    pod.sidecar.command("dump", generation=generation, checkpoint_id="c", anywhere=True)
    event = pod.wait_event("dumped", "dump_failed")
    assert event.kind == "dump_failed" and "sockets tie ranks to this pod or to each other: rank 0: " in event.message
    assert not pod.image("c", 0).exists(), "refused before anything was dumped"
    at = len(runner.losses(pod)[0])
    pod.sidecar.command("resume", generation=generation)
    runner.wait_lines(pod, at + 5)
    assert pod.wait() == 0, pod.log()
