"""Engine `both` between real sidecars: all pods of an attempt go on from the same part of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.protocol import exit_codes
from singularity_proxy.protocol.manifest import Requirements
from singularity_proxy.protocol.messages import CheckpointRef, Engine, FailedRestore, LauncherEvent, Through
from singularity_proxy.sidecar import hardware, leader, pod, state_machine
from singularity_proxy.sidecar.peers import PodReport
from singularity_proxy.store import Store


async def committed(folder: Path, controller: FakeController, engine: Engine = "both") -> CheckpointRef:
    """Two pods have saved and left; the next attempt may begin."""
    first = await World(folder, controller, workers=2, world_size=4, engine=engine).start()
    await first.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    for launcher in first.launchers:
        await launcher.post(LauncherEvent("terminating", grace_s=30))
    await eventually("exit", lambda: all(x.exit_code == exit_codes.STOPPED for x in first.launchers))
    await first.end()
    controller.attempt, controller.leader_ip = 2, ""
    return controller.commits[0].checkpoint


async def test_where_all_nodes_can_take_the_processes_they_go_on(folder: Path, controller: FakeController) -> None:
    ref = await committed(folder, controller)
    assert (ref.engine, ref.needs) == ("both", None), "no flavor is refused for its machines"
    assert Store(ref.url).read_manifest("team", "train", ref.id).engine == "both"
    second = await World(folder, controller, workers=2, world_size=4, attempt=2, engine="both").start()
    await second.stepped(ref.step + 5)
    assert [(x.plan.through, x.plan.why) for x in second.launchers if x.plan] == [("process", "")] * 2
    assert [x.images for x in second.launchers] == [["rank-0", "rank-1"], ["rank-2", "rank-3"]]
    images = second.launchers[0].config.image_dir
    assert not [*images.glob("*/rank-*/state")], "it was not fetched"
    await second.end()


async def test_one_node_that_cannot_is_enough_for_all_to_begin_from_the_state(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = await committed(folder, controller)
    real, asked = hardware.requirements(), []

    def once_another() -> Requirements:
        asked.append(1)
        return Requirements(real.architecture, "other") if len(asked) == 1 else real

    monkeypatch.setattr(hardware, "requirements", once_another)
    second = await World(folder, controller, workers=2, world_size=4, attempt=2, engine="both").start()
    await second.stepped(ref.step + 5)
    plans = [x.plan for x in second.launchers if x.plan]
    assert [plan.through for plan in plans] == ["state", "state"]
    whys = sorted(plan.why for plan in plans)
    assert "was taken on a CPU with other features" in whys[0] and whys[1].startswith("the node of another pod cannot")
    assert [x.images for x in second.launchers] == [[f"rank-{rank}" for rank in range(4)]] * 2, "each has all of it"
    await eventually("it is told", lambda: any("CPU with other features" in p.why_state for p in controller.progress))
    await second.end()


async def test_a_pod_of_the_state_engine_takes_the_state_alone(folder: Path, controller: FakeController) -> None:
    ref = await committed(folder, controller)
    second = await World(folder, controller, workers=1, world_size=1, attempt=2, engine="state").start()
    await second.stepped(ref.step + 5)
    (plan,) = [x.plan for x in second.launchers if x.plan]
    assert plan.through == "state"
    images = second.launchers[0].config.image_dir / ref.id
    assert not [*images.glob("rank-*/rank.json")], "no process image was fetched"
    await second.end()


def report(index: int, through: Through | None) -> state_machine.Heard:
    return state_machine.Heard(PodReport(index, [], through=through), 0.0)


@pytest.mark.parametrize(
    ("can", "agreed"),
    [
        (["process"], None),
        (["process", None], None),
        (["process", "process"], "process"),
        (["state", "process"], "state"),
        (["process", "state"], "state"),
    ],
)
def test_what_they_agree_on(can: list[Through | None], agreed: Through | None) -> None:
    assert leader.agreed({index: report(index, each) for index, each in enumerate(can)}, 2) == agreed


async def test_pods_that_never_say_what_they_can_end_the_attempt(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = await committed(folder, controller)
    assert ref.engine == "both"
    monkeypatch.setattr(pod, "AGREE_S", 0.5)
    monkeypatch.setattr(pod.Pod, "can_go_on", lambda *_: None)
    second = await World(folder, controller, workers=1, world_size=4, attempt=2, engine="both").start()
    await eventually("the launcher hears it", lambda: second.launchers[0].refusal)
    assert "not all pods have said within 0 s" in second.launchers[0].refusal
    assert second.launchers[0].refused_with == exit_codes.LOST, "the next attempt tries again"
    await second.end()


async def test_the_last_try_of_processes_that_were_not_restored_is_made_with_the_state(
    folder: Path, controller: FakeController
) -> None:
    """Nothing is lost by it, and the checkpoint before it would be older."""
    ref = await committed(folder, controller)
    tries = [FailedRestore(number, "no such file") for number in (2, 3)]
    for failed, through in ((tries[:1], "process"), (tries, "state")):
        assert controller.checkpoint is not None
        controller.checkpoint = replace(controller.checkpoint, failed=failed)
        number = controller.attempt
        world = await World(folder, controller, workers=1, world_size=4, attempt=number, engine="both").start()
        await world.stepped(ref.step + 5)
        (plan,) = [x.plan for x in world.launchers if x.plan]
        assert plan.through == through
        assert plan.why == ("2 restores of its processes have failed" if through == "state" else "")
        await world.end()
        controller.next_attempt()
