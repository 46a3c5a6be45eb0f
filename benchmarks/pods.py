"""Jobs of real launchers, agents and CRIU in containers without a cluster; the benchmark is their coordinator.

The barrier runs by the product's own ratchet over the product's barrier pages. These figures leave out the mesh between
sidecars of several pods, which adds a round trip or two on the pod network.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukit.build import collect_agent
from localcluster.prepare import Prepared
from singularity_proxy.protocol import messages, page

from .harness import Coordinator, Pod
from .machine import CpuMeter
from .world import PROGRAMS, free_port

RANKS = 4
POLL_S = 0.002


@dataclass(frozen=True)
class Stop:
    """One stop. Seconds; `steps`: mini-batches that the ranks were let go on after the request."""

    barrier_s: float
    steps: int
    dump_s: float
    dump_cpu_s: float
    """CPU time of all processes of all pods, of the dump alone."""


class Job:
    """Attempts of one job of RANKS ranks.

    :param program: the script below `programs/` that every rank runs, and its arguments
    :param ranks: how many
    :param env: variables of the ranks, besides
    :param uids: first uid of this machine that is the containers', which have a user namespace then
    """

    def __init__(
        self,
        made: Prepared,
        program: Sequence[str],
        ranks: int = RANKS,
        uids: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.ranks = ranks
        self._uids, self._env = uids, env or {}
        self._made = made
        self._program = PROGRAMS / program[0]
        self._command = ["python3", self._program.name, *program[1:]]
        self._criu = self.folder / "agent"
        collect_agent(made.rootfs, self._criu)
        self.attempt = 0
        self.pods: list[Any] = []
        self.generation = 0
        self.cpu = CpuMeter("bench")

    # --- attempts ---------------------------------------------------------------------------------------------------
    def start(self, pods: int, bring: Callable[[Mapping[int, Path]], None] | None = None) -> None:
        """A new attempt on so many pods: fresh, or from the images of the attempt before.

        :param bring: puts the image of each rank where it belongs; None: they are copied from the pods before
        """
        before, self.attempt = self.pods, self.attempt + 1
        port, share = free_port(), self.ranks // pods
        self.pods = []
        for index in range(pods):
            ranks = list(range(index * share, (index + 1) * share))
            plan = messages.Plan("fresh", self.attempt, self.ranks, ranks, "127.0.0.1", port)
            if before:
                images = self.generation, self.checkpoint
                plan = messages.Plan("restore", self.attempt, self.ranks, ranks, "127.0.0.1", port, *images)
            pod = Pod(
                self.folder / f"attempt-{self.attempt}-{index}",
                rootfs=self._made.rootfs,
                torch=self._made.torch,
                plan=plan,
                command=self._command,
                env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **self._env},
                criu=self._criu,
                uids=self._uids,
            )
            shutil.copy(self._program, pod.volumes / "source")
            self.pods.append(pod)
            if before and bring is not None:
                bring({rank: pod.image(self.checkpoint, rank) for rank in ranks})
            elif before:
                for rank in ranks:
                    pod.bring(self._owner(before, rank), self.checkpoint, rank)
        for pod in before:
            pod.delete()
            shutil.rmtree(pod.folder, ignore_errors=True)
        for pod in self.pods:
            pod.start()
            self.cpu.add(pod.process.pid)

    def _owner(self, pods: Sequence[Any], rank: int) -> Any:
        return pods[rank * len(pods) // self.ranks]

    def restored(self) -> None:
        """Until all pods have restored their ranks. Raises RuntimeError."""
        for pod in self.pods:
            event = pod.wait_event("restored", "restore_failed")
            if event.kind != "restored":
                raise RuntimeError(f"{event.message}\n{pod.log()[-2000:]}")

    @property
    def checkpoint(self) -> str:
        """Id of the last one."""
        return f"c{self.generation}"

    def images(self) -> list[Path]:
        """Folders of the last dump, one per rank."""
        return [self._owner(self.pods, rank).image(self.checkpoint, rank) for rank in range(self.ranks)]

    # --- the ranks ----------------------------------------------------------------------------------------------------
    def coordinator(self) -> Any:
        return Coordinator({rank: self._owner(self.pods, rank).sidecar for rank in range(self.ranks)})

    def alive(self) -> bool:
        return all(pod.alive() for pod in self.pods)

    def counts(self) -> list[int]:
        return [view.count for view in self.coordinator().views()]

    def wait_step(self, step: int) -> float:
        """Until every rank has passed `step` boundaries; the time at which it was so."""
        try:
            self.coordinator().wait_count(step, timeout=300, alive=self.alive)
        except AssertionError as error:
            raise RuntimeError(f"{error}\n" + "\n".join(pod.log()[-2000:] for pod in self.pods)) from None
        return time.monotonic()

    def stop(
        self,
        dumping: Callable[[Sequence[Path]], object] = lambda images: None,
        before: Callable[[Sequence[Path]], object] | None = None,
    ) -> Stop:
        """Barrier and dump of all ranks, which stand still afterwards.

        :param dumping: called when the dump begins, with the folders of the images, one per rank
        :param before: called likewise before it begins. It makes the sockets that the pages are streamed to
        """
        self.generation = page.generation(self.attempt, self.generation % page.GENERATIONS_PER_ATTEMPT + 1)
        coordinator = self.coordinator()
        done, began = max(self.counts()), time.monotonic()
        step = coordinator.acquire(self.generation, timeout=120)
        barrier_s = time.monotonic() - began
        if before is not None:
            before(self.images())
        acquired, cpu = time.monotonic(), self.cpu.seconds()
        skip = [len(pod.sidecar.events) for pod in self.pods]
        for pod in self.pods:
            fields = {"generation": self.generation, "checkpoint_id": self.checkpoint, "stream": before is not None}
            pod.sidecar.command("dump", **fields)
        dumping(self.images())
        for pod, seen in zip(self.pods, skip, strict=True):
            event = pod.wait_event("dumped", "dump_failed", skip=seen)
            if event.kind != "dumped":
                raise RuntimeError(f"{event.message}\n{pod.log()[-2000:]}")
        return Stop(barrier_s, step - done, time.monotonic() - acquired, self.cpu.seconds() - cpu)

    def go_on(self) -> None:
        """The ranks continue where they are."""
        port = free_port()
        for pod in self.pods:
            pod.sidecar.page.publish(0, 0, self.generation)
            fields = {"generation": self.generation, "master_addr": "127.0.0.1", "master_port": port}
            pod.sidecar.command("resume", **fields)

    def forget_images(self) -> None:
        for path in self.images():
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        for pod in self.pods:
            pod.delete()
        self.cpu.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def bytes_of(folders: Sequence[Path]) -> int:
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def copy(folders: Sequence[Path], target: Path) -> None:
    """`cp` of what the store gets, on the disk when it returns, as the store's put is. Raises CalledProcessError."""
    target.mkdir(parents=True)
    subprocess.run(["cp", "-r", *map(str, folders), str(target)], check=True)
    files = [str(path) for path in target.rglob("*") if path.is_file()]
    subprocess.run(["sync", "--data", *files], check=True)
