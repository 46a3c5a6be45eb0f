"""A whole attempt in processes of its own: real launchers in containers with CRIU, real sidecars, ranks that step.

Each of them can be killed, the wire between the sidecars be cut, at a point where everything is held. The test itself
plays the controller (`mesh_world.FakeController`), the kubelet (starts a sidecar anew) and the Job (the next attempt).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from mesh_world import TOKEN, FakeController, free_port
from pod_failure_policy import action
from pod_harness import Pod, stand_in
from waits import LIMIT_S, eventually

from kueue_integration.contract import job_names
from kueue_integration.manifests.job_manifests import failure_rules
from singularity_proxy.protocol import exit_codes, names

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
GRACE = "30"
"""Seconds. A pod that cannot be saved waits for all of it: twice the time after which a lost leader is given up."""
LAUNCHER = Path(job_names.LAUNCHER).parent
CRIU = str(LAUNCHER / "criu").encode()
"""In the command line of a CRIU, also while it is held."""
LOADER = f"""#!{LAUNCHER}/busybox sh
case ${{6-}} in */criu)
  if [ -e OWN/hold-$7 ]; then
    : > OWN/at-$7
    while [ -e OWN/hold-$7 ]; do {LAUNCHER}/busybox sleep 0.05; done
  fi
esac
exec {LAUNCHER}/loader "$@"
"""
"""In the place of the loader of the launcher's tools: CRIU may have to wait."""


class Wire:
    """What a follower takes for its leader: passes everything on, can be cut, and can keep one answer back."""

    def __init__(self, leader_port: int) -> None:
        self._to = leader_port
        self.port = 0
        self.cuts = 0
        """Connections that were cut or refused."""
        self.hold_answer = b""
        """Nothing more comes from the leader once an answer has this in it."""
        self.held = asyncio.Event()
        self._go = asyncio.Event()
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Wire:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def cut(self) -> None:
        self._is_cut = True
        self.cuts += len(self._writers)
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    def release(self) -> None:
        self.hold_answer = b""
        self._go.set()

    def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            self.cuts += 1
            writer.transport.abort()
            return
        try:
            up, out = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, out}
        self._writers |= both
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pass(reader, out), self._pass(up, writer, True))
        self._writers -= both

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool = False) -> None:
        try:
            while data := await reader.read(1 << 16):
                if answers and self.hold_answer and self.hold_answer in data:
                    self.held.set()
                    await self._go.wait()
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


class Worker:
    """One pod of an attempt."""

    def __init__(self, attempt: Attempt, index: int, mesh_port: int, holding: str = "") -> None:
        job = attempt.job
        self.index, self._mesh_port = index, mesh_port
        self.shared = attempt.shared / str(index)
        self.shared.mkdir(parents=True)
        folder = job.folder / f"a{attempt.number}p{index}"
        agent = job.folder / f"a{attempt.number}p{index}-agent"
        shutil.copytree(job.agent, agent, copy_function=os.link)
        stand_in(agent, LOADER.replace("OWN", f"/shared/{index}"))
        command, env = ["python3", "stepper.py"], {names.ENV_GRACE: GRACE}
        self.pod = Pod(folder, job.rootfs, None, None, command, env, shared=attempt.shared, criu=agent)
        shutil.copy(HERE / "stepper.py", self.pod.volumes / "source/stepper.py")
        checkpoint = job.controller.checkpoint
        self._env = {
            **os.environ, "PYTHONPATH": str(REPOSITORY), names.ENV_NAMESPACE: "team",
            names.ENV_JOB: "train", names.ENV_POD: f"train-{index}", names.ENV_POD_IP: "127.0.0.1",
            names.ENV_INDEX: str(index), names.ENV_ATTEMPT: str(attempt.number), names.ENV_WORKERS: "2",
            names.ENV_WORLD_SIZE: "2", names.ENV_STORE: f"file://{job.folder}/store",
            names.ENV_CONTROLLER_URL: job.controller.url, names.ENV_CONTROLLER_CA: job.controller.pem,
            names.ENV_TOKEN_FILE: str(job.folder / "token"), names.ENV_CHECKPOINT: checkpoint.id if checkpoint else "",
        }  # fmt: skip
        self._env["HOLD"] = str(self.shared)
        self._said = folder / "sidecar.log"
        if holding:
            self.hold(holding)
        self.sidecar: subprocess.Popen[bytes]
        self.start_sidecar()
        self.pod.start()

    def start_sidecar(self) -> None:
        with self._said.open("ab") as out:
            command = [sys.executable, str(HERE / "sidecar_process.py"), str(self._mesh_port), str(self.pod.volumes)]
            self.sidecar = subprocess.Popen(command, env=self._env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def log(self) -> str:
        said = self._said.read_text(errors="replace")
        return f"--- launcher {self.index}\n{self.pod.log()}--- sidecar {self.index}\n{said}"

    @property
    def numbers(self) -> Path:
        return self.pod.work(self.index) / "cwd/numbers"

    def steps(self) -> int:
        return self.numbers.read_bytes().count(b"\n") if self.numbers.exists() else 0

    def hold(self, point: str) -> None:
        (self.shared / f"hold-{point}").touch()

    def holds(self, point: str) -> bool:
        return (self.shared / f"at-{point}").exists()

    def release(self) -> None:
        for path in self.shared.glob("hold-*"):
            path.unlink()

    def processes(self, word: bytes) -> list[int]:
        """PIDs of this pod's processes with `word` in their command line, as this process sees them."""
        space = Path(f"/proc/{self.pod.launcher_pid()}/ns/uts").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                here = entry.name.isdigit() and (entry / "ns/uts").readlink() == space
                if here and word in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def exit_code(self) -> int:
        """The container's, as the kubelet would see it. A launcher that says none was killed, and with it `unshare`."""
        self.pod.wait()
        said = re.findall(r"^\[launcher\] exit code (\d+)$", self.pod.log(), re.MULTILINE)
        return int(said[-1]) if said else exit_codes.KILLED

    def delete(self) -> None:
        self.sidecar.kill()
        self.sidecar.wait(30)
        self.pod.delete()


class Attempt:
    def __init__(self, job: Job, number: int, wire: Wire, port: int, holding: Mapping[int, str]) -> None:
        self.job, self.number, self.wire = job, number, wire
        self.shared = job.folder / f"shared-{number}"
        """A volume of both pods."""
        self.workers = [Worker(self, i, p, holding.get(i, "")) for i, p in enumerate((port, wire.port))]

    async def until(self, what: str, condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        logs = lambda: "\n".join(worker.log() for worker in self.workers)  # noqa: E731
        await eventually(condition, what, limit_s=limit_s, detail=logs)

    async def stepped(self, more: int) -> None:
        """Until every rank has made `more` steps more."""
        goals = [worker.steps() + more for worker in self.workers]
        for worker, goal in zip(self.workers, goals, strict=True):
            await self.until(f"step {goal} of rank {worker.index}", lambda w=worker, g=goal: w.steps() >= g)

    def judged(self) -> dict[int, str]:
        """Pod -> what the Job does with it, by the pod failure policy that every Job has; of the pods that have ended.

        AssertionError where that is the end of the job: nothing here is the program's fault.
        """
        rules, found = failure_rules(), {}
        for worker in self.workers:
            if not worker.pod.alive():
                code = worker.exit_code()
                found[worker.index] = action(rules, code)
                assert found[worker.index] != "FailJob", f"pod {worker.index} ended with code {code}\n{worker.log()}"
        return found

    async def end(self) -> None:
        """The pods are deleted, with their grace period."""
        for worker in self.workers:
            if worker.pod.alive():
                worker.pod.terminate()
        await self.until("the pods end", lambda: not any(worker.pod.alive() for worker in self.workers))
        assert "Complete" not in self.judged().values(), "the next attempt would lack the ranks of a complete pod"
        self.delete()

    def delete(self) -> None:
        for worker in self.workers:
            worker.delete()
        self.wire.close()


class Job:
    """Two ranks in two pods, attempt after attempt."""

    def __init__(self, folder: Path, controller: FakeController, rootfs: Path, agent: Path) -> None:
        self.folder, self.controller, self.rootfs, self.agent = folder, controller, rootfs, agent
        self._attempts: list[Attempt] = []
        (folder / "token").write_text(TOKEN)

    async def attempt(self, holding: Mapping[int, str] = MappingProxyType({})) -> Attempt:
        """Start the next one. :param holding: pod -> point at which it is to stand"""
        number = len(self._attempts) + 1
        controller = self.controller
        controller.attempt, controller.leader_ip, controller.ended = number, "", False
        controller.commands.clear()
        port = free_port()
        made = Attempt(self, number, await Wire(port).start(), port, holding)
        self._attempts.append(made)
        return made

    async def complete(self, attempt: Attempt) -> None:
        """Let the ranks come to their end, and look at what they have written over all attempts."""
        await attempt.stepped(20)
        (attempt.shared / "end").touch()
        await attempt.until("all pods end", lambda: not any(worker.pod.alive() for worker in attempt.workers))
        assert set(attempt.judged().values()) == {"Complete"}
        for worker in attempt.workers:
            assert worker.pod.wait() == 0, worker.log()
            lines = worker.numbers.read_text().splitlines()
            assert lines == [*(f"{n} {n}" for n in range(1, len(lines))), "end"], (
                "a step is lost, doubled or misnumbered"
            )

    def delete(self) -> None:
        for attempt in self._attempts:
            attempt.delete()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
