"""Runs the parts one after the other, each in a process of its own with a limit, and keeps the report as it goes."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import report
from .kit import Kit, PartError, Result, SkipPartError, own_packages, say, write_json

PARTS = {
    "facts": 120, "cycle": 300, "move": 480, "nccl": 300, "share": 480, "store": 300, "steady": 300, "programs": 480,
    "limits": 240, "periodic": 300, "many": 480, "userns": 300,
}  # fmt: skip
"""Name -> seconds after which the part is ended, in the order of running: the most telling first."""
GRACE_S = 10.0


def run(root: Path, out: Path, wanted: Sequence[str], fake: bool, again: bool) -> int:
    """Run `wanted`, or what no earlier run into `out` has finished; the exit code: 0 when nothing has failed."""
    out.mkdir(parents=True, exist_ok=True)
    done = report.read(out)
    for name in wanted or PARTS:
        if name in done and not again and name not in wanted:
            say(f"=== {name}: {done[name].status} in an earlier run")
            continue
        say(f"=== {name} (at most {PARTS[name]} s)")
        done.pop(name, None)
        report.write(out, done, fake, running=name)
        done[name] = _bounded(root, name, fake, PARTS[name])
        report.write(out, done, fake)
        say(f"=== {name}: {done[name].status} in {done[name].seconds:.0f} s. {done[name].sentence}")
    failed = [name for name in done if done[name].status == "failed"]
    say(f"\n{out / report.MARKDOWN}" + (f": failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _bounded(root: Path, name: str, fake: bool, limit: float) -> Result:
    """Of one part, whatever becomes of its process."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"gpu-kit-{name}-"))
    answer = folder / "result.json"
    argv = [sys.executable, "-m", "gpukit", "--part", name, "--answer", str(answer), "--limit", str(limit)]
    try:
        process = subprocess.Popen([*argv, *(["--fake"] if fake else [])], cwd=root, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
            _end(process)
        except BaseException:
            _end(process)
            raise
        found = _answered(answer, code, limit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found.seconds = round(time.monotonic() - began, 1)
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """The part and all that it has started: pods end with the process that holds their launcher's input."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE_S)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _answered(answer: Path, code: int | None, limit: float) -> Result:
    try:
        found = Result.from_dict(json.loads(answer.read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        found = Result()
    if code is None:
        found.status, found.sentence = "failed", f"It had not ended after {limit:.0f} s and was ended"
    elif code:
        found.status, found.sentence = "failed", f"Its process ended with code {code}"
    return found


def part(root: Path, name: str, answer: Path, limit: float, fake: bool) -> int:
    """In the process of the part."""
    folder = answer.parent
    kit = Kit(root, folder, fake, time.monotonic() + limit)
    found = Result()
    problem = own_packages(root)
    if problem:
        found.note(problem)
    module: Any = importlib.import_module(f"gpukit.parts.{name}")
    try:
        module.run(kit, found)
    except SkipPartError as error:
        found.status, found.sentence = "skipped", str(error)
    except (PartError, Exception) as error:
        if not isinstance(error, PartError):
            traceback.print_exc()
        found.status, found.sentence = "failed", f"{type(error).__name__}: {error}"[:2000]
    except KeyboardInterrupt:
        found.status, found.sentence = "failed", f"It was ended after {limit - kit.left:.0f} s"
    if found.status == "passed" and not all(check.ok for check in found.checks):
        found.status = "failed"
        found.sentence = "; ".join(f"{c.name}: {c.detail}" for c in found.checks if not c.ok)[:2000]
    write_json(answer, found.to_dict())
    return 0
