"""Runs an installer right after one of torch's modules was imported, and does nothing in processes without torch."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

Installer = Callable[[ModuleType], None]


def _optimizer(module: ModuleType) -> None:
    from . import membership

    membership.install(module)


def _distributed(module: ModuleType) -> None:
    from . import comm

    comm.install(module)


INSTALLERS: dict[str, Installer] = {
    "torch.optim.optimizer": _optimizer,
    "torch.distributed.distributed_c10d": _distributed,
}


_told = False


class AfterImport(MetaPathFinder):
    """Finds the named modules through the other finders and calls their installer after their code has run."""

    def __init__(self, installers: dict[str, Installer]) -> None:
        self._installers = dict(installers)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        installer = self._installers.pop(fullname, None)
        if installer is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                try:
                    _call_after(spec, fullname, installer)
                except Exception as error:
                    _failed(fullname, error)
                return spec
        return None


def _call_after(spec: ModuleSpec, name: str, installer: Installer) -> None:
    loader = spec.loader
    if loader is None:
        return
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        try:
            if not _too_old() or installer is _distributed:  # which has a sentence of its own for those
                installer(module)
        except Exception as error:
            _failed(name, error)

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _too_old() -> bool:
    """Whether we must not patch this version of torch. It is reported once; the script runs as it would without us."""
    global _told
    from ..protocol import names

    version = str(getattr(sys.modules.get("torch.version"), "__version__", ""))
    numbers = tuple(int(word) for word in version.split(".")[:2] if word.isdigit())
    old = len(numbers) == 2 and numbers < names.OLDEST_TORCH
    if old and not _told:
        _told = True
        oldest = ".".join(map(str, names.OLDEST_TORCH))
        _report(f"torch is {version}, older than {oldest}: the training runs, but this rank cannot be checkpointed")
    return old


def _report(message: str) -> None:
    from . import guard  # not into every process below a rank

    guard.report(message)


def _failed(name: str, error: Exception) -> None:
    try:
        _report(f"the hook on {name} failed, this rank cannot be checkpointed: {error!r}")
        from . import membership

        membership.give_up(f"the hook on {name} failed: {error!r}")
    except Exception:
        return  # an agent of which even that is broken: the script must not hear of it


def arm() -> None:
    """Watch for the imports of torch. Idempotent.

    Not with the state engine: the library in the script says where a step is over, and nothing of torch is replaced.
    Only the reason of an end is noted, also of one in the first rendezvous.
    """
    if os.environ.get("SINGULARITY_ENGINE") == "state":  # names.ENV_ENGINE: `names` is not for every process
        from . import lost

        atexit.register(lost.note, Path(os.environ["SINGULARITY_RANK_DIR"]))
        return
    if not any(isinstance(finder, AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport(INSTALLERS))
