"""Ranks at the price of one import of torch: this process has it, and forks the ranks of each run.

Runs as a script where torch is. Each line on stdin is a run: `{"world": 4, "program": "module.name", "arguments": {}}`.
The line that comes back has what each rank returned, what it raised, and its exit code. Programs are functions.
"""

from __future__ import annotations

import json
import os
import pkgutil
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True

LIMIT_S = 100.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank(number: int, world: int, port: int, program: str, arguments: dict[str, Any], answer: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    code, found = 0, {}
    try:
        if world > 1:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number), WORLD_SIZE=str(world))
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            dist.init_process_group("gloo", rank=number, world_size=world)
        found = {"returned": pkgutil.resolve_name(program)(number, world, **arguments)}
    except BaseException as error:  # CheckpointException is no Exception
        code, found = 1, {"raised": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
    answer.write_text(json.dumps(found, default=repr))
    os._exit(code)


def run(world: int, program: str, arguments: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    port = free_port()
    answers = [folder / f"answer-{number}" for number in range(world)]
    pids = []
    for number in range(world):
        answers[number].unlink(missing_ok=True)
        pid = os.fork()
        if not pid:
            rank(number, world, port, program, arguments, answers[number])
        pids.append(pid)
    codes: dict[int, int] = {}
    deadline = time.monotonic() + LIMIT_S
    while len(codes) < world:
        for number, pid in enumerate(pids):
            if number not in codes:
                if time.monotonic() > deadline:
                    os.kill(pid, 9)
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[number] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [
        {"code": codes[number], **(json.loads(answers[number].read_text()) if answers[number].exists() else {})}
        for number in range(world)
    ]


def main(folder: Path) -> None:
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line), folder=folder)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
