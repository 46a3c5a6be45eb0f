"""The agent in older torches than test_programs has: what each can save, and the sentence where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pod_harness import Pod
from program_runs import Runner
from test_programs import ROWS

from localcluster.config import cache_dir
from localcluster.images.rootfs import OLDER_TORCH, OLDEST_DISTRIBUTED_TORCH, torch
from singularity_proxy.protocol import names, page

pytestmark = [pytest.mark.criu, pytest.mark.full, pytest.mark.timeout(1800)]
Make = Callable[..., Pod]


def folder(version: str) -> Path:
    """With that torch, 5 GB, made once."""
    return torch(cache_dir(), print, (f"torch=={version}", "numpy"))


@pytest.fixture(scope="module", params=OLDER_TORCH)
def older(request: pytest.FixtureRequest, rootfs: Path) -> tuple[str, Path]:
    return request.param, folder(request.param)


@pytest.mark.parametrize("row", ["FSDP2, sub-groups, works in flight", "no_sync"])
def test_ranks_of_the_oldest_that_can_are_moved(row: str, make_pod: Make, rootfs: Path, criu_bundle: Path) -> None:
    made = folder(OLDEST_DISTRIBUTED_TORCH)
    Runner(partial(make_pod, rootfs=rootfs, torch=made, criu=criu_bundle), ROWS[row]).compare()


def test_a_job_of_one_rank_is_moved(older: tuple[str, Path], make_pod: Make, rootfs: Path, criu_bundle: Path) -> None:
    """Whatever the rank starts, two processes that meet over gloo here, is saved as it stands."""
    Runner(partial(make_pod, rootfs=rootfs, torch=older[1], criu=criu_bundle), ROWS["mp.spawn"]).compare()


def test_ranks_that_cannot_be_saved_train_and_say_so(
    older: tuple[str, Path], make_pod: Make, rootfs: Path, criu_bundle: Path
) -> None:
    version, made = older
    program = replace(ROWS["no_sync"], arguments=("200",))
    runner = Runner(partial(make_pod, rootfs=rootfs, torch=made, criu=criu_bundle), program)
    pod = runner.start("pod")
    runner.wait_lines(pod, 1)
    generation = page.generation(1, 1)
    pod.sidecar.command("dump", generation=generation, checkpoint_id="c", anywhere=True)
    event = pod.wait_event("dumped", "dump_failed")
    pod.sidecar.command("resume", generation=generation)
    assert event.kind == "dump_failed" and f"its torch is {version}" in event.message, event.message
    assert "Use torch 2.14 or newer" in event.message
    assert pod.wait(200) == 0, pod.log()
    said = "takes no part in checkpoints, and its job cannot be saved: its torch is"
    assert pod.log().count(said) == 2 and version in pod.log(), pod.log()
    assert "Use torch 2.14 or newer" in pod.log()


def test_the_versions_here_are_those_of_the_protocol() -> None:
    assert tuple(map(int, OLDER_TORCH[0].split(".")[:2])) == names.OLDEST_TORCH
    assert tuple(map(int, OLDEST_DISTRIBUTED_TORCH.split(".")[:2])) == names.OLDEST_DISTRIBUTED
