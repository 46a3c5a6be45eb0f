"""`python -m proxy.sidecar`, as a pod calls it: configuration from the environment; an orderly end after SIGTERM, exit
code 1 after an error."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys

from ..errors import ProxyError
from .config import from_env


async def _main() -> None:
    config, stop = from_env(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Every module stays for good: a collector that looks at them again and again takes a tenth of their loading.
    gc.disable()
    from .sidecar import run

    gc.freeze()
    gc.enable()
    await run(config, stop)


def main() -> int:
    """Exit code: 0 after SIGTERM, 1 with a sentence on stderr when this pod cannot take part."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(_main())
    except (ProxyError, OSError) as error:
        logging.getLogger(__package__).error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
