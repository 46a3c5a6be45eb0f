"""Ranks of one world without a launcher: real processes with the agent in them, real torch, no CRIU.

Stops go as far as they go in memory: barrier, freeze (communication is dropped), the word to go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fake_sidecar import Coordinator, Page
from pod_harness import install_agent
from pod_moves import free_port
from waits import LIMIT_S, cpu_s, until

from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.snapshot import rank_dump
from singularity_proxy.protocol import names

ENTER = r"""
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
mkdir -p /mnt/root/opt/torch /mnt/root/dev /mnt/root/proc "/mnt/root$FOLDER"
mount --bind "$TORCH" /mnt/root/opt/torch
mount --bind /dev /mnt/root/dev
mount --bind /proc /mnt/root/proc
mount --bind "$FOLDER" "/mnt/root$FOLDER"
exec chroot /mnt/root sh -c 'cd "$1"; shift; exec "$@"' sh "$PWD" python3 "$@"
"""


class Ranks:
    """:param command: script and its arguments
    :param env: for all ranks; values may be a list, one for each rank
    :param rootfs: where python3 is, with `torch`; None: this interpreter has torch
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        world: int,
        env: Mapping[str, str | Sequence[str]],
        rootfs: Path | None = None,
        torch: Path | None = None,
    ) -> None:
        self.folder, self.world = folder, world
        self._paths = Paths(folder)
        lib = folder / "lib"
        install_agent(lib)
        (folder / "run").mkdir(parents=True, exist_ok=True)
        self.page = Page(folder / "run", world)
        self.coordinator = Coordinator(dict.fromkeys(range(world), self))  # type: ignore[arg-type]
        port = str(free_port())
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(world):
            self._paths.control(rank).mkdir()
            self.cwd(rank).mkdir()
            given = {name: value if isinstance(value, str) else value[rank] for name, value in env.items()}
            words = {
                "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
                names.ENV_RANK_DIR: str(self._paths.control(rank)),
                "PYTHONPATH": f"{lib}:/opt/torch" if rootfs else str(lib), **given,
            }  # fmt: skip
            argv = [sys.executable, *command]
            if rootfs is not None:
                words |= {"ROOTFS": str(rootfs), "TORCH": str(torch), "FOLDER": str(folder)}
                argv = ["unshare", "--mount", "sh", "-ec", ENTER, "sh", *command]
            with self.output(rank).open("wb") as out:
                self._processes.append(
                    subprocess.Popen(
                        argv, env={"PATH": os.environ["PATH"], **words}, cwd=self.cwd(rank), stdin=subprocess.DEVNULL,
                        stdout=out, stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip

    def cwd(self, rank: int) -> Path:
        return self.folder / f"cwd-{rank}"

    def output(self, rank: int) -> Path:
        return self.folder / f"output-{rank}"

    def log(self) -> str:
        parts = (f"--- rank {rank}\n{self.output(rank).read_text(errors='replace')}" for rank in range(self.world))
        return "\n".join(parts)

    def alive(self) -> bool:
        return all(process.poll() is None for process in self._processes)

    def cpu_s(self) -> int:
        return cpu_s(Path(f"/proc/{process.pid}") for process in self._processes)

    def wait(self, timeout: float = LIMIT_S) -> None:
        """Until all have ended well; one that did not ends the wait."""
        codes = lambda: [process.poll() for process in self._processes]  # noqa: E731
        over = lambda: any(codes()) or None not in codes()  # noqa: E731
        until(over, "all have ended", limit_s=timeout, progress=self.cpu_s, detail=self.log)
        assert not any(codes()), f"exit codes {codes()}\n{self.log()}"

    def control(self, rank: int) -> Path:
        return self._paths.control(rank)

    def kill(self, rank: int) -> None:
        self._processes[rank].kill()

    def end(self, rank: int, timeout: float = LIMIT_S) -> int:
        """Exit code."""
        return self._processes[rank].wait(timeout)

    def stop(self, generation: int, step: int) -> list[dict[str, Any]]:
        """Barrier after at least `step` boundaries; what the frozen ranks report."""
        try:
            self.coordinator.wait_count(step, alive=self.alive)
            self.coordinator.acquire(generation)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None
        return [self._answer(rank, names.FROZEN_FILE, generation) for rank in range(self.world)]

    def go_on(self, generation: int, env: Mapping[str, Sequence[str]] = MappingProxyType({})) -> None:
        """:param env: new values of variables, one for each rank"""
        self.page.publish(0, 0, generation)
        port = free_port()
        for rank in range(self.world):
            mine = {name: values[rank] for name, values in env.items()}
            rank_dump.write_resume(self._paths, rank, generation, "127.0.0.1", port, mine)
        for rank in range(self.world):
            self._answer(rank, names.RESUMED_FILE, generation)

    def _answer(self, rank: int, name: str, generation: int) -> dict[str, Any]:
        path = self._paths.control(rank) / name

        def answer() -> dict[str, Any] | None:
            with contextlib.suppress(FileNotFoundError):
                found = dict(json.loads(path.read_text()))
                return found if found["generation"] == generation else None
            return None

        found = until(answer, f"{name} for {generation}", alive=self.alive, progress=self.cpu_s, detail=self.log)
        assert found is not None
        return found

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(120)
