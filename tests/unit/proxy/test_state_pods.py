"""Pods of the state engine: no root, no capability, no CRIU; real launchers, real torch, real ranks that move."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_sidecar import Coordinator
from pod_harness import Pod
from pod_moves import everyone_alive, free_port, until
from program_runs import PROGRAMS

from singularity_proxy.protocol import exit_codes, names, page
from singularity_proxy.protocol.messages import Plan

pytestmark = pytest.mark.criu
NOBODY = 65532
STEPS = 40
Make = Callable[..., Pod]


@pytest.fixture(scope="module")
def shape(rootfs: Path, criu_bundle: Path, torch_env: Path) -> dict[str, Any]:
    """Of every pod here."""
    env = {names.ENV_ENGINE: "state", "GLOO_SOCKET_IFNAME": "lo"}
    return {"uid": NOBODY, "rootfs": rootfs, "torch": torch_env, "criu": criu_bundle, "env": env}


def filled(made: Pod) -> Pod:
    (made.volumes / "source/state_loop.py").write_text((PROGRAMS / "state_loop.py").read_text())
    return made


@pytest.fixture
def pod(make_pod: Make, shape: dict[str, Any]) -> Make:
    def make(name: str, plan: Plan, *arguments: str) -> Pod:
        command = ["python3", "state_loop.py", str(STEPS), *arguments]
        return filled(make_pod(name, plan=plan, command=command, **shape))

    return make


def fresh(ranks: list[int], world: int, port: int) -> Plan:
    return Plan("fresh", 1, world, ranks, "127.0.0.1", port)


def steps(pod: Pod) -> list[tuple[int, str]]:
    """(step, loss) that rank 0 has printed."""
    return [(int(n), loss) for n, loss in re.findall(r"at (\d+) loss (\S+) world \d verdict unchecked", pod.log())]


def stop(pods: dict[int, Pod], generation: int, count: int, background: bool = False, name: str = "c") -> int:
    """Barrier after `count` steps or more, and dump as checkpoint `name`. The step."""
    coordinator = Coordinator({rank: pod.sidecar for rank, pod in pods.items()})
    for pod in {*pods.values()} if background else ():
        pod.sidecar.page.words[page.W_BACKGROUND] = generation
    coordinator.wait_count(count, alive=everyone_alive([*pods.values()]))
    step = coordinator.acquire(generation)
    for pod in {*pods.values()}:
        pod.sidecar.command("dump", generation=generation, checkpoint_id=name, remaining_s=60)
    return step


@pytest.fixture(scope="module")
def reference(shape: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """What one rank prints that nobody disturbs."""
    folder, plan = tmp_path_factory.mktemp("reference") / "alone", fresh([0], 1, free_port())
    alone = filled(Pod(folder, plan=plan, command=["python3", "state_loop.py", str(STEPS)], **shape)).start()
    try:
        assert alone.wait() == 0, alone.log()
        return steps(alone)
    finally:
        alone.delete()


def test_ranks_are_saved_and_go_on_in_another_number_of_pods(pod: Make, reference: list[tuple[int, str]]) -> None:
    assert [number for number, _ in reference] == list(range(STEPS))
    port = free_port()
    pods = {rank: pod(f"a{rank // 2}", fresh([rank // 2 * 2, rank // 2 * 2 + 1], 4, port)) for rank in (0, 2)}
    for each in pods.values():
        each.start()
    four = {rank: pods[rank // 2 * 2] for rank in range(4)}
    step = stop(four, 5, 6)
    for each in pods.values():
        each.wait_event("dumped")
    until(lambda: len(steps(pods[0])) >= step, "its output is shown", pods[0])
    first = steps(pods[0])
    assert len(first) == step, "they stand where the barrier is"
    records = [json.loads((four[rank].image("c", rank) / "rank.json").read_text()) for rank in range(4)]
    assert records == [{"engine": "state", "rank": rank, "step": step} for rank in range(4)]
    for each in pods.values():
        each.sidecar.command("exit", exit_code=exit_codes.STOPPED)
        assert each.wait() == exit_codes.STOPPED

    moved = pod("b", Plan("restore", 2, 2, [0, 1], "127.0.0.1", free_port(), 5, "c"))
    for rank, source in four.items():
        moved.bring(source, "c", rank)
    moved.start()
    moved.wait_event("restored")
    assert moved.wait() == 0, moved.log()
    assert first + steps(moved) == reference
    assert not (moved.volumes / "images/.from").exists(), "nobody needs it any more"


def test_a_checkpoint_that_is_damaged_in_the_pod_is_not_restored(pod: Make) -> None:
    """The controller tries it again, and takes the one before it at last. The job's own errors would end the job."""
    first = pod("a", fresh([0], 1, free_port())).start()
    stop({0: first}, 5, 3)
    first.wait_event("dumped")
    first.sidecar.command("exit", exit_code=exit_codes.STOPPED)
    assert first.wait() == exit_codes.STOPPED
    moved = pod("b", Plan("restore", 2, 1, [0], "127.0.0.1", free_port(), 5, "c"))
    moved.bring(first, "c", 0)
    for blob in moved.image("c", 0).glob("blobs/*"):
        blob.write_bytes(blob.read_bytes()[:-1])
    moved.start()
    assert moved.wait() == exit_codes.NOT_RESTORED, moved.log()
    said = moved.wait_event_after_end("restore_failed").message
    assert "checkpoint c was not restored by rank 0" in said and "the blob ends at byte" in said, said


def test_a_rank_goes_on_in_place_and_can_be_saved_again(pod: Make, reference: list[tuple[int, str]]) -> None:
    one = pod("one", fresh([0, 1], 2, free_port())).start()
    for generation, count in ((5, 3), (6, 12)):
        skip = len(one.sidecar.events)
        step = stop({0: one, 1: one}, generation, count)
        one.wait_event("dumped", skip=skip)
        until(lambda step=step: len(steps(one)) == step, "its output is shown", one)  # type: ignore[misc]
        for rank in (0, 1):
            assert one.sidecar.page.rank(rank).count == step
        one.sidecar.page.publish(0, 0, generation)
        one.sidecar.command("resume", generation=generation)
    assert one.wait() == 0, one.log()
    assert steps(one) == reference


# --- saved in the background ------------------------------------------------------------------------------------------
def files(pod: Pod, *names: str) -> list[Path]:
    """In the working directory of each of two ranks."""
    return [pod.work(rank) / "cwd" / name for rank in (0, 1) for name in names]


def trains_on(pod: Pod, count: int) -> None:
    """Until both ranks have made `count` steps."""
    until(lambda: min(pod.sidecar.page.rank(r).count for r in (0, 1)) >= count, f"they make {count} steps", pod)


def go_on(pod: Pod, generation: int) -> None:
    """As a sidecar does when the checkpoint is committed, or given up."""
    pod.sidecar.page.publish(0, 0, generation)
    pod.sidecar.command("resume", generation=generation)


@pytest.fixture
def faulty(pod: Make) -> Pod:
    """Two ranks whose saves wait while `hold` is there."""
    made = pod("faulty", fresh([0, 1], 2, free_port()), "faults").start()
    made.wait_event("started")
    for path in files(made, "hold"):
        path.touch()
    return made


def test_ranks_go_on_while_they_are_saved(faulty: Pod, pod: Make, reference: list[tuple[int, str]]) -> None:
    step = stop({0: faulty, 1: faulty}, 5, 4, background=True)
    trains_on(faulty, step + 5)
    assert not any(event.kind == "dumped" for event in faulty.sidecar.events), "nothing of it is stored yet"
    for path in files(faulty, "hold"):
        path.unlink()
    faulty.wait_event("dumped")
    records = [json.loads((faulty.image("c", rank) / "rank.json").read_text())["step"] for rank in (0, 1)]
    assert records == [step, step]
    moved = pod("b", Plan("restore", 2, 1, [0], "127.0.0.1", free_port(), 5, "c"))
    for rank in (0, 1):
        moved.bring(faulty, "c", rank)
    go_on(faulty, 5)
    assert faulty.wait() == 0, faulty.log()
    assert steps(faulty) == reference, "what is saved beside them changes no bit"
    assert moved.start().wait() == 0, moved.log()
    assert steps(moved) == reference[step:], "what is saved is the state of that step, and of no later one"


def test_a_save_in_the_background_that_is_given_up_holds_up_the_next_one_only_until_it_ends(
    faulty: Pod, reference: list[tuple[int, str]]
) -> None:
    step = stop({0: faulty, 1: faulty}, 5, 4, background=True)
    go_on(faulty, 5)
    trains_on(faulty, step + 3)
    stop({0: faulty, 1: faulty}, 6, step + 3)
    for path in files(faulty, "hold"):
        path.unlink()
    until(lambda: [e.generation for e in faulty.sidecar.events if e.kind == "dumped"][-1:] == [6], "saved", faulty)
    assert len(steps(faulty)) <= faulty.sidecar.page.rank(0).count, "they stand for this one"
    go_on(faulty, 6)
    assert faulty.wait() == 0, faulty.log()
    assert steps(faulty) == reference


def test_a_rank_that_dies_while_it_is_saved_in_the_background_leaves_the_checkpoint_before(
    faulty: Pod, pod: Make, reference: list[tuple[int, str]]
) -> None:
    for path in files(faulty, "hold"):
        path.unlink()
    before = stop({0: faulty, 1: faulty}, 5, 3, background=True, name="before")
    faulty.wait_event("dumped")
    go_on(faulty, 5)
    for path in files(faulty, "hold"):
        path.touch()
    step = stop({0: faulty, 1: faulty}, 6, before + 2, background=True)
    trains_on(faulty, step + 2)
    files(faulty, "die")[1].touch()
    for path in files(faulty, "hold"):
        path.unlink()
    failed = faulty.wait_event("dump_failed")
    assert failed.generation == 6 and re.search("rank [01] (has ended|cannot be saved)", failed.message)
    assert faulty.wait() != 0
    assert [event.generation for event in faulty.sidecar.events if event.kind == "dumped"] == [5]
    # The job goes on from the one before, in another number of ranks.
    moved = pod("b", Plan("restore", 2, 1, [0], "127.0.0.1", free_port(), 5, "before"))
    for rank in (0, 1):
        moved.bring(faulty, "before", rank)
    assert moved.start().wait() == 0, moved.log()
    assert steps(moved) == reference[before:]


def test_a_full_disk_fails_the_save_in_the_background_and_not_the_job(
    pod: Make, reference: list[tuple[int, str]]
) -> None:
    made = pod("full", fresh([0, 1], 2, free_port()))
    images = made.volumes / "images"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12k,mode=777", "tmpfs", images], check=True, timeout=120)
    try:
        made.start().wait_event("started")
        step = stop({0: made, 1: made}, 5, 4, background=True)
        failed = made.wait_event("dump_failed")
        assert "while its state was saved in the background: NoSpaceError" in failed.message
        assert "no space is left" in failed.message
        trains_on(made, step + 1)
        go_on(made, 5)
        subprocess.run(["mount", "-o", "remount,size=64m", images], check=True, timeout=120)
        stop({0: made, 1: made}, 6, step + 4, background=True)
        made.wait_event("dumped")
        go_on(made, 6)
        assert made.wait() == 0, made.log()
        assert steps(made) == reference
    finally:
        made.delete()
        subprocess.run(["umount", "-l", images], check=True, timeout=120)


def test_a_script_that_has_not_attached_is_refused_at_once(pod: Make) -> None:
    late = pod("late", fresh([0], 1, free_port()), "late").start()
    late.wait_event("started")
    late.sidecar.command("dump", generation=5, checkpoint_id="c", remaining_s=60, anywhere=True)
    refused = late.wait_event("dump_failed", timeout=60)
    assert refused.message.startswith("no rank has called singularity_train.attach so far. With engine 'state' only a")
    (late.work(0) / "cwd/attach").touch()
    assert late.wait() == 0, late.log()


def test_state_that_cannot_be_stored_fails_the_checkpoint_and_not_the_job(pod: Make) -> None:
    made = pod("spoilt", fresh([0, 1], 2, free_port()), "spoil").start()
    made.wait_event("started")
    until(lambda: len(steps(made)) > 1, "it trains", made)
    (made.work(1) / "cwd/spoil").touch()
    stop({0: made, 1: made}, 5, 3)
    refused = made.wait_event("dump_failed")
    assert "while its state was saved: StateError: rank 1: extra extra.spoilt: its state cannot" in refused.message
    (made.work(1) / "cwd/spoil").unlink()
    made.sidecar.page.publish(0, 0, 5)
    made.sidecar.command("resume", generation=5)
    skip = len(made.sidecar.events)
    stop({0: made, 1: made}, 6, 12)
    made.wait_event("dumped", skip=skip)
    made.sidecar.page.publish(0, 0, 6)
    made.sidecar.command("resume", generation=6)
    assert made.wait() == 0, made.log()


def test_what_one_of_two_ranks_raises_is_the_cause(pod: Make) -> None:
    """The other one fails because of it: its collective breaks, or it is stopped."""
    made = pod("raises", fresh([0, 1], 2, free_port()), "raise").start()
    assert made.wait() == exit_codes.of_program(1), made.log()
    said = "rank 1 ended with code 1: ValueError: the batch of step 3 is bad (state_loop.py:"
    assert made.said().text.startswith(said) and made.said().cause == "program", (made.said(), made.log())


def test_the_program_can_be_something_that_is_not_there(pod: Make) -> None:
    made = pod("none", fresh([0], 1, free_port()))
    made._env[names.ENV_COMMAND] = '["/no/such/program"]'
    made.start()
    assert made.wait() == exit_codes.of_program(127)
    assert "/no/such/program: cannot be executed: No such file or directory" in made.log()
