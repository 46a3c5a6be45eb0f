"""Jobs of real launchers, agents and CRIU in containers without a cluster; the benchmark is their coordinator.

The barrier runs by the product's own ratchet over the product's barrier pages; the mesh between sidecars of several
pods, which adds a round trip or two on the pod network, is not part of these figures.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.prepare import Prepared
from proxy.protocol import messages, page

from .harness import Coordinator, Pod, collect_criu
from .world import free_port, prefer

RANKS = 4
POLL_S = 0.002


@dataclass(frozen=True)
class Stop:
    """One stop. Seconds; `steps`: mini-batches that the ranks were let go on after the request."""

    barrier_s: float
    steps: int
    dump_s: float


class Job:
    """Attempts of one job of RANKS ranks.

    :param width: size of the model (`train_wide.py`)
    :param workers: data loader workers per rank
    """

    def __init__(self, made: Prepared, width: int, workers: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._made = made
        self._command = ["python3", "train_wide.py", str(width), str(workers)]
        self._criu = self.folder / "criu"
        collect_criu(made.rootfs, self._criu)
        self.attempt = 0
        self.pods: list[Any] = []
        self.generation = 0

    # --- attempts ---------------------------------------------------------------------------------------------------
    def start(self, pods: int) -> None:
        """A new attempt on so many pods: fresh, or from the images of the attempt before, which lie there already."""
        before, self.attempt = self.pods, self.attempt + 1
        port, share = free_port(), RANKS // pods
        self.pods = []
        for index in range(pods):
            ranks = list(range(index * share, (index + 1) * share))
            plan = messages.Plan("fresh", self.attempt, RANKS, ranks, "127.0.0.1", port)
            if before:
                images = self.generation, self.checkpoint
                plan = messages.Plan("restore", self.attempt, RANKS, ranks, "127.0.0.1", port, *images)
            pod = Pod(
                self.folder / f"attempt-{self.attempt}-{index}",
                rootfs=self._made.rootfs,
                torch=self._made.torch,
                plan=plan,
                command=self._command,
                env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
                criu=self._criu,
            )
            shutil.copy(Path(__file__).parent / "programs/train_wide.py", pod.volumes / "source/train_wide.py")
            self.pods.append(pod)
            for rank in ranks if before else []:
                pod.bring(self._owner(before, rank), self.checkpoint, rank)
        for pod in before:
            pod.delete()
            shutil.rmtree(pod.folder, ignore_errors=True)
        for pod in self.pods:
            pod.start()
            prefer(pod.process.pid)

    @staticmethod
    def _owner(pods: Sequence[Any], rank: int) -> Any:
        return pods[rank * len(pods) // RANKS]

    @property
    def checkpoint(self) -> str:
        """Id of the last one."""
        return f"c{self.generation}"

    def images(self) -> list[Path]:
        """Folders of the last dump, one per rank."""
        return [self._owner(self.pods, rank).image(self.checkpoint, rank) for rank in range(RANKS)]

    # --- the ranks ----------------------------------------------------------------------------------------------------
    def coordinator(self) -> Any:
        return Coordinator({rank: self._owner(self.pods, rank).sidecar for rank in range(RANKS)})

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

    def stop(self) -> Stop:
        """Barrier and dump of all ranks, which stand still afterwards."""
        self.generation = page.generation(self.attempt, self.generation % page.GENERATIONS_PER_ATTEMPT + 1)
        coordinator = self.coordinator()
        before, began = max(self.counts()), time.monotonic()
        step = coordinator.acquire(self.generation, timeout=120)
        acquired = time.monotonic()
        skip = [len(pod.sidecar.events) for pod in self.pods]
        for pod in self.pods:
            pod.sidecar.command("dump", generation=self.generation, checkpoint_id=self.checkpoint)
        for pod, seen in zip(self.pods, skip, strict=True):
            event = pod.wait_event("dumped", "dump_failed", skip=seen)
            if event.kind != "dumped":
                raise RuntimeError(f"{event.message}\n{pod.log()[-2000:]}")
        return Stop(acquired - began, step - before, time.monotonic() - acquired)

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


