"""Two sidecars commit over a store that one of them does not reach well: a checkpoint is there whole, or not at all.

Sidecars are processes of their own, each with its own proxy before one server of Google Cloud Storage's protocol.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import waits
from faulty_proxy import FaultyProxy
from mesh_world import FakeController, World
from store_samples import JOB, MIB, NAMESPACE

from singularity_proxy.protocol import names
from singularity_proxy.store import Store

SAVE_S = 90.0
"""Time that the controller gives for a checkpoint."""
FULL = pytest.mark.full
HERE = Path(__file__).parent


class Processes(World):
    """Two pods of a rank each."""

    def __init__(
        self, folder: Path, controller: FakeController, server: str, store: str, attempt: int = 1, **env: str
    ) -> None:
        super().__init__(folder, controller, 2, 2, attempt)
        self._env = env
        self.configs = [replace(config, store=store) for config in self.configs]
        self.proxies = [FaultyProxy(urlsplit(server).port or 0) for _ in self.configs]
        self._logs = [folder / f"sidecar-{attempt}-{config.index}.log" for config in self.configs]
        self._processes = [self._sidecar(index) for index in range(2)]
        self.launch()
        for launcher in self.launchers:
            launcher.own_bytes = 4 * MIB

    def _sidecar(self, index: int) -> subprocess.Popen[bytes]:
        config = self.configs[index]
        env = {
            **os.environ, "PYTHONPATH": str(HERE.parents[2]), "STORAGE_EMULATOR_HOST": self.proxies[index].url,
            names.ENV_NAMESPACE: config.namespace, names.ENV_JOB: config.job,
            names.ENV_POD: config.pod, names.ENV_POD_IP: config.pod_ip, names.ENV_INDEX: str(index),
            names.ENV_ATTEMPT: str(config.attempt), names.ENV_WORKERS: "2", names.ENV_WORLD_SIZE: "2",
            names.ENV_STORE: config.store,
            names.ENV_CONTROLLER_URL: config.controller_url, names.ENV_CONTROLLER_CA: config.controller_ca,
            names.ENV_TOKEN_FILE: str(config.token_file), names.ENV_CHECKPOINT: config.checkpoint, **self._env,
        }  # fmt: skip
        command = [sys.executable, str(HERE / "sidecar_process.py"), str(config.mesh_port), str(config.root)]
        with self._logs[index].open("ab") as out:
            return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def kill(self, index: int) -> None:
        """A sidecar is killed and started anew, as the kubelet does."""
        self._processes[index].kill()
        assert self._processes[index].wait(120) == -signal.SIGKILL
        self._processes[index] = self._sidecar(index)

    def log(self, index: int) -> str:
        return self._logs[index].read_text(errors="replace")

    async def until(self, what: str, condition: Callable[[], object], limit_s: float = waits.LIMIT_S) -> None:
        said = lambda: "\n".join(f"--- sidecar {index}\n{self.log(index)}" for index in range(2))  # noqa: E731
        await waits.eventually(condition, what, limit_s=limit_s, detail=said)

    async def trains_on(self) -> None:
        at = max(rank.boundary.count for rank in self.ranks)
        await self.until("the ranks train on", lambda: all(rank.boundary.count > at + 10 for rank in self.ranks))

    async def committed(self, controller: FakeController, count: int) -> str:
        """Id of the checkpoint that is asked for now and becomes the `count`th that is committed."""
        await controller.command(SAVE_S, then="continue")
        await self.until("a commit", lambda: len(controller.commits) == count)
        await self.trains_on()
        return controller.commits[-1].checkpoint.id

    async def end(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        await super().end()
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait(120)


@pytest.fixture
async def world(folder: Path, controller: FakeController, gcs_server: str, gs_url: str) -> AsyncIterator[Processes]:
    world = Processes(folder, controller, gcs_server, gs_url)
    await world.until("steps", lambda: len(world.ranks) == 2 and all(r.boundary.count >= 5 for r in world.ranks))
    yield world
    await world.end()


def whole(url: str) -> list[str]:
    """Ids of all checkpoints of the store, oldest first, each of which must have all it names."""
    store = Store(url)
    found = []
    for listing in reversed(store.list_checkpoints(NAMESPACE, JOB)):
        assert listing.manifest is not None, listing.problem
        assert [image.rank for image in listing.manifest.ranks] == [0, 1] and store.verify(listing.manifest) == []
        found.append(listing.id)
    return found


@pytest.mark.parametrize("pod", [pytest.param(0, id="leader", marks=FULL), pytest.param(1, id="follower")])
async def test_a_store_that_is_down_for_one_pod_past_the_budget(
    world: Processes, controller: FakeController, gs_url: str, pod: int
) -> None:
    before = await world.committed(controller, 1)
    world.proxies[pod].fail("503", after=MIB, spreads=True)  # in the middle of its upload
    await controller.command(15.0, then="continue")
    await world.until("the checkpoint is given up", lambda: controller.failures)
    assert world.proxies[pod].fired["503"] >= 2
    assert len(controller.commits) == 1 and whole(gs_url) == [before]
    await world.trains_on()
    world.proxies[pod].heal()
    after = await world.committed(controller, 2)
    assert whole(gs_url) == [before, after]


@pytest.mark.parametrize(("fault", "least"), [("503", 4), pytest.param("cut", 2, marks=FULL)])
async def test_a_store_that_fails_for_one_pod_within_the_budget(
    world: Processes, controller: FakeController, gs_url: str, fault: str, least: int
) -> None:
    proxy = world.proxies[1]
    proxy.fail(fault, after=MIB, times=1 << 30 if fault == "503" else least, spreads=fault == "503")
    await controller.command(SAVE_S, then="continue")
    await asyncio.to_thread(proxy.wait_fired, fault, least)
    assert not controller.commits, "one of two pods has stored nothing yet"
    proxy.heal()
    await world.until("a commit", lambda: controller.commits)
    await world.trains_on()
    assert (len(controller.commits), len(controller.failures)) == (1, 0)
    assert whole(gs_url) == [controller.commits[0].checkpoint.id]


@pytest.mark.full
@pytest.mark.parametrize("pod", [pytest.param(0, id="leader"), pytest.param(1, id="follower")])
async def test_a_sidecar_killed_in_the_midst_of_its_upload(
    world: Processes, controller: FakeController, gs_url: str, pod: int
) -> None:
    """Its images are there still: they are stored by the one that is started in its place, or by a second stop."""
    before = await world.committed(controller, 1)
    proxy = world.proxies[pod]
    begun = proxy.received
    proxy.rate = 5e5
    await controller.command(SAVE_S, then="continue")
    del controller.commands[0]  # it has been done: a leader that is started anew asks for all
    await world.until("it uploads", lambda: proxy.received > begun + MIB)
    world.kill(pod)
    assert len(controller.commits) == 1
    proxy.rate = 0.0
    await world.until("a commit", lambda: len(controller.commits) == 2)
    await world.trains_on()
    assert whole(gs_url) == [before, controller.commits[-1].checkpoint.id]


@pytest.mark.full
@pytest.mark.parametrize("fault", ["503", "cut"])
async def test_the_manifest_meets_a_store_that_fails(
    world: Processes, controller: FakeController, gs_url: str, fault: str
) -> None:
    """Both pods have stored their images; down past the budget, or cut off twice in the middle of a word."""
    before = await world.committed(controller, 1)
    world.proxies[1].rate = 2e5  # the follower is slow, so that the leader is through when the fault comes
    await controller.command(35.0 if fault == "503" else SAVE_S, then="continue")
    await world.until("the leader has uploaded", lambda: world.log(0).count("uploaded train-a1") == 2)
    world.proxies[0].fail(fault, times=1 << 30 if fault == "503" else 2)
    world.proxies[1].rate = 0.0
    if fault == "503":
        await world.until("the checkpoint is given up", lambda: controller.failures)
        assert "the images of step" in controller.failures[0].message
        assert len(controller.commits) == 1 and whole(gs_url) == [before]
        world.proxies[0].heal()
        await world.trains_on()
        await world.committed(controller, 2)
    else:
        await world.until("a commit", lambda: len(controller.commits) == 2)
        await world.trains_on()
        assert world.proxies[0].fired["cut"] == 2 and not controller.failures
    last = [commit.checkpoint.id for commit in controller.commits]
    assert last == whole(gs_url) and len(set(last)) == 2, "the one that was given up is not in the store"
