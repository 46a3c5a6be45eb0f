"""The sidecar's program with a port for the mesh (argv 1) and a root (argv 2) of its own: pods of a test share one
network and one file system.

It stands still where the test tells it to: `HOLD/hold-POINT` is there; it says so by `at-POINT`, and goes on when the
first is gone. Points: `stream`, after the first pages of a dump that is under way; `upload`, after the first rank of a
dump that has ended; `fetch`, after the first pack; `manifest`, after it was written.
"""

import asyncio
import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from singularity_proxy.sidecar import restore, state_machine
from singularity_proxy.sidecar.config import from_env
from singularity_proxy.sidecar.sidecar import run
from singularity_proxy.store import Store, backend, download, stream, upload

state_machine.SILENCE_S = 60.0  # a busy machine takes its time to start a sidecar anew


def then_stand(stock: Callable[..., Any], point: str) -> Callable[..., Any]:
    folder = Path(os.environ.get("HOLD", "/nowhere"))

    @functools.wraps(stock)
    def held(*arguments: Any, **named: Any) -> Any:
        result = stock(*arguments, **named)
        if (folder / f"hold-{point}").exists():
            (folder / f"at-{point}").touch()
            while (folder / f"hold-{point}").exists():
                time.sleep(0.01)
        return result

    return held


stream.Stream._frame = then_stand(stream.Stream._frame, "stream")
upload.Upload.put = then_stand(upload.Upload.put, "upload")
download.write = then_stand(download.write, "fetch")
Store.write_manifest = then_stand(Store.write_manifest, "manifest")
if "PATIENCE" in os.environ:  # seconds, of the store that a checkpoint is fetched from
    backend.FIRST_TRY_S = float(os.environ["PATIENCE"])
    restore.Store = functools.partial(Store, patience_s=backend.FIRST_TRY_S)


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run(replace(from_env(), mesh_port=int(sys.argv[1]), root=Path(sys.argv[2])), stop)


logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
asyncio.run(main())
