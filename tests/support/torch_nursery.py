"""Real ranks over gloo at the price of one import of torch: a process that has it forks the ranks of each run.

Two halves. `Nursery` is for the tests' own Python, which has no torch. Run as a script, where torch is, the module
reads one line per run: `{"world": 4, "program": "module:function", "arguments": {...}, "env": {...}, "grace_s": 5,
"limit_s": 150}`. It answers with a line that has what each rank returned or raised.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import shlex
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 150.0
"""Of one run, unless it is given another."""
GRACE_S = 5.0
"""Others would wait for a rank that has failed: they get this time to fail by themselves."""
ENTER = r"""
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
mkdir -p /mnt/root/opt/torch /mnt/root/opt/beside /mnt/root/dev /mnt/root/proc "/mnt/root$FOLDER" "/mnt/root$REPO"
mount --bind "$TORCH" /mnt/root/opt/torch
mount --bind "${BESIDE:-$TORCH}" /mnt/root/opt/beside
mount --bind "$REPO" "/mnt/root$REPO"
mount --bind /dev /mnt/root/dev
mount --bind /proc /mnt/root/proc
mount --rbind "$FOLDER" "/mnt/root$FOLDER"
exec chroot /mnt/root python3 "$@"
"""


class Nursery:
    """:param folder: that the ranks see too
    :param programs: folders with modules for the ranks
    :param rootfs: with the Python that `torch` is for; None: this Python has torch
    :param beside: a folder of packages for the same Python
    :param preload: what is imported once for all ranks
    """

    def __init__(
        self, folder: Path, programs: list[Path], rootfs: str | None, torch: str | None,
        beside: Path | None = None, preload: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.folder = folder
        path = [str(ROOT), str(ROOT / "proxy"), *map(str, programs), *(["/opt/torch", "/opt/beside"] if rootfs else [])]
        env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        env["PYTHONPATH"] = ":".join(path)
        env["SINGULARITY_TEST_PRELOAD"] = ",".join(preload)
        words = [sys.executable]
        if rootfs:
            words = ["unshare", "--mount", "sh", "-ec", ENTER, "sh"]
            env |= {"ROOTFS": rootfs, "TORCH": str(torch), "FOLDER": str(folder), "REPO": str(ROOT)}
            env |= {"BESIDE": str(beside)} if beside is not None else {}
        self._words = words
        self._env = env
        self._log = folder / "nursery-log"
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*words, str(Path(__file__).resolve()), str(folder)],
                env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    @staticmethod
    def reason() -> str:
        """Why there can be none here; empty: there can."""
        if os.environ.get("SINGULARITY_TEST_TORCH") and os.geteuid() == 0:
            return ""
        if importlib.util.find_spec("torch") is not None:
            return ""
        return "needs torch: SINGULARITY_TEST_ROOTFS and SINGULARITY_TEST_TORCH are not set, or this is not root"

    @classmethod
    def of_environment(
        cls, folder: Path, programs: list[Path], beside: Path | None = None, preload: tuple[str, ...] = ()
    ) -> Nursery:
        rootfs, torch = (os.environ.get(f"SINGULARITY_TEST_{name}") for name in ("ROOTFS", "TORCH"))
        usable = rootfs and torch and os.geteuid() == 0
        return cls(folder, programs, rootfs if usable else None, torch, beside, preload)

    def ask(
        self,
        world: int,
        program: str,
        env: dict[str, str] | None = None,
        grace_s: float = GRACE_S,
        limit_s: float = LIMIT_S,
        **arguments: Any,
    ) -> list[dict[str, Any]]:
        """For each rank `returned`, or `raised`, `message` and `trace`; and `code`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = {"world": world, "program": program, "arguments": arguments, "env": env or {}, "grace_s": grace_s}
        line["limit_s"] = limit_s
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.log()
        found: list[dict[str, Any]] = json.loads(answer)
        return found

    def run(self, world: int, program: str, env: dict[str, str] | None = None, **arguments: Any) -> list[Any]:
        """What each rank returned; a rank that raised fails."""
        found = self.ask(world, program, env, **arguments)
        bad = [each for each in found if "returned" not in each]
        assert not bad, "\n".join(each.get("trace", str(each)) for each in bad) + self.log()[-3000:]
        return [each["returned"] for each in found]

    def python(self) -> Path:
        """A program: the Python of the ranks, for what a test runs by itself."""
        program = self.folder / "python"
        values = [f"{name}={value}" for name, value in self._env.items()]
        program.write_text(f'#!/bin/sh\nexec env {shlex.join([*values, *self._words])} "$@"\n')
        program.chmod(0o755)
        return program

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_main(number: int, world: int, port: int, program: str, arguments: dict[str, Any], answer: Path) -> None:
    """Of the forked rank; does not return."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # From Python 3.14 on a loader's worker would import torch, for seconds.
    torch.multiprocessing.set_start_method("fork", force=True)
    os.environ.update(RANK=str(number), WORLD_SIZE=str(world), LOCAL_RANK=str(number), GLOO_SOCKET_IFNAME="lo")
    # As torchrun sets them for one rank too: a framework then makes the group itself.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_WORLD_SIZE=str(world))
    code = 0
    try:
        if world > 1:
            dist.init_process_group("gloo", rank=number, world_size=world)
        found = {"returned": pkgutil.resolve_name(program)(number, world, **arguments)}
    except BaseException as error:
        code = 1
        found = {"raised": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
    draft = answer.with_suffix(".draft")
    draft.write_text(json.dumps(found))
    draft.replace(answer)
    sys.stderr.flush()
    os._exit(code)


def run_ranks(
    world: int,
    program: str,
    arguments: dict[str, Any],
    env: dict[str, str],
    grace_s: float,
    limit_s: float,
    folder: Path,
) -> list[Any]:
    port = free_port()
    answers = [folder / f"answer-{number}" for number in range(world)]
    pids = []
    for number in range(world):
        answers[number].unlink(missing_ok=True)
        pid = os.fork()
        if not pid:
            os.environ.update(env)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            rank_main(number, world, port, program, arguments, answers[number])
        pids.append(pid)
    codes: dict[int, int] = {}
    deadline = time.monotonic() + limit_s
    while len(codes) < world:
        late = time.monotonic() > deadline or any(codes.values())
        for number, pid in enumerate(pids):
            if number in codes:
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[number] = os.waitstatus_to_exitcode(status)
                deadline = min(deadline, time.monotonic() + grace_s) if codes[number] else deadline
            elif late and time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [
        {**(json.loads(answers[number].read_text()) if answers[number].exists() else {}), "code": codes[number]}
        for number in range(world)
    ]


def main(folder: Path) -> None:
    import torch
    import torch._dynamo  # the first optimizer of a process imports it: a second of each rank
    import torch.distributed.checkpoint
    import torch.distributed.fsdp  # noqa: F401

    for name in filter(None, os.environ.get("SINGULARITY_TEST_PRELOAD", "").split(",")):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what was imported is none of the collections in the ranks, and stays shared
    for line in sys.stdin:
        print(json.dumps(run_ranks(**json.loads(line), folder=folder)), flush=True)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main(Path(sys.argv[1]))
