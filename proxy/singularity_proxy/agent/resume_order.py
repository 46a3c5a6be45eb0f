"""The launcher's order to go on, `resume.json` in the rank's control directory, and where it lets the ranks meet."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..protocol import names


def read(rank_dir: Path) -> dict[str, Any] | None:
    """The order that lies there, of whatever stop; None: there is none. Raises OSError, ValueError."""
    try:
        return dict(json.loads((rank_dir / names.RESUME_FILE).read_text()))
    except FileNotFoundError:
        return None


def adopt_address() -> None:
    """Before the first rendezvous: the job may have moved since this process was started, and the others with it."""
    order = read(Path(os.environ[names.ENV_RANK_DIR]))
    if order is not None:
        meet_at(str(order["master_addr"]), int(order["master_port"]))


def meet_at(address: str, port: int) -> None:
    """Set where the ranks meet, if the script got such variables at its start: a plain command of one rank did not."""
    if "MASTER_ADDR" in os.environ:
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
