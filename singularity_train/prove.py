"""Run a script uninterrupted, and stopped and resumed in new processes, and compare losses and state to the bit.

examples:
  python -m singularity_train.prove train.py --lr 0.1
  python -m singularity_train.prove --steps 40 --stop 15 --workers 1,2,3 train.py --lr 0.1

The script is not changed. It runs on the CPU with torchrun's variables, several times, each for a few steps:
uninterrupted with the first number of workers, stopped and resumed with the same number, and once through all numbers.
What it writes itself, it writes each time. The last line is the verdict:

  exact             losses and final state have the same bits
  reordered         they have with the same workers; with others they differ by rounding
  different (name)  what differs, and by how much
  unchecked (why)   there was nothing to compare

It holds for these steps on this machine. exit codes: 0 exact, 1 different, 2 wrong arguments, 3 reordered, 4 unchecked
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .environment import ENV_HOST
from .errors import TrainError
from .host import ENV_DIRECTORY, LocalHost
from .parts import ALL, unpack
from .storage import BlobReader
from .storage.export import Source
from .storage.folder import Folder

ENV_STOP = "SINGULARITY_PROVE_STOP"
"""The step after which this attempt is to stop."""
HOST = "singularity_train.prove:host"
LOSSES = "losses.jsonl"
ROUNDING = 1e-4
"""Of the largest value of a tensor: differences up to here may come from the order of additions."""
CODES = {"exact": 0, "reordered": 3, "unchecked": 4, "different": 1}
"""In the order of their gravity."""
OF_FRAMEWORKS = ("lightning",)
"""Extra state of an adapter that has more than the training, such as paths."""


# --- in the ranks -------------------------------------------------------------------------------------------------
class Watching(LocalHost):
    """Stops the job after a step, and notes the losses."""

    def __init__(self, rank: int) -> None:
        super().__init__(os.environ[ENV_DIRECTORY], rank)
        self._until, self._done = int(os.environ[ENV_STOP]), 0

    def start(self) -> Path | None:
        return start()

    def attached(self, step: int) -> None:
        self._done = step

    def stop_requested(self) -> bool:
        """It is asked before the update of a step, or after it by the adapters."""
        return self._done >= self._until - 1

    def report(self, progress: Mapping[str, Any]) -> None:
        self._done = int(progress["step"])
        loss = progress.get("loss")
        if not self._rank and loss is not None:
            with (Path(os.environ[ENV_DIRECTORY]) / LOSSES).open("a") as file:
                file.write(json.dumps([self._done, float(loss).hex()]) + "\n")


def host(rank: int, world_size: int) -> Watching:
    """:raises ValueError: the script has not told torch of the other ranks"""
    given = int(os.environ.get("WORLD_SIZE", "1"))
    if given != world_size:
        raise ValueError(f"{given} ranks were started, and torch.distributed has {world_size}: call init_process_group")
    return Watching(rank)


def start() -> Path | None:
    folder = Path(os.environ[ENV_DIRECTORY])
    return folder if Folder(folder).ids() else None


# --- the comparison -----------------------------------------------------------------------------------------------
class Finding(NamedTuple):
    """:param verdict: one of `CODES`; :param text: what differs, or why nothing was compared"""

    verdict: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.verdict} ({self.text})" if self.text else self.verdict


@dataclass(frozen=True)
class Outcome:
    """Of a run through one or several attempts.

    :param losses: by step
    :param state: values by name
    """

    step: int
    losses: dict[int, str]
    state: dict[str, Any]


def compared(one: Outcome, other: Outcome, moved: bool) -> Finding:
    """:param moved: the workers of `other` have changed, so that sums may have been added in another order"""
    if one.step != other.step:
        return Finding("different", f"it ended after {other.step} steps, uninterrupted after {one.step}")
    found = Finding("exact")
    values: list[tuple[str, Any, Any]] = [
        (f"loss of step {step}", float.fromhex(loss), float.fromhex(other.losses.get(step, "nan")))
        for step, loss in one.losses.items()
    ]
    values += [(name, one.state.get(name), other.state.get(name)) for name in {**one.state, **other.state}]
    for name, left, right in values:
        far = distance(left, right)
        if far > (ROUNDING if moved else 0.0):
            return Finding("different", f"{name}: by {far:.2g}" if far < float("inf") else name)
        if far:
            found = Finding("reordered")
    return found


def distance(left: Any, right: Any) -> float:
    """0.0: the same bits. Else the largest difference as a part of the largest value; inf: not comparable."""
    if isinstance(left, float) and isinstance(right, float):
        left, right = torch.tensor(left, dtype=torch.float64), torch.tensor(right, dtype=torch.float64)
    if not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)):
        return 0.0 if type(left) is type(right) and left == right else float("inf")
    if left.dtype != right.dtype or left.shape != right.shape:
        return float("inf")
    if torch.equal(_bits(left), _bits(right)):
        return 0.0
    if not (left.is_floating_point() or left.is_complex()):
        return float("inf")
    wide = torch.complex128 if left.is_complex() else torch.float64
    left, right = left.to(wide), right.to(wide)
    far = float((left - right).abs().max() / left.abs().max().clamp(min=1e-30))
    return far if far == far and far > 0 else float("inf")  # not a number, or zeros of another sign


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """All values of nested containers, by name."""
    if isinstance(value, bytes):
        value = unpack(value)
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from flat(name if key == ALL else f"{name}.{key}", each)
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield from flat(f"{name}[{place}]", each)
    else:
        yield name, value


def read(folder: Path) -> Outcome | None:
    """What the attempts in a folder have come to; None: no checkpoint was made."""
    ids = Folder(folder).ids()
    if not ids:
        return None
    reader = BlobReader(folder, ids[-1])
    nested, meta = Source(reader, None).nested(), reader.manifest.meta
    for name in OF_FRAMEWORKS:
        nested.get("extra", {}).pop(name, None)
    by = meta.get("framework", {})
    place = {"position": meta.get("position"), **{key: by[key] for key in ("epoch", "offset") if key in by}}
    state = {name: value for kind, kept in {**nested, "data": place}.items() for name, value in flat(kind, kept)}
    file = folder / LOSSES
    lines = file.read_text().splitlines() if file.exists() else []
    return Outcome(reader.manifest.step, dict(map(json.loads, lines)), state)


# --- the runs -----------------------------------------------------------------------------------------------------
def attempt(script: Sequence[str], folder: Path, workers: int, until: int, limit_s: float) -> str:
    """Run the script until a step, with torchrun's variables; why it has failed, or nothing."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    # The script imports the library that is at work here.
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    env = {
        "OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "",
        ENV_DIRECTORY: str(folder), ENV_STOP: str(until), ENV_HOST: HOST, "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers),
    }  # fmt: skip
    ranks: list[tuple[subprocess.Popen[bytes], Any]] = []
    end = time.monotonic() + limit_s
    try:
        for rank in map(str, range(workers)):
            log = (folder / f"log-{rank}").open("w+b")
            words = [sys.executable, *script]
            own = {**env, "RANK": rank, "LOCAL_RANK": rank}
            ranks.append((subprocess.Popen(words, env=own, stdout=log, stderr=log), log))
        while any(process.poll() is None for process, _ in ranks):
            failed = next((each for each in ranks if each[0].returncode), None)
            if failed is not None:
                return f"exit code {failed[0].returncode}: {_last(failed[1])}"
            if time.monotonic() > end:
                return f"no end within {limit_s:.0f} s"
            time.sleep(0.05)
        return next((f"exit code {each.returncode}: {_last(log)}" for each, log in ranks if each.returncode), "")
    finally:
        for process, log in ranks:
            process.kill()
            process.wait()
            log.close()


def _last(log: Any) -> str:
    """The line that names the error, else the last one."""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return str((named or lines or ["it printed nothing"])[-1])


def plans(workers: Sequence[int], stop: int, steps: int) -> dict[str, list[tuple[int, int]]]:
    """Attempts of each run: how many workers, and until which step."""
    found = {"uninterrupted": [(workers[0], steps)], "resumed": [(workers[0], stop), (workers[0], steps)]}
    others = [*workers[1:], workers[0]]
    if len(others) > 1:
        ends = [stop + (steps - stop) * place // (len(others) - 1) for place in range(len(others))]
        found["moved"] = list(zip(others, ends, strict=True))
    return found


def prove(script: Sequence[str], workers: Sequence[int], stop: int, steps: int, limit_s: float) -> Finding:
    findings = []
    whole: Outcome | None = None
    with tempfile.TemporaryDirectory(prefix="prove-") as place:
        for name, run in plans(workers, stop, steps).items():
            folder = Path(place) / name
            why = next(filter(None, (attempt(script, folder, *each, limit_s) for each in run)), "")
            outcome = None if why else read(folder)
            finding = Finding("unchecked", why or "no checkpoint was made: it calls neither attach nor an adapter")
            if outcome is not None and whole is None:
                enough = outcome.step > stop
                finding = Finding("exact") if enough else Finding("unchecked", f"it ends after {outcome.step} steps")
                whole = outcome
            elif outcome is not None and whole is not None:
                finding = compared(whole, outcome, moved=name == "moved")
            findings.append(finding)
            shown = f"{outcome.step} steps" if outcome is not None and outcome is whole else str(finding)
            print(f"{name:14} workers {', '.join(str(each) for each, _ in run):12} {shown}", flush=True)
            if finding.verdict != "exact" and name == "uninterrupted":
                break
    return max(findings, key=lambda each: [*CODES].index(each.verdict))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m singularity_train.prove",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="of each run (default: %(default)s)")
    parser.add_argument("--stop", type=int, metavar="N", help="the step after which it stops (default: the middle)")
    parser.add_argument("--workers", default="1,2", metavar="N,N", help="the first runs uninterrupted (default: 1,2)")
    parser.add_argument("--limit", type=float, default=600.0, metavar="S", help="seconds of an attempt (default: 600)")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS")
    given = parser.parse_args(argv)
    given.stop = given.steps // 2 if given.stop is None else given.stop
    try:
        given.workers = [int(each) for each in given.workers.split(",")]
    except ValueError:
        parser.error(f"--workers {given.workers}: give numbers with commas between")
    if not given.script or not Path(given.script[0]).is_file():
        parser.error(f"SCRIPT: {given.script[0] if given.script else 'none'} is no file; give a training script")
    if not 1 <= given.stop <= given.steps - len(given.workers):
        parser.error(f"--stop {given.stop}: give 1 to {given.steps - len(given.workers)}, or more --steps")
    if min(given.workers) < 1:
        parser.error("--workers: each is 1 or more")
    return given


def main(argv: Sequence[str]) -> int:
    given = parse(argv)
    try:
        found = prove(given.script, given.workers, given.stop, given.steps, given.limit)
    except TrainError as error:
        found = Finding("unchecked", str(error))
    print(found)
    return CODES[found.verdict]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
