"""Ranks with torch for the tests of the state engine's library."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_nursery import Nursery

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    if Nursery.reason():
        pytest.skip(Nursery.reason())
    made = Nursery.of_environment(tmp_path_factory.mktemp("nursery"), [HERE, HERE / "storage"])
    yield made
    made.close()


@pytest.fixture
def root(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty folder that the ranks see too."""
    path = nursery.folder / "".join(each if each.isalnum() else "-" for each in request.node.name)
    yield path
    shutil.rmtree(path, ignore_errors=True)
