"""Switches the agent on in a rank; then runs the image's own `sitecustomize`, which this file shadows.

Does nothing but chain in a process that is not (below) a rank: no import beyond what the interpreter has anyway.
"""

import os
import sys


def _switch_on() -> None:
    # The libuv TCPStore server maps io_uring rings, which CRIU cannot dump, and forked children would inherit them.
    os.environ.setdefault("USE_LIBUV", "0")
    if sys.version_info < (3, 10):  # noqa: UP036 - the image's Python
        version = sys.version.split()[0]
        print(f"singularity: agent is off, it needs Python 3.10 or newer, not {version}", file=sys.stderr, flush=True)
        return
    try:
        from _singularity.agent import hooks  # type: ignore[import-not-found]

        hooks.arm()
    except Exception as error:
        print(f"singularity: agent is off, this rank cannot be checkpointed: {error!r}", file=sys.stderr, flush=True)


def _chain() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    try:
        here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 - pathlib would be imported into every process
        spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.realpath(p or ".") != here])
    except Exception as error:
        print(f"singularity: a sitecustomize of the image is not run: {error!r}", file=sys.stderr, flush=True)
        return
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)  # an error in it surfaces exactly as without us: site.py reports it


if os.environ.get("SINGULARITY_RANK_DIR"):
    _switch_on()
_chain()
