"""Trials with real CRIU: a dump that nobody keeps says what a checkpoint would, and costs a rank nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pod_harness import Pod
from pod_moves import dump_anywhere, until
from streamed_pod import HELD, MIB, Start, count, goes_on, moves, ready, uploading

from singularity_proxy.protocol import image_room
from singularity_proxy.protocol.messages import Plan
from singularity_proxy.store import Store

pytestmark = pytest.mark.criu
Make = Callable[..., Pod]
TRACED = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
while not child:
    time.sleep(0.01)
assert libc.ptrace(0x4206, child, 0, 0) == 0, os.strerror(ctypes.get_errno())
n = 0
while not os.path.exists("end"):
    n += 1
    with open("n.new", "w") as out:
        out.write(str(n))
    os.rename("n.new", "n")
    time.sleep(0.005)
os.kill(child, 9)
with open("same", "w") as out:
    out.write("True")
"""
"""PTRACE_SEIZE: CRIU would have to be the tracer."""


def test_a_rank_that_can_be_saved_passes_keeps_no_image_and_goes_on(start_holder: Start, tmp_path: Path) -> None:
    """On a disk of 4 MiB: the 48 MiB of the rank go nowhere. A checkpoint after it works as ever."""
    pod = ready(start_holder("pod", disk=4))
    event = dump_anywhere(pod, 5, trial=True)
    assert (event.kind, event.late) == ("dumped", False), event.message
    images = pod.volumes / "images"
    assert image_room.used(images) < MIB // 4 and list(images.rglob("*.img")) == []
    pod.sidecar.command("resume", generation=5)
    at = count(pod)
    until(lambda: count(pod) > at + 20, "it goes on", pod)
    with uploading(pod, Store(f"file://{tmp_path}/store")) as put:
        assert dump_anywhere(pod, 6, stream=True).kind == "dumped"
    assert put.result(120).bytes > HELD * MIB
    pod.sidecar.command("resume", generation=6)
    goes_on(pod)


def test_a_rank_that_cannot_be_saved_fails_with_what_a_checkpoint_says_and_goes_on(
    make_pod: Make, rootfs: Path, criu_bundle: Path
) -> None:
    plan = Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
    pod = make_pod("pod", rootfs=rootfs, torch=None, plan=plan, command=["python3", "traced.py"], criu=criu_bundle)
    (pod.volumes / "source/traced.py").write_text(TRACED)
    ready(pod.start())
    tried = dump_anywhere(pod, 5, trial=True)
    assert tried.kind == "dump_failed" and not tried.late and "rank 0: " in tried.message
    pod.sidecar.command("resume", generation=5)
    at = count(pod)
    until(lambda: count(pod) > at + 20, "it goes on", pod)
    real = dump_anywhere(pod, 6)
    assert real.kind == "dump_failed"
    assert _reason(real.message) == _reason(tried.message), "a trial that says something else is none"
    pod.sidecar.command("resume", generation=6)
    goes_on(pod)


def _reason(message: str) -> str:
    """Without the times of CRIU's log."""
    return re.sub(r"\(\d+\.\d+\)", "", message)


def test_a_trial_gives_way_to_a_checkpoint_of_the_same_stop(start_holder: Start, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    pod = ready(start_holder("pod"))
    pod.wait_event("started")
    pod.sidecar.command("dump", generation=5, checkpoint_id="c", remaining_s=60, anywhere=True, trial=True, dump="a")
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True, dump="b")
    assert (event.kind, event.dump) == ("dumped", "b"), event.message
    assert "the trial gives way to a checkpoint" in pod.log()
    moves(start_holder, pod, store, put.result(120))


def test_a_trial_gives_way_to_ranks_that_have_to_go_on(start_holder: Start) -> None:
    """A pod of the job was lost meanwhile, say."""
    pod = ready(start_holder("pod"))
    pod.wait_event("started")
    pod.sidecar.command("dump", generation=5, checkpoint_id="c", remaining_s=60, anywhere=True, trial=True, dump="a")
    pod.sidecar.command("resume", generation=5)
    event = pod.wait_event("dump_failed")
    assert "the trial gives way" in event.message
    goes_on(pod)


def test_a_checkpoint_of_the_same_stop_is_made_after_a_trial_has_passed(start_holder: Start, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    pod = ready(start_holder("pod"))
    assert dump_anywhere(pod, 5, trial=True, dump="a").dump == "a"
    with uploading(pod, store) as put:
        event = dump_anywhere(pod, 5, stream=True, dump="b")
    assert (event.kind, event.dump) == ("dumped", "b"), event.message
    moves(start_holder, pod, store, put.result(120))


def test_what_the_ranks_hold_is_told(start_holder: Start) -> None:
    pod = ready(start_holder("pod"))
    pod.wait_event("started")
    pod.sidecar.command("weigh")
    weight = pod.wait_event("weighed").weight
    assert weight is not None and HELD * MIB < weight.memory < 4 * HELD * MIB


def test_a_trial_ends_at_its_deadline_and_costs_nothing(start_holder: Start) -> None:
    pod = ready(start_holder("pod"))
    event = dump_anywhere(pod, 5, trial=True, remaining_s=0.01)
    assert (event.kind, event.late) == ("dump_failed", True), event
    pod.sidecar.command("resume", generation=5)
    goes_on(pod)
