"""Which engine a job gets, and why. Pure.

`auto` is the process engine, which needs nothing of the script, unless the script imports `singularity_train`.
Whoever writes that line wants what it gives: any machine, any number of workers, no privileges. Files of the image
cannot be seen from here.

A folder that is shipped may hold other scripts. So only files count that the command names, and those that such files
import or name. If the command names none of them, all count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from singularity_proxy.protocol import names

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
    return automatic(spec.files, spec.command)


def automatic(files: Mapping[str, str], command: Sequence[str]) -> Choice:
    """What `auto` is for a job that ships `files`, as path and text, and runs `command`."""
    users = [path for path, text in sorted(files.items()) if _imports(text)]
    run = _run(files, command) if users else set()
    user = next((path for path in users if path in run), None)
    if user is not None:
        return Choice(names.ENGINE_STATE, f"{user} imports {LIBRARY}")
    if users:
        return Choice(names.ENGINE_PROCESS, f"{users[0]} imports {LIBRARY}, but the command does not run it")
    return Choice(names.ENGINE_PROCESS, f"no shipped file imports {LIBRARY}")


def _run(files: Mapping[str, str], command: Sequence[str]) -> set[str]:
    """Paths of the files that `command` runs, as far as can be seen; all if none can be seen."""
    words = " ".join(map(str, command))
    waiting = [path for path in files if _names(words, path) or f" -m {_module(path)} " in f"{words} "]
    if not waiting:
        return set(files)
    found: set[str] = set()
    while waiting:
        found.add(path := waiting.pop())
        text = str(files[path])
        modules = set(_modules(text)) if path.endswith(".py") else set()
        others = [other for other in files if other not in found and other not in waiting]
        waiting += [o for o in others if _names(text, o) or _module(o).rpartition(".")[2] in modules]
    return found


def _names(text: str, path: str) -> bool:
    return re.search(rf"(?:^|[\s'\"=]|\./){re.escape(path)}(?![\w.-])", text) is not None


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _modules(text: str) -> Iterator[str]:
    """Each part of each name that a Python file imports."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # it says so itself when it runs
        return
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield from alias.name.split(".")
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from node.module.split(".")


def _imports(text: object) -> bool:
    return isinstance(text, str) and _IMPORT.search(text) is not None
