"""`python -m proxy.sidecar` with a port of its own for the mesh (argv 1): pods of a test share one network."""

import asyncio
import logging
import signal
import sys
from dataclasses import replace

from proxy.sidecar import machine
from proxy.sidecar.config import from_env
from proxy.sidecar.sidecar import run

machine.SILENCE_S = 60.0  # a busy machine takes its time to start a sidecar anew


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run(replace(from_env(), mesh_port=int(sys.argv[1])), stop)


logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
asyncio.run(main())
