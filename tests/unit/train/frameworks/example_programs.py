"""The examples, run as they are; each function gets rank and world size first, and returns JSON."""

from __future__ import annotations

import os
import runpy
import signal
from pathlib import Path
from typing import Any

from singularity_train.host import LocalHost
from singularity_train.storage.folder import Folder

EXAMPLES = Path(__file__).parents[4] / "dags/scripts/frameworks"


def run(rank: int, world: int, script: str, directory: str | None, stop: int | None = None) -> dict[str, Any]:
    """One attempt of an example. The last rank gets SIGTERM when step `stop` is reported."""
    os.environ.update(TORCHELASTIC_RUN_ID="example", GROUP_RANK="0")
    reported, steps = LocalHost.report, []

    def report(self: Any, progress: Any) -> None:
        reported(self, progress)
        steps.append(progress["step"])
        if progress["step"] == stop and rank == world - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    LocalHost.report = report  # type: ignore[method-assign]
    model, finished = runpy.run_path(str(EXAMPLES / f"{script}.py"), run_name="example")["main"]()
    weights = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.state_dict().values()]
    return {
        "steps": steps, "finished": finished, "saved": Folder(Path(directory)).ids() if directory else [],
        "weights": [each.flatten().tolist() for each in weights],
    }  # fmt: skip
