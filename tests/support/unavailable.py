"""What a test needs and this machine does not have: skipped on a laptop, a failure in continuous integration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NoReturn

import pytest


def unavailable(why: str, environ: Mapping[str, str] = os.environ) -> NoReturn:
    """For what is made or installed on demand. Nobody reads what continuous integration has skipped."""
    if environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{why} (CI is set, so this is not skipped)", pytrace=False)
    pytest.skip(why)
