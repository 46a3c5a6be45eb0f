"""What a part is given, and what it gives back."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from singularity_proxy.launcher.device.driver import CudaDriver, Device, Driver
from singularity_proxy.launcher.device.facts import LIBRARY, Facts, gather
from singularity_proxy.launcher.tools import Tools

from .fake import FAKE_GPUS

Status = Literal["passed", "failed", "skipped"]


class PartError(Exception):
    """A part cannot go on. The message is a sentence for the report."""


class SkipPartError(Exception):
    """This machine has nothing to run the part on. The message says what is missing."""


@dataclass
class Check:
    """Something that had to hold."""

    name: str
    ok: bool
    detail: str = ""


@dataclass
class Result:
    """`figures`: name -> number or text, in the order they were found; `notes`: sentences."""

    status: Status = "passed"
    sentence: str = ""
    checks: list[Check] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def check(self, name: str, ok: bool, detail: str = "") -> bool:
        """Note whether something holds; a part with one that does not has failed."""
        self.checks.append(Check(name, bool(ok), detail))
        say(f"{'ok  ' if ok else 'FAIL'} {name}" + (f": {detail}" if detail else ""))
        return bool(ok)

    def figure(self, name: str, value: float | int | str | None) -> None:
        self.figures[name] = round(value, 6) if isinstance(value, float) else value
        say(f"     {name} = {self.figures[name]}")

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)
        say(f"     {sentence}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Result:
        """Of a report. Raises TypeError, KeyError for what is none."""
        return Result(**{**data, "checks": [Check(**check) for check in data["checks"]]})


@dataclass(frozen=True)
class Kit:
    """:param root: the kit's folder: `code`, `agent`, `site`
    :param folder: of this part, empty at its start; removed afterwards
    :param fake: no GPU: the fake driver, programs on the CPU, small sizes
    :param until: `time.monotonic()` at which the part is ended
    """

    root: Path
    folder: Path
    fake: bool
    until: float

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def driver(self) -> Driver:
        """The real one. Raises OSError, DriverError."""
        return CudaDriver(ctypes.CDLL(LIBRARY))

    def devices(self) -> list[Device]:
        return list(FAKE_GPUS) if self.fake else self.driver().devices()

    def criu(self) -> list[str]:
        """argv prefix that runs CRIU."""
        return Tools(self.root / "agent/launcher").criu()

    def facts(self) -> Facts:
        return gather(self.criu())

    def pick(self, real: Any, fake: Any) -> Any:
        """A size: on a GPU, and where there is none."""
        return fake if self.fake else real


def own_packages(root: Path) -> str:
    """Let imports find what the kit brings, after what the machine has; why that cannot be, "" when it can."""
    site, mine = root / "site", f"{sys.version_info[0]}.{sys.version_info[1]}"
    made_for = (site / "PYTHON").read_text().strip() if (site / "PYTHON").exists() else ""
    if not made_for:
        return "the kit was made without packages"
    if made_for != mine:
        return f"the kit was made for Python {made_for}, this is {mine}: make gpu-kit PYTHON={mine}"
    if str(site) not in sys.path:
        sys.path.append(str(site))
    return ""


def say(text: str) -> None:
    print(text, flush=True)


def write_json(path: Path, data: object) -> None:
    """Readers see the whole text or the one before."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)


def environment() -> dict[str, str]:
    """For processes that the kit starts: its own, without what an earlier rank left."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in dropped} | {"PYTHON": sys.executable}
