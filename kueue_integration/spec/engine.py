"""Which engine a job gets, and why. Pure.

`auto` is the process engine, which needs nothing of the script, unless a shipped file imports `singularity_train`.
Whoever writes that line wants what it gives: any machine, any number of workers, no privileges. Files of the image
cannot be seen from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.protocol import names

if TYPE_CHECKING:
    from .train_spec import TrainSpec

AUTO = "auto"
LIBRARY = "singularity_train"
_IMPORT = re.compile(rf"^[ \t]*(?:import|from)[ \t]+{LIBRARY}\b", re.MULTILINE)


@dataclass(frozen=True)
class Choice:
    """:param why: the end of the sentence `engine NAME: ...`"""

    name: str
    why: str


def chosen(spec: TrainSpec) -> Choice:
    """The engine of `spec`."""
    if spec.engine != AUTO:
        return Choice(spec.engine, "the job asks for it")
    return automatic(spec.files)


def automatic(files: Mapping[str, str]) -> Choice:
    """What `auto` is for a job that ships `files`, as path and text."""
    user = next((path for path, text in sorted(files.items()) if _imports(text)), None)
    if user is not None:
        return Choice(names.ENGINE_STATE, f"{user} imports {LIBRARY}")
    return Choice(names.ENGINE_PROCESS, f"no shipped file imports {LIBRARY}")


def _imports(text: object) -> bool:
    return isinstance(text, str) and _IMPORT.search(text) is not None
