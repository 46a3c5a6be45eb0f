"""Ranks with torch for the tests of the state engine's library."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_nursery import Nursery

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    if Nursery.reason():
        pytest.skip(Nursery.reason())
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))  # short: unix socket paths have at most 107 bytes
    made = Nursery.of_environment(folder, [HERE, HERE / "storage"])
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def root(nursery: Nursery) -> Iterator[Path]:
    """An empty folder that the ranks see too."""
    path = Path(tempfile.mkdtemp(dir=nursery.folder, prefix="test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)
