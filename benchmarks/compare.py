"""A training that has to leave and comes back: stopped and restored by us, and by what scripts can do themselves.

The same script, model, data and ranks; the others' variants have what their way of saving needs on top. All get
the order to go in the middle between two periodic checkpoints, where a notice that nobody can foresee comes on average.
"""

from __future__ import annotations

import difflib
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.config import cache_dir
from localcluster.errors import LocalClusterError
from localcluster.images import rootfs
from localcluster.prepare import Prepared, prepare
from singularity_proxy.protocol.manifest import Manifest, Requirements
from singularity_proxy.store import Store

from .box import Box
from .model import Group, Measured, Options, Say, Spec
from .pods import Job, bytes_of
from .stats import median
from .world import PROGRAMS

RANKS = 2
WIDTH = 1024
EVERY = 40
"""Steps between two periodic checkpoints of those who make some: a scaled interval."""
AT = EVERY + EVERY // 2
STEPS = AT + 10 * EVERY
"""More than anybody needs: all are over when they have made one new step, and the Trainer trains on for 3 s before it
saves."""
REAL_S = 300.0
"""The interval that the arithmetic is for."""
LONG_S = 240.0
TRAINER = ("transformers==5.23.0", "accelerate==1.15.0")
SCRIPTS = PROGRAMS / "compare"
_STEP = re.compile(r"step (\d+) loss (\S+) at ([0-9.]+)")


@dataclass(frozen=True)
class Step:
    number: int
    loss: str
    at: float
    """Unix seconds."""


@dataclass(frozen=True)
class Leave:
    """One interruption. Seconds, bytes."""

    lost: int
    """Steps that had been made and had to be made again."""
    gap_s: float
    """From the last step before to the first new step."""
    leave_s: float
    """From the notice until the processes are gone."""
    again_s: float
    """Of `gap_s`, from the start of the new processes to their first step, new or repeated."""
    written: int
    """Bytes of one checkpoint."""
    exact: bool
    """Every loss is that of an uninterrupted run."""


def steps_of(text: str) -> list[Step]:
    """What a script has printed, in order. Pure."""
    return [Step(int(number), loss, float(at)) for number, loss, at in _STEP.findall(text)]


def judge(
    before: Sequence[Step], after: Sequence[Step], asked: float, gone: float, began: float, written: int,
    reference: Mapping[int, str],
) -> Leave:  # fmt: skip
    """What an interruption cost. Pure.

    :param asked: times of the notice, of the end of the processes, and of the start of the new ones
    :raises ValueError: no steps before or no new step after it
    """
    if not before or not after or after[-1].number <= before[-1].number:
        raise ValueError(f"steps before {before[-1:]} and after {after[-1:]}: no new step was made")
    last = before[-1]
    new = next(step for step in after if step.number > last.number)
    exact = all(reference.get(step.number) == step.loss for step in (*before, *after))
    lost = last.number - after[0].number + 1
    return Leave(lost, new.at - last.at, gone - asked, after[0].at - began, written, exact)


def lines(script: str) -> int:
    """Lines of code that `script` has beyond or other than the plain one. Pure."""
    plain, other = ((SCRIPTS / name).read_text().splitlines()[1:] for name in ("plain.py", script))
    changes = difflib.unified_diff(plain, other, n=0, lineterm="")
    return sum(1 for line in changes if line.startswith("+") and not line.startswith("+++") and line[1:].strip())


def trainer_lines() -> int:
    """Lines of the Trainer's script that are about checkpoints. Pure."""
    code = (SCRIPTS / "jit.py").read_text().splitlines()[1:]
    return sum(1 for line in code if "checkpoint" in line)


# --- those who save themselves --------------------------------------------------------------------------------------
class Script:
    """One script under torchrun, in a container whose `out/` outlasts it."""

    def __init__(self, made: Prepared, name: str, more: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._made, self._name, self._more = made, name, more
        (self.folder / "bench").mkdir()
        shutil.copy(SCRIPTS / name, self.folder / "bench")
        self._seen = 0

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> Box:
        torchrun = ["python3", "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
        arguments = [self._name, str(WIDTH), str(STEPS), str(EVERY)]
        box = Box(self._made, self.folder, [*torchrun, f"--nproc-per-node={RANKS}", *arguments], self._more)
        self._seen = len(steps_of(box.log()))
        return box

    def until(self, box: Box, number: int) -> list[Step]:
        """The steps that `box` has made, once it has made step `number`. Raises RuntimeError."""
        deadline = time.monotonic() + LONG_S
        while True:
            running = box.alive()
            steps = self.steps(box)
            if steps and steps[-1].number >= number:
                return steps
            if not running or time.monotonic() > deadline:
                how = "did not come within the time" if running else "never came: the script has ended"
                raise RuntimeError(f"{self._name}: step {number} {how}\n{box.log()[-3000:]}")
            time.sleep(0.02)

    def steps(self, box: Box) -> list[Step]:
        return steps_of(box.log())[self._seen :]

    def leave(self, reference: Mapping[int, str]) -> Leave:
        """It gets the order to go after step AT, and started again."""
        with self.start() as box:
            self.until(box, AT)
            asked = time.time()
            box.terminate()
            box.wait(LONG_S)
            gone, before = time.time(), self.steps(box)
        newest = max((self.folder / "bench/out").glob("*-*"), key=lambda path: int(path.name.split("-")[1]))
        with self.start() as box:
            began = time.time()
            after = self.until(box, before[-1].number + 1)
        return judge(before, after, asked, gone, began, bytes_of([newest]), reference)


def reference(made: Prepared, name: str, more: Path | None = None) -> dict[int, str]:
    """Step -> loss of an uninterrupted run."""
    with Script(made, name, more) as script, script.start() as box:
        return {step.number: step.loss for step in script.until(box, STEPS)}


def leave(made: Prepared, name: str, uninterrupted: Mapping[int, str], more: Path | None = None) -> Leave:
    with Script(made, name, more) as script:
        return script.leave(uninterrupted)


# --- we -------------------------------------------------------------------------------------------------------------
def ours(made: Prepared, reference: Mapping[int, str]) -> Leave:
    """Barrier, dump, put into an empty store; fetch into a new container, restore."""
    with Job(made, ["compare/plain.py", str(WIDTH), str(STEPS)], RANKS) as job:
        job.start(1)
        job.wait_step(AT)
        asked = time.time()
        stop = job.stop()
        store = Store(f"file://{job.folder}/store")
        result = store.put_ranks("bench", "job", job.checkpoint, dict(enumerate(job.images())))
        store.write_manifest(manifest(job, result.images))
        before = steps_of(job.pods[0].log())
        at = max(job.counts())
        times: dict[str, float] = {}

        def fetch(targets: Mapping[int, Path]) -> None:
            times["began"] = time.time()
            found = store.read_manifest("bench", "job", job.checkpoint)
            store.fetch_ranks(found, targets)

        gone = time.time()
        job.start(1, fetch)
        job.restored()
        job.wait_step(at + 1)
        deadline = time.monotonic() + LONG_S
        while not (after := steps_of(job.pods[0].log())):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no step was printed after the restore, at barrier {stop}\n{job.pods[0].log()}")
            time.sleep(0.02)
    return judge(before, after, asked, gone, times["began"], result.bytes_stored, reference)


def manifest(job: Job, images: Sequence[object]) -> Manifest:
    return Manifest(
        id=job.checkpoint, namespace="bench", job="job", attempt=job.attempt, generation=job.generation,
        step=max(job.counts()), world_size=RANKS, engine="process", created_at=time.time(), ranks=list(images),  # type: ignore[arg-type]
        requirements=Requirements("", ""),
    )  # fmt: skip


# --- all ------------------------------------------------------------------------------------------------------------
def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    made = prepare(say)
    try:
        trainer = rootfs.beside_torch(cache_dir(), TRAINER, say)
        missing = ""
    except LocalClusterError as error:
        missing = f"Trainer not measured: {', '.join(TRAINER)} cannot be installed: {error}"
        say(missing)
    plain = reference(made, "plain.py")
    contenders: dict[str, Callable[[], Leave]] = {
        "ours": lambda: ours(made, plain),
        "torchrun": lambda: leave(made, "torch_save.py", plain),
        "dcp": lambda: leave(made, "dcp.py", plain),
    }
    if not missing:
        other = reference(made, "jit.py", trainer)
        contenders["trainer"] = lambda: leave(made, "jit.py", other, trainer)
    runs: dict[str, list[Leave]] = {name: [] for name in contenders}
    for number in range(1 if options.quick else 3):
        order = list(contenders)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            runs[name].append(contenders[name]())
            say(f"{name}, round {number + 1}: {runs[name][-1]}")
    return figures(runs, missing)


def figures(runs: Mapping[str, Sequence[Leave]], missing: str) -> Mapping[str, Measured]:
    """Pure."""
    mine, others = runs["ours"], {name: found for name, found in runs.items() if name != "ours"}
    raw = [{"who": name, **asdict(x)} for name, found in runs.items() for x in found]
    half = EVERY // 2

    def told(pick: Callable[[Leave], float], unit: str) -> str:
        parts = [f"{name} {median(map(pick, found)):.3g}{unit}" for name, found in others.items()]
        return ", ".join([*parts, *([missing] if missing else [])])

    exact = ", ".join(f"{name} {sum(x.exact for x in found)} of {len(found)}" for name, found in runs.items())
    restart = median(x.again_s for x in others["torchrun"])
    lost = (
        f"{told(lambda x: x.lost, '')}; torchrun and dcp save every {EVERY} steps and were asked after {half}: half an "
        f"interval on average, so {REAL_S / 2:.0f} s of training, and {REAL_S:.0f} s at worst, with one every "
        f"{REAL_S / 60:.0f} min. Bit-identical afterwards: {exact}"
    )
    gap = (
        f"{told(lambda x: x.gap_s, ' s')}, repeated steps included; ours: {median(x.leave_s for x in mine):.3g} s "
        f"until gone with all in the store, {median(x.again_s for x in mine):.3g} s from the fetch to the first step. "
        f"torchrun with a checkpoint every {REAL_S / 60:.0f} min: {restart:.3g} s to start again and "
        f"{REAL_S / 2:.0f} s of repeated training on average, {restart + REAL_S / 2:.0f} s"
    )
    counted = {"torchrun": lines("torch_save.py"), "dcp": lines("dcp.py")}
    written = (
        ", ".join(f"{name} {count}" for name, count in counted.items())
        + f", trainer {trainer_lines()} in a script that is written for the Trainer"
    )
    size = told(lambda x: x.written / 1e6, " MB")
    return {
        "compare_lost_steps": Measured(median(x.lost for x in mine), raw, lost),
        "compare_interruption_s": Measured(median(x.gap_s for x in mine), raw, gap),
        "compare_written_mb": Measured(median(x.written / 1e6 for x in mine), raw, f"{size}; one checkpoint"),
        "compare_lines": Measured(0, [counted], written),
    }


GROUP = Group(
    "compare",
    "root, training root file system with CRIU, transformers from PyPI",
    [
        Spec("compare_lost_steps", "steps", "<= 0", "steps made again after an interruption, against the script's own"),
        Spec("compare_interruption_s", "s", "", "from the last step before to the first new one, against the same"),
        Spec("compare_written_mb", "MB", "", "bytes of one checkpoint, against the same"),
        Spec("compare_lines", "lines", "<= 0", "lines that the user writes for it, against the same"),
    ],
    measure,
)
