"""Four sidecars, five ranks: commit, restore with fewer pods, every way to fail, end to end over real sockets."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from mesh_world import FakeController, World, eventually

from singularity_proxy.errors import StaleAttemptError
from singularity_proxy.protocol import exit_codes, page, user_namespace
from singularity_proxy.protocol import manifest as mf
from singularity_proxy.protocol.messages import (
    CheckpointRef,
    Damage,
    DamageReport,
    Engine,
    GpuFault,
    Gpus,
    LauncherCommand,
    LauncherEvent,
    Occupied,
    PodGpus,
)
from singularity_proxy.sidecar import hardware, sidecar, state_machine
from singularity_proxy.sidecar.controller_client import Controller
from singularity_proxy.store import Store, layout


@pytest.fixture
async def world(folder: Path, controller: FakeController) -> AsyncIterator[World]:
    world = await World(folder, controller, workers=4, world_size=5).start()
    yield world
    await world.end()


async def test_commit_then_restore_in_two_pods(folder: Path, controller: FakeController) -> None:
    first = await World(folder, controller, workers=4, world_size=5).start()
    await first.stepped(5)
    await eventually("it is reported as running", lambda: any(p.phase == "running" for p in controller.progress))
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    commit = controller.commits[0]
    ref = commit.checkpoint
    generation = page.generation(1, 1)
    assert {r.frozen[generation] for r in first.ranks} == {ref.step}, "all ranks froze at one step"
    assert (ref.id[:12], ref.generation, ref.attempt, ref.world_size) == ("train-a1-g1-", generation, 1, 5)
    assert commit.last_step == ref.step - 1 and 0 <= commit.barrier_ago_s < 120
    save = commit.save
    assert save is not None and save.dump == 40.0, "of the pod that took longest"
    assert 0 < save.barrier < 120 and 0 < save.upload < commit.barrier_ago_s
    manifest = Store(ref.url).read_manifest("team", "train", ref.id)
    assert ref.bytes == sum(f.size for r in manifest.ranks for f in r.files) > 5 << 20
    assert ref.bytes_stored < 5 << 20, "the pages that ranks share are stored once per pod at most"
    assert manifest.step == ref.step and manifest.requirements == hardware.requirements()
    assert manifest.labels == {"privileges": user_namespace.level()}
    assert ref.needs is not None and ref.needs.architecture
    # After the commit the pods stay until they are asked to end; then they end at once.
    await eventually("stop everywhere", lambda: all([c.op for c in x.commands] == ["dump"] for x in first.launchers))
    for launcher in first.launchers:
        await launcher.post(LauncherEvent("terminating", grace_s=30))
    await eventually("exit", lambda: all(x.exit_code == exit_codes.STOPPED for x in first.launchers))
    await first.end()
    phases = [p.phase for p in controller.progress]
    assert phases.index("running") < phases.index("barrier") < len(phases)
    seen = next(p for p in controller.progress if p.first_step_ago_s is not None)
    assert seen.first_step == 0 and seen.step >= 0 and seen.first_step_ago_s < 120  # type: ignore[operator]

    controller.attempt, controller.leader_ip = 2, ""
    controller.progress.clear()
    second = await World(folder, controller, workers=2, world_size=5, attempt=2).start(last=ref.step + 40)
    await second.stepped(ref.step + 40)
    for launcher in second.launchers:
        assert launcher.plan is not None and launcher.plan.mode == "restore"
        assert launcher.plan.generation == generation and launcher.plan.checkpoint_id == ref.id
    assert [x.plan.ranks for x in second.launchers if x.plan] == [[0, 1, 2], [3, 4]]
    await eventually("ranks end", lambda: not any(r.is_alive() for r in second.ranks))
    await second.end()
    last = controller.progress[-1]
    assert (last.phase, last.step, last.first_step, last.attempt) == ("finished", ref.step + 40, ref.step, 2)
    assert last.first_step_ago_s is not None
    assert last.start is not None and (last.start.restore, last.start.meet) == (1.0, 0.0), "of who came last"
    assert 0 < last.start.join < 120 and 0 < last.start.fetch < 20


async def test_the_state_engine_restores_in_another_number_of_ranks(folder: Path, controller: FakeController) -> None:
    first = await World(folder, controller, workers=4, world_size=4, engine="state").start()
    await first.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    ref = controller.commits[0].checkpoint
    assert (ref.engine, ref.world_size, ref.needs) == ("state", 4, None), "it needs no machine like this"
    manifest = Store(ref.url).read_manifest("team", "train", ref.id)
    assert (manifest.engine, manifest.labels) == ("state", {})
    for launcher in first.launchers:
        await launcher.post(LauncherEvent("terminating", grace_s=30))
    await eventually("exit", lambda: all(x.exit_code == exit_codes.STOPPED for x in first.launchers))
    await first.end()

    controller.attempt, controller.leader_ip = 2, ""
    second = await World(folder, controller, workers=2, world_size=2, attempt=2, engine="state").start()
    await second.stepped(ref.step + 5)
    assert [x.plan.ranks for x in second.launchers if x.plan] == [[0], [1]]
    assert [x.images for x in second.launchers] == [[f"rank-{rank}" for rank in range(4)]] * 2, "each has all of it"
    await second.end()


async def test_a_checkpoint_of_the_other_engine_is_refused(folder: Path, controller: FakeController) -> None:
    first = await World(folder, controller, workers=1, world_size=1, engine="state").start()
    await first.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    await first.end()
    controller.attempt, controller.leader_ip = 2, ""
    second = await World(folder, controller, workers=1, world_size=1, attempt=2).start()
    await eventually("refusal", lambda: second.launchers[0].refusal)
    assert "was made with engine 'state', this job has engine 'process'" in second.launchers[0].refusal
    assert second.launchers[0].refused_with == exit_codes.NOT_RESTORED
    await second.end()


async def test_what_gpus_do_reaches_the_controller_also_when_no_rank_makes_a_step(
    world: World, controller: FakeController
) -> None:
    """A rank that lost its GPU hangs, and the others wait for it: no step makes a report due."""
    await world.stepped(3)
    for rank in world.ranks:
        rank.stalled.set()
    told = [Gpus(2, 90.0 - 20 * n, 5 + n, 80) for n in range(4)]
    for launcher, gpus in zip(world.launchers, told, strict=True):
        await launcher.post(LauncherEvent("gpus", gpus=gpus))
    bad = replace(told[2], faults=[GpuFault("GPU-7", 79, 1)])
    await world.launchers[2].post(LauncherEvent("gpus", gpus=bad))
    whole = Gpus(8, 60.0, 8, 80, faults=bad.faults, pods=[PodGpus(2, [79])])
    await eventually("the controller knows of all GPUs", lambda: controller.progress[-1].gpus == whole)
    for rank in world.ranks:
        rank.stalled.clear()


async def test_continue_goes_on_in_place_and_can_be_repeated(world: World, controller: FakeController) -> None:
    await world.stepped(3)
    for number in (1, 2):
        await controller.command(then="continue")
        await eventually("commit", lambda n=number: len(controller.commits) == n)
        await world.stepped(controller.commits[-1].checkpoint.step + 5)
    one, two = (c.checkpoint for c in controller.commits)
    assert (one.id[:12], two.id[:12]) == ("train-a1-g1-", "train-a1-g2-") and two.step > one.step
    assert all(c.goes_on and c.save is None for c in controller.commits)
    assert all(p.barrier_ago_s is None for p in controller.progress)
    assert two.bytes_stored < two.bytes / 4, "unchanged pages are not stored again"
    for launcher in world.launchers:
        assert [c.op for c in launcher.commands] == ["dump", "resume", "dump", "resume"]
        ports = {c.master_port for c in launcher.commands if c.op == "resume"}
        assert launcher.plan is not None and len(ports | {launcher.plan.master_port}) == 3, "no port is used twice"
    assert not controller.failures


async def test_an_eviction_during_the_commit_of_a_checkpoint_on_the_side_is_told(
    world: World, controller: FakeController
) -> None:
    """The ranks train already: they are saved once more, for the eviction."""
    await world.stepped(3)

    async def evict() -> None:
        await controller.command(60)
        await controller.heard(2)

    controller.before_commit = evict
    await controller.command(30, then="continue")
    await eventually("both commits", lambda: len(controller.commits) == 2)
    assert [c.goes_on for c in controller.commits] == [True, False]
    first, last = (commit.checkpoint for commit in controller.commits)
    assert last.generation == first.generation + 1 and last.step > first.step
    assert {r.boundary.count for r in world.ranks} == {last.step}, "nobody trains on after the last one"


async def test_a_follower_that_is_asked_to_end_gets_its_checkpoint(world: World, controller: FakeController) -> None:
    await world.stepped(3)
    await world.launchers[2].post(LauncherEvent("terminating", grace_s=30))
    await eventually("commit", lambda: controller.commits)
    await eventually("exit", lambda: all(x.exit_code == exit_codes.STOPPED for x in world.launchers))
    assert [c.op for c in world.launchers[0].commands] == ["dump", "exit"]
    everybody = [config.pod_ip for config in world.configs]
    assert [x.commands[0].job for x in world.launchers] == [everybody] * len(everybody), "who the job's pods are"


@pytest.mark.parametrize(("engine", "ranks"), [("process", 5), ("state", 4)])
async def test_no_boundary_cancels_with_a_sentence_and_training_goes_on(
    folder: Path, controller: FakeController, engine: Engine, ranks: int
) -> None:
    world = await World(folder, controller, workers=4, world_size=ranks, engine=engine).start()
    await world.stepped(3)
    await controller.command(then="continue")
    await eventually("a first commit", lambda: controller.commits)
    before = controller.commits[0].checkpoint
    await world.stepped(before.step + 5)
    world.ranks[3].stalled.set()
    await eventually("stall", world.ranks[3].stands.is_set)
    await controller.command(3.0)
    await eventually("failure", lambda: controller.failures)
    message = controller.failures[0].message
    step = world.ranks[3].boundary.count
    assert message == f"no step boundary within 3 s: ranks 0-{ranks - 1} at step {step}", "all wait for rank 3"
    best, skipped = Store(before.url).latest_valid("team", "train")
    assert best is not None and (best.id, skipped) == (before.id, []) and controller.checkpoint == before
    world.ranks[3].stalled.clear()
    await world.stepped(max(r.boundary.count for r in world.ranks) + 5)
    assert len(controller.commits) == 1 and all(set(r.frozen) == {before.generation} for r in world.ranks)
    await controller.command()
    await eventually("the next one succeeds", lambda: controller.commits[1:])
    assert controller.commits[1].checkpoint.generation == page.generation(1, 3)
    await world.end()


async def test_failed_dump_resumes_every_rank(world: World, controller: FakeController) -> None:
    await world.stepped(3)
    world.launchers[1].dump_error = "criu: Error (cr-dump.c): no"
    await controller.command()
    await eventually("failure", lambda: controller.failures)
    assert "pod 1: criu: Error (cr-dump.c): no" in controller.failures[0].message
    await world.stepped(max(r.boundary.count for r in world.ranks) + 5)
    assert not controller.commits
    await eventually("resume", lambda: all(x.commands[-1].op == "resume" for x in world.launchers))


async def test_dead_follower_is_noticed(
    world: World, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_machine, "SILENCE_S", 1.0)
    await world.stepped(3)
    world.launchers[2].ranks[0].stalled.set()
    await eventually("stall", world.launchers[2].ranks[0].stands.is_set)
    world.sidecars[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.sidecars[2]
    await controller.command(30)
    await eventually("failure", lambda: controller.failures)
    assert "pod 2 has not been heard for" in controller.failures[0].message
    world.launchers[2].ranks[0].stalled.clear()


async def test_commit_is_retried_while_the_controller_is_ill(world: World, controller: FakeController) -> None:
    controller.commit_errors = 3
    await world.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    assert controller.commit_tries == 4 and not controller.failures


async def test_commit_that_never_succeeds_is_given_up(world: World, controller: FakeController) -> None:
    controller.commit_errors = 10**6
    await world.stepped(3)
    await controller.command(8.0)
    await eventually("failure", lambda: controller.failures)
    assert "are stored, but the commit failed" in controller.failures[0].message
    assert "API server is away" in controller.failures[0].message
    await world.stepped(max(r.boundary.count for r in world.ranks) + 5)


async def test_a_manifest_that_comes_too_late_never_appears(
    world: World, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is stuck while the manifest is written, past the deadline, and goes on afterwards."""
    go, sync = threading.Event(), os.fsync

    def stuck(descriptor: int) -> None:
        if ".json.tmp-" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            assert go.wait(120)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", stuck)
    await world.stepped(3)
    await controller.command(8.0, then="continue")
    await eventually("failure", lambda: controller.failures)
    assert "the store did not take the manifest in time" in controller.failures[0].message
    store = Store(world.configs[0].store)
    drafts = list(Path(store.backend.root).rglob("*.json.tmp-*"))
    go.set()
    await eventually("it is given up", lambda: not any(path.exists() for path in drafts))
    assert len(drafts) == 1 and store.list_checkpoints("team", "train") == []
    await world.stepped(max(r.boundary.count for r in world.ranks) + 5)
    await controller.command(30, then="continue")
    await eventually("commit", lambda: controller.commits)
    found = [listing.id for listing in store.list_checkpoints("team", "train")]
    assert found == [controller.commits[0].checkpoint.id]


async def test_stale_attempt_ends_without_a_commit(world: World, controller: FakeController) -> None:
    controller.stale_commit = True
    await world.stepped(3)
    await controller.command()
    await eventually("exit", lambda: all(x.exit_code == exit_codes.STOPPED for x in world.launchers))
    assert controller.commit_tries == 1 and not controller.commits


async def test_stale_hello_ends_the_sidecar_and_tells_the_launcher(folder: Path, controller: FakeController) -> None:
    controller.attempt = 7
    world = await World(folder, controller, workers=1, world_size=1).start()
    with pytest.raises(StaleAttemptError, match="attempt 7 is current"):
        await asyncio.wait_for(world.sidecars[0], 120)
    assert "attempt 7 is current" in world.launchers[0].refusal


async def test_corrupt_pack_refuses_the_restore_by_name(folder: Path, controller: FakeController) -> None:
    first = await World(folder, controller, workers=2, world_size=2).start()
    await first.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    await first.end()
    ref = controller.commits[0].checkpoint
    store = Store(ref.url)
    manifest = store.read_manifest("team", "train", ref.id)
    pack = manifest.ranks[1].packs[-1]
    path = Path(store.backend.path(layout.object_path(layout.job_folder("team", "train"), "packs", pack.name)))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    controller.attempt, controller.leader_ip = 2, ""
    second = await World(folder, controller, workers=2, world_size=2, attempt=2).start()
    await eventually("refusal", lambda: second.launchers[1].refusal)
    refusal = second.launchers[1].refusal
    assert pack.name in refusal and re.search("does not match its digest|of other content than its key", refusal)
    await second.end()


async def committed(folder: Path, controller: FakeController) -> CheckpointRef:
    """The checkpoint that the only pod of attempt 1 has committed; the next attempt is 2."""
    first = await World(folder, controller, workers=1, world_size=1).start()
    await first.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    await first.end()
    controller.attempt, controller.leader_ip = 2, ""
    return controller.commits[0].checkpoint


async def refused(folder: Path, controller: FakeController) -> str:
    """What the launcher of attempt 2 is told instead of a plan; nothing may be there for it to unpack."""
    second = await World(folder, controller, workers=1, world_size=1, attempt=2).start()
    await eventually("refusal", lambda: second.launchers[0].refusal)
    assert second.launchers[0].plan is None
    assert not list(second.configs[0].image_dir.rglob("*.img")), "nothing was unpacked"
    await second.end()
    return second.launchers[0].refusal


async def test_a_manifest_that_was_replaced_is_not_restored(
    folder: Path, controller: FakeController, tmp_path: Path
) -> None:
    """Whoever writes to the store can seal a manifest of his own, with packs of his own, and say all that was said."""
    ref = await committed(folder, controller)
    store = Store(ref.url)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/rank.json").write_text('{"count": 1000}')
    (tmp_path / "evil/layer.tar").write_bytes(b"usr/bin/nsenter")
    evil = store.put_ranks("team", "train", ref.id, {0: tmp_path / "evil"})
    changed = replace(store.read_manifest("team", "train", ref.id), ranks=evil.images)
    store.backend.write(layout.manifest_path("team", "train", ref.id), mf.dumps(changed).encode())
    said = await refused(folder, controller)
    assert f"jobs/team/train/{ref.id}.json is not the manifest that was committed" in said and ref.sha256 in said


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}/store", "simplecache::file://{folder}/store", "file://{folder}/x"]
)
async def test_a_checkpoint_is_fetched_from_the_jobs_own_store_only(
    folder: Path, controller: FakeController, url: str
) -> None:
    ref = await committed(folder, controller)
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    shutil.copytree(folder / "store", folder / "x")
    port = server.sockets[0].getsockname()[1]
    controller.checkpoint = replace(ref, url=url.format(port=port, folder=folder))
    said = await refused(folder, controller)
    assert f"field url = {controller.checkpoint.url!r}" in said and f"file://{folder}/store" in said
    assert asked == []
    server.close()


async def test_a_job_whose_name_is_used_again_leaves_the_checkpoints_of_the_one_before(
    folder: Path, controller: FakeController
) -> None:
    for number, key in enumerate(("the first Job's", "the second Job's"), 1):
        controller.peer_key, controller.leader_ip, controller.checkpoint = key, "", None
        controller.commands.clear()
        (folder / key).mkdir()
        world = World(folder, controller, workers=1, world_size=1)
        world.configs = [replace(config, root=folder / key / "root") for config in world.configs]
        await world.start()
        await world.stepped(3 * number)
        await controller.command()
        await eventually("commit", lambda n=number: len(controller.commits) == n)
        await world.end()
    refs = [commit.checkpoint for commit in controller.commits]
    assert len({ref.id for ref in refs}) == 2 and len({ref.generation for ref in refs}) == 1
    store = Store(refs[0].url)
    for ref in refs:
        assert store.verify(store.read_manifest("team", "train", ref.id, ref.sha256)) == []


async def test_restarted_sidecar_goes_on_beside_running_ranks(world: World, controller: FakeController) -> None:
    await world.stepped(3)
    await controller.command(then="continue")
    await eventually("commit", lambda: controller.commits)
    await world.stepped(controller.commits[0].checkpoint.step + 3)
    world.sidecars[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.sidecars[0]
    world.sidecars[0] = asyncio.create_task(sidecar.run(world.configs[0], world.stops[0]))
    await eventually("hello", lambda: sum(h.index == 0 for h in controller.hellos) == 2)
    controller.commands.clear()
    await controller.command()
    await eventually("commit", lambda: len(controller.commits) == 2)
    one, two = (commit.checkpoint.id for commit in controller.commits)
    assert two == one.replace("-g1-", "-g2-"), "a sidecar started anew goes on with the ids"


async def _restart(world: World, index: int) -> None:
    world.sidecars[index].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.sidecars[index]
    world.sidecars[index] = asyncio.create_task(sidecar.run(world.configs[index], world.stops[index]))


@pytest.mark.parametrize("index", [0, 1])
async def test_a_sidecar_restarted_after_the_commit_lets_its_pod_end(
    world: World, controller: FakeController, index: int
) -> None:
    """Its launcher would wait out the whole grace period: nobody else tells it that the attempt is over."""
    await world.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    controller.ended = True
    await _restart(world, index)
    await eventually("exit", lambda: world.launchers[index].exit_code == exit_codes.STOPPED)
    assert not world.sidecars[index].done(), "it stays until it is stopped: the kubelet would start it again"


async def test_a_pod_that_comes_anew_to_an_ended_attempt_waits(folder: Path, controller: FakeController) -> None:
    controller.ended = True
    world = await World(folder, controller, workers=1, world_size=1).start()
    await eventually("questions", lambda: len(controller.hellos) >= 4)
    assert world.launchers[0].plan is None and not world.launchers[0].refusal
    (first, wait_s), *_ = controller.asked
    assert controller.asked[3][0] - first >= 0.2 + 0.4 + 0.8 - 0.01, "it asks less and less often"
    assert wait_s == "5", "the controller may wait with its answer until the leader has an address"
    await world.end()


@pytest.mark.parametrize("index", [0, 1])
async def test_a_sidecar_restarted_between_start_and_first_step_knows_that_ranks_run(
    folder: Path, controller: FakeController, index: int
) -> None:
    world = await World(folder, controller, workers=2, world_size=2).start()
    for launcher in world.launchers:
        launcher.slow_imports = True
    await eventually("start", lambda: controller.progress and controller.progress[-1].phase == "running")
    await _restart(world, index)
    await eventually("hello", lambda: sum(h.index == index for h in controller.hellos) == 2)
    await controller.command()  # before any step: no rank shows on the page yet
    for rank in world.ranks:
        rank.imports.set()
    await eventually("commit", lambda: controller.commits)
    assert not controller.failures
    await world.end()


async def test_a_sidecar_restarted_while_ranks_are_restored_does_not_fetch_their_images_again(
    folder: Path, controller: FakeController
) -> None:
    first = await World(folder, controller, workers=1, world_size=1).start()
    await first.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    await first.end()
    controller.attempt, controller.leader_ip = 2, ""
    controller.commands.clear()
    second = World(folder, controller, workers=1, world_size=1, attempt=2)
    config = second.configs[0]
    second.sidecars = [asyncio.create_task(sidecar.run(config, second.stops[0]))]
    await eventually("plan", config.plan_file.exists)
    shutil.rmtree(folder / "store")  # nothing could be fetched again
    await _restart(second, 0)
    second.launch()  # it asks only now
    await second.stepped(controller.commits[0].checkpoint.step + 2)
    assert second.launchers[0].plan is not None and second.launchers[0].plan.mode == "restore"
    await second.end()


async def test_a_controller_that_is_ill_is_not_asked_in_a_hot_loop(world: World, controller: FakeController) -> None:
    await world.stepped(3)
    controller.refuse_progress = True
    await eventually("a refused report", lambda: controller.progress_tries > len(controller.progress))
    before, since = controller.progress_tries, asyncio.get_running_loop().time()
    await controller.command(3)  # phase changes and reports of four pods: each of them is urgent
    await eventually("commit", lambda: controller.commits)
    await eventually("time", lambda: asyncio.get_running_loop().time() - since > 3)
    assert controller.progress_tries - before <= 12, "pauses grow from half a second"
    controller.refuse_progress = False


async def test_a_leader_restarted_while_images_are_saved_lets_all_ranks_go_on(
    world: World, controller: FakeController
) -> None:
    await world.stepped(3)
    dump, may_dump = world.launchers[1]._dump, asyncio.Event()

    async def slow(command: LauncherCommand) -> None:
        await may_dump.wait()
        await dump(command)

    world.launchers[1]._dump = slow  # type: ignore[method-assign]
    await controller.command(60)
    await eventually("all ranks are frozen", lambda: all(r.frozen for r in world.ranks))
    await eventually("a dump is asked for", lambda: any(c.op == "dump" for c in world.launchers[1].commands))
    controller.commands.clear()
    world.sidecars[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.sidecars[0]
    may_dump.set()
    world.sidecars[0] = asyncio.create_task(sidecar.run(world.configs[0], world.stops[0]))
    await world.stepped(max(r.boundary.count for r in world.ranks) + 5)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    assert controller.commits[0].checkpoint.id.startswith("train-a1-g2-")


async def test_unwritable_store_is_said_to_the_launcher(folder: Path, controller: FakeController) -> None:
    (folder / "store").write_text("not a folder")
    world = await World(folder, controller, workers=1, world_size=1).start()
    await eventually("refusal", lambda: world.launchers[0].refusal)
    assert "/probe-" in world.launchers[0].refusal
    (error,) = await asyncio.wait_for(asyncio.gather(*world.sidecars, return_exceptions=True), 120)
    assert "/probe-" in str(error)


class _Clock:
    """`time` of another machine: neither of its clocks is that of the leader."""

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def time(self) -> float:
        return time.time() + self._ahead

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead


@pytest.mark.parametrize("ahead", [-95.0, 95.0])
async def test_a_drain_of_pods_whose_clock_is_another_is_saved_in_their_grace_period(
    world: World, controller: FakeController, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    monkeypatch.setattr("singularity_proxy.sidecar.pod.time", _Clock(ahead))
    await world.stepped(3)
    await world.launchers[2].post(LauncherEvent("terminating", grace_s=34))
    await eventually("commit or failure", lambda: controller.commits or controller.failures)
    assert controller.failures == [] and len(controller.commits) == 1
    (dump,) = (c for c in world.launchers[0].commands if c.op == "dump")
    assert dump.remaining_s is not None and 10 < dump.remaining_s <= 30


async def test_a_checkpoint_says_in_how_few_pods_its_ranks_have_room(world: World, controller: FakeController) -> None:
    """So that Kueue admits no fewer, and a resize to fewer is refused before it stops anything."""
    await world.stepped(3)
    for launcher in world.launchers[1:3]:
        launcher.occupied = [Occupied(rank.rank, ["tcp 127.0.0.1:80"]) for rank in launcher.ranks[:1]]
    await controller.command(then="continue")
    await eventually("commit", lambda: controller.commits)
    ref = controller.commits[0].checkpoint
    one, other = (launcher.ranks[0].rank for launcher in world.launchers[1:3])
    assert 1 < ref.fewest <= len(world.launchers)
    assert ref.crowded.endswith(f"ranks {one} and {other} would share one: tcp 127.0.0.1:80, tcp 127.0.0.1:80")


@pytest.mark.parametrize("there", [True, False])
async def test_ranks_that_never_meet_count_as_a_failed_restore_once_all_pods_were_there(
    folder: Path, controller: FakeController, there: bool
) -> None:
    """Else an attempt whose restored ranks never meet would be followed by another one for ever."""
    first = await World(folder, controller, workers=2, world_size=2).start()
    await first.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    await first.end()
    controller.next_attempt()
    second = World(folder, controller, workers=2, world_size=2, attempt=2)
    if there:
        await (await second.start()).stepped(controller.commits[0].checkpoint.step + 1)
    else:  # the other pod waits for its images
        second.configs, second.stops = second.configs[:1], second.stops[:1]
        await second.start()
        await eventually("a plan", lambda: second.launchers[0].plan)
    await second.launchers[-1].post(
        LauncherEvent("restore_failed", code=exit_codes.LOST, message="did not meet", apart=True)
    )
    await second.end()
    ref = controller.commits[0].checkpoint
    told = Damage(ref.id, "did not meet", tried=True, passes=True)
    assert [report.damaged for report in controller.damage] == ([[told]] if there else [])


@pytest.mark.parametrize("code", [exit_codes.LOST, exit_codes.NOT_RESTORED])
async def test_a_launcher_that_has_not_restored_is_heard_though_its_pod_ends_at_once(
    folder: Path, controller: FakeController, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The kubelet ends the sidecar as soon as the launcher is gone; the report takes longer, and is made once."""
    first = await World(folder, controller, workers=1, world_size=1).start()
    await first.stepped(3)
    await controller.command()
    await eventually("commit", lambda: controller.commits)
    await first.end()
    controller.next_attempt()
    tell = Controller.damage

    async def slowly(self: Controller, report: DamageReport, deadline: float) -> None:
        await asyncio.sleep(0.5)  # the time that it takes
        await tell(self, report, deadline)

    monkeypatch.setattr(Controller, "damage", slowly)
    second = await World(folder, controller, workers=1, world_size=1, attempt=2).start()
    await eventually("a plan", lambda: second.launchers[0].plan)
    for _ in range(2):
        await second.launchers[0].post(LauncherEvent("restore_failed", code=code, message="no such file"))
    await second.end()
    ref = controller.commits[0].checkpoint
    told = Damage(ref.id, "no such file", tried=True, passes=code == exit_codes.LOST)
    assert [report.damaged for report in controller.damage] == [[told]]
