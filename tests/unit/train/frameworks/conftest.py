"""Ranks that have the frameworks too: pinned versions from the package index, in a folder beside the one of torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_nursery import Nursery
from unavailable import unavailable

from localcluster.config import cache_dir
from localcluster.errors import LocalClusterError
from localcluster.images.rootfs import beside_torch

HERE = Path(__file__).parent
PACKAGES = ("transformers==5.23.0", "accelerate==1.15.0", "lightning==2.6.6", "torchdata==0.11.0")


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    if Nursery.reason():
        pytest.skip(Nursery.reason())
    try:
        beside = beside_torch(cache_dir(), PACKAGES, print)
    except (LocalClusterError, OSError) as error:
        unavailable(f"needs {', '.join(PACKAGES)}, which cannot be installed: {error}")
    preload = ("transformers", "transformers.trainer", "lightning.pytorch")
    made = Nursery.of_environment(tmp_path_factory.mktemp("frameworks"), [HERE, HERE.parent], beside, preload)
    yield made
    made.close()


@pytest.fixture
def place(ranks: Nursery, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder for state that the ranks see too."""
    name = f"{request.path.stem}-{request.node.name}"
    path = ranks.folder / "".join(each if each.isalnum() else "-" for each in name)
    yield path
    shutil.rmtree(path, ignore_errors=True)
