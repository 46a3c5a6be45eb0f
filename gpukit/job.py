"""A job of real launchers, from attempt to attempt: pods in namespaces of their own, dumped, killed, restored."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from singularity_proxy.protocol import messages, names, page

from .conductor import Conductor, acquire
from .kit import Kit, PartError, environment
from .pod import ENV_FAKE

PROGRAMS = Path(__file__).parent / "programs"
_ENTER = r"""
mount --make-rprivate /
for folder in /*/; do  # what lies on a mount is not searched for files that the job changed, and never put back
  folder=${folder%/}
  [ "$folder" = /proc ] || mount --rbind "$folder" "$folder"
done
mount --rbind "$POD" "$PLACE"
mount -t proc proc /proc
exec "$PYTHON" -m gpukit.pod "$NAME" "$PLACE"
"""


class Pod:
    """One launcher with its ranks. Volumes lie in `folder`, which every pod sees at the same path, `place`."""

    def __init__(self, kit: Kit, folder: Path, place: Path, plan: messages.Plan, env: Mapping[str, str]) -> None:
        self.name, self.folder, self.ranks = folder.name, folder, plan.ranks
        for name in ("run", "work", "images", "source"):
            (folder / name).mkdir(parents=True)
        (folder / "agent").symlink_to(kit.root / "agent")
        self.conductor = Conductor(folder / "run", plan)
        self.output = folder / "output"
        self._kit, self._place, self._env = kit, place, env
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Pod:
        """Its launcher runs from here on."""
        words = environment() | dict(self._env)
        words |= {"POD": str(self.folder), "PLACE": str(self._place), "NAME": self.name, names.ENV_POD: self.name}
        words |= {"PYTHON": sys.executable}
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "sh", "-ec", _ENTER],
                env=words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return self

    def ended(self) -> str:
        """Why it can do nothing any more, "" while it lives."""
        code = None if self.process is None else self.process.poll()
        return "" if code is None else f"{self.name} has ended with code {code}:\n{self.log()[-1500:]}"

    def log(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def wait(self, *kinds: str, timeout: float, skip: int = 0) -> messages.LauncherEvent:
        try:
            return self.conductor.wait(kinds, timeout, self.ended, skip)
        except PartError as error:
            raise PartError(f"{error}\n{self.log()[-1500:]}" if self.name not in str(error) else str(error)) from None

    def image(self, checkpoint: str, rank: int) -> Path:
        return self.folder / "images" / checkpoint / f"rank-{rank}"

    def kill(self) -> None:
        """As a node that is lost: nothing in the pod runs on."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
        self.conductor.close()


class Job:
    """Ranks of one program of `gpukit/programs`. Every method that waits raises PartError.

    :param layout: ranks of each pod
    :param gpus: numbers of the GPUs of each pod, of the fake driver; default: all
    """

    def __init__(
        self, kit: Kit, name: str, program: str, arguments: Sequence[object], layout: Sequence[Sequence[int]],
        env: Mapping[str, str] | None = None, gpus: Sequence[Sequence[int]] | None = None,
        pod_env: Sequence[Mapping[str, str]] | None = None,
    ) -> None:  # fmt: skip
        self.kit = kit
        self.folder = kit.folder / name
        self.place = kit.folder / f"{name}-place"
        self.place.mkdir(parents=True)
        self.program = program
        self.world = sum(map(len, layout))
        # As torchrun starts it, also where it is one rank of a world.
        starter = ["-m", "torch.distributed.run"] if program == "world.py" else []
        argv = [sys.executable, *starter, program, *map(str, arguments)]
        self.env = {
            names.ENV_COMMAND: json.dumps(argv), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **(env or {}),
        }  # fmt: skip
        self.attempt, self.generation, self.checkpoint, self.step = 0, 0, "", 0
        self.pods: list[Pod] = []
        self.stopped: list[Pod] = []
        self._sequence = 0
        self._begin(layout, "fresh", gpus, pod_env)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.pods:
            pod.kill()

    @property
    def of_rank(self) -> dict[int, Pod]:
        return {rank: pod for pod in self.pods for rank in pod.ranks}

    def log(self) -> str:
        return "\n".join(f"--- {pod.name}\n{pod.log()}" for pod in self.pods)

    def stop(self, step: int, timeout: float = 120) -> None:
        """Barrier after at least `step` boundaries, and images of all ranks; they are stopped then."""
        self._sequence += 1
        self.generation = page.generation(self.attempt, self._sequence)
        self.checkpoint = f"c{self.attempt}-{self._sequence}"
        self.step = acquire(
            {rank: pod.conductor for rank, pod in self.of_rank.items()}, self.generation, step,
            min(timeout, self.kit.left), self._ended,
        )  # fmt: skip
        skip = {pod.name: len(pod.conductor.events) for pod in self.pods}
        for pod in self.pods:
            pod.conductor.command("dump", generation=self.generation, checkpoint_id=self.checkpoint)
        for pod in self.pods:
            event = pod.wait("dumped", "dump_failed", timeout=min(timeout, self.kit.left), skip=skip[pod.name])
            if event.kind == "dump_failed":
                raise PartError(event.message)

    def go_on(self) -> None:
        """In place, after `stop`: a periodic checkpoint."""
        port = free_port()
        for pod in self.pods:
            pod.conductor.page.acquire(self.generation, 0)
            pod.conductor.page.withdraw()
            pod.conductor.command("resume", generation=self.generation, master_addr="127.0.0.1", master_port=port)

    def move(
        self, layout: Sequence[Sequence[int]], gpus: Sequence[Sequence[int]] | None = None, timeout: float = 180,
        pod_env: Sequence[Mapping[str, str]] | None = None,
    ) -> float:  # fmt: skip
        """After `stop`: the pods are killed, their ranks restored in new ones; seconds until they have gone on."""
        self.stopped, before = list(self.pods), self.of_rank
        for pod in self.pods:
            pod.kill()
        began = time.monotonic()
        self._begin(layout, "restore", gpus, pod_env, before)
        for pod in self.pods:
            pod.wait("restored", timeout=min(timeout, self.kit.left))
        took = time.monotonic() - began
        for pod in self.stopped:
            shutil.rmtree(pod.folder, ignore_errors=True)
        return took

    def finish(self, timeout: float = 240) -> None:
        """Until the program has ended well everywhere."""
        deadline = time.monotonic() + min(timeout, self.kit.left)
        for pod in self.pods:
            assert pod.process is not None
            try:
                code = pod.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise PartError(f"{pod.name} had not ended in time:\n{pod.log()[-1500:]}") from None
            if code:
                raise PartError(pod.ended())

    def result(self, rank: int, file: str) -> str:
        """What rank `rank` has written into its working directory."""
        path = self.of_rank[rank].folder / "work" / f"rank-{rank}" / "cwd" / file
        try:
            return path.read_text()
        except OSError as error:
            raise PartError(f"rank {rank} has left no {file}: {error}") from None

    def _ended(self) -> str:
        return next((why for pod in self.pods if (why := pod.ended())), "")

    def _begin(
        self, layout: Sequence[Sequence[int]], mode: str, gpus: Sequence[Sequence[int]] | None,
        pod_env: Sequence[Mapping[str, str]] | None, before: Mapping[int, Pod] | None = None,
    ) -> None:  # fmt: skip
        self.attempt += 1
        port = free_port()
        self.pods = []
        self._sequence = 0
        for number, ranks in enumerate(layout):
            plan = messages.Plan(
                mode, self.attempt, self.world, [*ranks], "127.0.0.1", port,  # type: ignore[arg-type]
                self.generation if before else 0, self.checkpoint if before else "",
            )  # fmt: skip
            env = dict(self.env)
            if self.kit.fake:
                env[ENV_FAKE] = ",".join(map(str, gpus[number] if gpus else range(4)))
            elif gpus:
                env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus[number]))
            env |= dict(pod_env[number]) if pod_env else {}
            pod = Pod(self.kit, self.folder / f"attempt-{self.attempt}-pod-{number}", self.place, plan, env)
            self.pods.append(pod)
            for source in PROGRAMS.glob("*.py"):
                shutil.copy(source, pod.folder / "source")
            for rank in ranks if before else ():
                target = pod.image(self.checkpoint, rank)
                target.parent.mkdir(parents=True, exist_ok=True)
                assert before is not None
                os.rename(before[rank].image(self.checkpoint, rank), target)  # noqa: PTH104 - a folder
        for pod in self.pods:
            pod.start()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
