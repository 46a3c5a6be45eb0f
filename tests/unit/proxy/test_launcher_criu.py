"""The process engine for real: containers, CRIU, torch. Two ranks move 2 pods -> 1 pod -> 2 pods, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pod_harness import Pod
from pod_moves import end, free_port, fresh, restored, spread, stop_and_dump

from singularity_proxy.protocol import messages, page, phases

pytestmark = pytest.mark.criu

STEPS = 240
HERE = Path(__file__).parent
ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
Make = Callable[..., Pod]


def losses(pods: dict[int, Pod]) -> dict[int, str]:
    return {rank: (pod.work(rank) / "cwd/losses").read_text() for rank, pod in pods.items()}


@pytest.fixture
def pod(make_pod: Make, rootfs: Path, torch_env: Path, criu_bundle: Path) -> Make:
    def make(name: str, plan: messages.Plan, workers: int = 2, **more: object) -> Pod:
        made = make_pod(
            name, rootfs=rootfs, torch=torch_env, plan=plan, env=ENV, criu=criu_bundle,
            command=["python3", "train_ddp.py", str(STEPS), str(workers)], **more,
        )  # fmt: skip
        shutil.copy(HERE / "train_ddp.py", made.volumes / "source/train_ddp.py")
        return made

    return make


@pytest.fixture(scope="module")
def played() -> dict[int, str]:
    """What the uninterrupted run of this file has written: the same bits each time, so one run serves all tests."""
    return {}


@pytest.fixture
def reference(pod: Make, played: dict[int, str]) -> dict[int, str]:
    if not played:
        played.update(uninterrupted(pod))
    return played


def uninterrupted(pod: Make) -> dict[int, str]:
    port = free_port()
    alone = pod("reference", fresh([0, 1], port)).start()
    assert alone.wait() == 0, alone.log()
    assert [event.code for event in alone.sidecar.events if event.kind == "exited"] == [0, 0]
    return losses({0: alone, 1: alone})


def test_two_pods_one_pod_two_pods(pod: Make, reference: dict[int, str]) -> None:
    assert reference[0].count("\n") > STEPS
    assert reference[0] != reference[1]

    port = free_port()
    first = {rank: pod(f"first-{rank}", fresh([rank], port)).start() for rank in (0, 1)}
    generation = page.generation(1, 1)
    step = stop_and_dump(first, generation, "c1", 60)
    assert 60 <= step < STEPS
    end(list(first.values()))

    one = pod("second", restored([0, 1], free_port(), generation, "c1", 2))
    for rank in (0, 1):
        one.bring(first[rank], "c1", rank)
        first[rank].forget("c1")
    told = one.start().wait_event("restored")
    assert told.start is not None and min(told.start.unpack, told.start.restore, told.start.meet) > 0
    assert phases.total(told.start) == pytest.approx(told.seconds, abs=0.5), "no second is missing"
    assert one.sidecar.page.rank(0).count >= step
    second = page.generation(2, 1)
    later = stop_and_dump({0: one, 1: one}, second, "c2", step + 60)
    assert step + 60 <= later < STEPS
    one.forget("c1")  # not before: the ranks train on meanwhile
    end([one])

    port = free_port()
    last = spread(pod, port, one, second, "c2", 3)
    for rank, target in last.items():
        assert target.wait() == 0, target.log()
        assert [e.kind for e in target.sidecar.events if e.kind != "reading"] == ["restored", "exited", "finished"]
        assert f"[rank {rank}] done" in target.log()
        assert f"port {port}" in target.log()
        assert "step 50 " not in target.log()  # shown by the first pod, not again
    assert losses(last) == reference


@pytest.mark.full  # `test_agent_torch` stops in place three times, with torch and CRIU
def test_dump_in_place_and_go_on(pod: Make, reference: dict[int, str]) -> None:
    """A periodic checkpoint, and one that is cancelled after the dump: the ranks go on where they are."""
    one = pod("pod", fresh([0, 1], free_port())).start()
    for sequence, step in ((1, 40), (2, 120)):
        generation = page.generation(1, sequence)
        stop_and_dump({0: one, 1: one}, generation, f"c{sequence}", step)
        one.sidecar.page.publish(0, 0, generation)
        one.sidecar.command("resume", generation=generation, master_addr="127.0.0.1", master_port=free_port())
    assert one.wait() == 0, one.log()
    assert losses({0: one, 1: one}) == reference
