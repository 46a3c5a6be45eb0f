"""The containers that the engine's tests run in, for benchmarks too: real launcher, real CRIU, no cluster."""

from __future__ import annotations

import sys
from pathlib import Path

_ALL = Path(__file__).resolve().parents[1] / "tests"
TESTS = _ALL / "unit" / "proxy"
sys.path[:0] = [str(TESTS), str(_ALL / "support")]

from fake_sidecar import Coordinator, Page  # type: ignore[import-not-found]  # noqa: E402
from faulty_proxy import FaultyProxy  # type: ignore[import-not-found]  # noqa: E402
from object_servers import make_gcs_bucket, running_gcs  # type: ignore[import-not-found]  # noqa: E402
from pod_harness import Pod, install_agent  # type: ignore[import-not-found]  # noqa: E402

__all__ = [
    "TESTS", "Coordinator", "FaultyProxy", "Page", "Pod", "install_agent", "make_gcs_bucket",
    "running_gcs",
]  # fmt: skip
