"""Outputs of a program that moves: real launcher, CRIU, and a sidecar as a process of its own without capabilities."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mesh_world import TOKEN, FakeController, eventually, free_port
from pod_harness import Pod

from singularity_proxy.protocol import names
from singularity_proxy.store.outputs import Outputs

pytestmark = pytest.mark.criu
SIDECAR = """
import asyncio, signal, sys
from dataclasses import replace
from pathlib import Path
from singularity_proxy.sidecar import config, sidecar

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await sidecar.run(replace(config.from_env(), root=Path(sys.argv[1]), mesh_port=int(sys.argv[2])), stop)

asyncio.run(main())
"""
PROGRAM = """
import os, time
out = os.environ["OUTPUTS"]
os.umask(0o077)
data = open(os.environ["INPUTS"] + "/data/words")
first = data.readline()
os.mkdir(out + "/curves")
open(out + "/curves/loss", "w").write("1.0 ")
while not os.path.exists("end"):
    time.sleep(0.01)
open(out + "/curves/loss", "a").write("0.5")
open(out + "/read", "w").write(first + data.readline())
open(out + "/model", "wb").write(b"weights" * 100000)
os.symlink("/etc/passwd", out + "/link")
"""


def start_sidecar(pod: Pod, folder: Path, controller: FakeController, attempt: int) -> subprocess.Popen[bytes]:
    checkpoint = controller.checkpoint
    env = {
        names.ENV_NAMESPACE: "team", names.ENV_JOB: "train", names.ENV_POD: f"train-0-{attempt}",
        names.ENV_POD_IP: "127.0.0.1", names.ENV_INDEX: "0", names.ENV_ATTEMPT: str(attempt), names.ENV_WORKERS: "1",
        names.ENV_WORLD_SIZE: "1", names.ENV_STORE: f"file://{folder}/store", names.ENV_CONTROLLER_URL: controller.url,
        names.ENV_CONTROLLER_CA: controller.pem, names.ENV_TOKEN_FILE: str(folder / "token"),
        names.ENV_CHECKPOINT: checkpoint.id if checkpoint else "",
    }  # fmt: skip
    short = folder / f"pod-{attempt}"  # the path of a socket has an end
    short.symlink_to(pod.volumes)
    argv = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", SIDECAR]
    with (pod.folder / "sidecar.log").open("wb") as log:
        return subprocess.Popen(
            [*argv, str(short), str(free_port())], env={**os.environ, **env}, stdout=log, stderr=log
        )


async def ended(pod: Pod, sidecar: subprocess.Popen[bytes]) -> int:
    code = await asyncio.to_thread(pod.wait, 90)
    sidecar.terminate()
    await asyncio.to_thread(sidecar.wait, 30)
    return code


async def test_what_a_user_wrote_before_and_after_a_move_is_stored_once(
    folder: Path,
    controller: FakeController,
    make_pod: Callable[..., Pod],
    rootfs: Path,
    criu_bundle: Path,
) -> None:
    (folder / "token").write_text(TOKEN)
    controller.outputs = f"file://{folder}/outputs"
    (folder / "data").mkdir()
    (folder / "data/words").write_text("before\nafter\n")
    controller.inputs = {"data": f"file://{folder}/data"}
    place = Outputs(controller.outputs)
    env = {names.ENV_INPUTS: names.INPUTS_DIR, names.ENV_RUN_AS: "1000:1000:", names.ENV_GRACE: "60"}

    def pod(name: str) -> Pod:
        made = make_pod(
            name, plan=None, command=["python3", "job.py"], rootfs=rootfs, torch=None, criu=criu_bundle, env=env
        )
        (made.volumes / "source/job.py").write_text(PROGRAM)
        (made.volumes / "inputs").mkdir()
        return made

    first = pod("first")
    sidecar = start_sidecar(first, folder, controller, 1)
    first.start()
    loss = first.work(0) / names.OUTPUTS_DIR / "curves/loss"
    await eventually("it has written", loss.exists, 60)
    await controller.command(60)
    await eventually("commit", lambda: controller.commits, 60)
    first.terminate()
    assert await ended(first, sidecar) == 143, first.log()
    assert place.manifest() is None and controller.stored == []

    controller.next_attempt()
    second = pod("second")
    sidecar = start_sidecar(second, folder, controller, 2)
    second.start()
    loss = second.work(0) / names.OUTPUTS_DIR / "curves/loss"
    await eventually("it is restored", loss.exists, 60)
    (second.work(0) / "cwd/end").touch()
    assert await ended(second, sidecar) == 0, second.log() + (second.folder / "sidecar.log").read_text()
    manifest = place.manifest()
    assert manifest is not None and manifest.attempt == 2
    assert manifest.checkpoint == controller.commits[0].checkpoint.id
    assert {file.path: file.size for file in manifest.files} == {
        "curves/loss": 7, "model": 700000, "read": 13,
    }  # fmt: skip
    assert (folder / "outputs/read").read_text() == "before\nafter\n", "each pod has the inputs before its ranks"
    assert (folder / "outputs/curves/loss").read_text() == "1.0 0.5"
    assert [(left.path, left.why) for left in manifest.left_out] == [("link", "neither file nor folder")]
    assert [(told.url, told.files) for told in controller.stored] == [(controller.outputs, 3)]
