"""Runs an installer right after one of torch's modules was imported, and does nothing in processes without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Installer = Callable[[ModuleType], None]


def _optimizer(module: ModuleType) -> None:
    from . import boundary

    boundary.install(module)


def _distributed(module: ModuleType) -> None:
    from . import comm

    comm.install(module)


INSTALLERS: dict[str, Installer] = {
    "torch.optim.optimizer": _optimizer,
    "torch.distributed.distributed_c10d": _distributed,
}


def report(message: str) -> None:
    """One line on the rank's stderr."""
    print(f"singularity: {message}", file=sys.stderr, flush=True)


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
                _call_after(spec, fullname, installer)
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
            installer(module)
        except Exception as error:
            report(f"the hook on {name} failed, this rank cannot be checkpointed: {error!r}")

    loader.exec_module = exec_module  # type: ignore[method-assign]


def arm() -> None:
    """Watch for the imports of torch. Idempotent."""
    if not any(isinstance(finder, AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport(INSTALLERS))
