"""Engine `both`: a checkpoint has the processes and their state; real launchers go on from the one or the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pod_harness import Pod
from pod_moves import dump_anywhere, end, free_port, fresh, restored, stop_and_dump, until
from program_runs import PROGRAMS

from singularity_proxy.protocol import names, page
from singularity_proxy.protocol.messages import Plan

pytestmark = pytest.mark.criu
STEPS = 60
Make = Callable[..., Pod]


@pytest.fixture(scope="module")
def shape(rootfs: Path, criu_bundle: Path, torch_env: Path) -> dict[str, Any]:
    return {"rootfs": rootfs, "torch": torch_env, "criu": criu_bundle}


def filled(made: Pod) -> Pod:
    (made.volumes / "source/state_loop.py").write_text((PROGRAMS / "state_loop.py").read_text())
    return made


@pytest.fixture
def pod(make_pod: Make, shape: dict[str, Any]) -> Make:
    def make(name: str, plan: Plan, *arguments: str, user: str = "") -> Pod:
        env = {names.ENV_ENGINE: "both", "GLOO_SOCKET_IFNAME": "lo", **({names.ENV_RUN_AS: user} if user else {})}
        command = ["python3", "state_loop.py", str(STEPS), *arguments]
        return filled(make_pod(name, plan=plan, command=command, env=env, **shape))

    return make


def steps(pod: Pod) -> list[tuple[int, str]]:
    """(step, loss) that rank 0 has printed."""
    return [(int(n), loss) for n, loss in re.findall(r"at (\d+) loss (\S+) world \d verdict unchecked", pod.log())]


def shown(pod: Pod, count: int) -> None:
    until(lambda: len(steps(pod)) == count, "its output is shown", pod)


@pytest.fixture(scope="module")
def reference(shape: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """What one rank prints that nobody disturbs, with the state engine."""
    folder, env = tmp_path_factory.mktemp("reference") / "alone", {names.ENV_ENGINE: "state"}
    command = ["python3", "state_loop.py", str(STEPS)]
    alone = filled(Pod(folder, plan=fresh([0], free_port(), 1), command=command, env=env, uid=65532, **shape)).start()
    try:
        assert alone.wait() == 0, alone.log()
        return steps(alone)
    finally:
        alone.delete()


def through_state(ranks: list[int], generation: int, checkpoint: str, attempt: int) -> Plan:
    plan = restored(ranks, free_port(), generation, checkpoint, attempt)
    return replace(plan, through="state", why="the node has another CPU")


def test_processes_to_processes_to_state_to_processes(pod: Make, reference: list[tuple[int, str]]) -> None:
    """Two pods; one that restores the processes; one that starts anew from the state; one that restores again."""
    port = free_port()
    first = {rank: pod(f"first-{rank}", fresh([rank], port), user="1000:1000:").start() for rank in (0, 1)}
    step = stop_and_dump(first, page.generation(1, 1), "c1", 5)
    shown(first[0], step)
    told, source = steps(first[0]), first
    end(list(first.values()))
    plans = [
        restored([0, 1], free_port(), page.generation(1, 1), "c1", 2),
        through_state([0, 1], page.generation(2, 1), "c2", 3),
        restored([0, 1], free_port(), page.generation(3, 1), "c3", 4),
    ]
    for number, plan in enumerate(plans, start=2):
        one = pod(f"attempt-{number}", plan, user="1000:1000:")
        for rank in (0, 1):
            one.bring(source[rank], plan.checkpoint_id, rank)
        one.start().wait_event("restored")
        assert ("the program starts anew, from the state in checkpoint c2: the node has" in one.log()) == (number == 3)
        if number == 4:
            assert one.wait() == 0, one.log()
        else:
            generation = page.generation(number, 1)
            step = stop_and_dump({0: one, 1: one}, generation, f"c{number}", step + 10)
            shown(one, step - len(told))
            end([one])
        told, source = told + steps(one), {0: one, 1: one}
    assert told == reference


def test_state_lies_beside_the_processes_and_not_in_what_travels_with_them(pod: Make) -> None:
    one = pod("one", fresh([0, 1], free_port())).start()
    for sequence in (1, 2, 3):
        generation = page.generation(1, sequence)
        step = stop_and_dump({0: one, 1: one}, generation, "c", 5 * sequence, trial=sequence == 1)
        if sequence == 1:
            assert not [*(one.volumes / "images").rglob("*.img")], "a trial keeps nothing"
            one.sidecar.page.publish(0, 0, generation)
            one.sidecar.command("resume", generation=generation, master_addr="127.0.0.1", master_port=free_port())
            continue
        assert [*one.image("c", 0).glob("state/checkpoints/*")] and [*one.image("c", 1).glob("state/blobs/*")]
        assert b"state-to/" not in b"".join(re.findall(rb"state-to/\d+", (one.image("c", 0) / "work.tar").read_bytes()))
        one.sidecar.page.publish(0, 0, generation)
        one.sidecar.command("resume", generation=generation, master_addr="127.0.0.1", master_port=free_port())
    assert one.wait() == 0, one.log()
    assert [number for number, _ in steps(one)] == list(range(STEPS)) and step >= 10
    assert not [*one.work(0).glob("state-to/*")] and not [*one.work(0).parent.glob(".state-*/*")]


def test_before_attach_the_processes_are_saved_alone(pod: Make) -> None:
    late = pod("late", fresh([0], free_port(), 1), "late").start()
    said = dump_anywhere(late, 5)
    assert not (late.image("c", 0) / "state").exists(), said
    late.sidecar.command("resume", generation=5, master_addr="127.0.0.1", master_port=free_port())
    (late.work(0) / "cwd/attach").touch()
    assert late.wait() == 0, late.log()


@pytest.mark.full  # `test_state_pods` and `test_agent_guard` show each half
def test_state_that_cannot_be_saved_refuses_the_checkpoint_and_the_job_trains_on(pod: Make) -> None:
    one = pod("spoilt", fresh([0, 1], free_port()), "spoil").start()
    until(lambda: len(steps(one)) > 2, "it trains", one)
    for rank in (0, 1):
        (one.work(rank) / "cwd/spoil").touch()
    with pytest.raises(AssertionError, match="while its state was saved: StateError"):
        stop_and_dump({0: one, 1: one}, page.generation(1, 1), "c", 5)
    one.sidecar.page.publish(0, 0, page.generation(1, 1))
    one.sidecar.command("resume", generation=page.generation(1, 1), master_addr="127.0.0.1", master_port=free_port())
    assert one.wait() == 0, one.log()
