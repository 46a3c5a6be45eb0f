"""Fixtures of the tests of agent and launcher."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pod_harness import Pod, collect_criu, install_agent


@pytest.fixture
def agent_lib(tmp_path: Path) -> Path:
    """The injected folder, as in a pod."""
    lib = tmp_path / "lib"
    install_agent(lib)
    return lib


def _folder(variable: str, wants: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set: {wants}")
    path = Path(value)
    assert path.is_dir(), f"{variable} = {value}: no such directory"
    return path


@pytest.fixture(scope="session")
def criu_bundle(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AGENT_DIR/criu of a pod."""
    target = tmp_path_factory.mktemp("agent") / "criu"
    collect_criu(rootfs, target)
    return target


@pytest.fixture(scope="session")
def rootfs() -> Path:
    """Root file system with Python and CRIU >= 4.2."""
    if os.geteuid() != 0:
        pytest.skip("needs root: makes mount and PID namespaces")
    return _folder("SINGULARITY_TEST_ROOTFS", "the training root file system of the local cluster's cache")


@pytest.fixture(scope="session")
def torch_env() -> Path:
    """Folder with torch for the Python of `rootfs`."""
    return _folder("SINGULARITY_TEST_TORCH", "the torch environment of the local cluster's cache")


@pytest.fixture
def make_pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """`make_pod(name, ...)`: a Pod that is deleted at the end."""
    pods: list[Pod] = []

    def make(name: str, **options: object) -> Pod:
        pod = Pod(tmp_path / name, **options)  # type: ignore[arg-type]
        pods.append(pod)
        return pod

    yield make
    for pod in pods:
        pod.delete()
        shutil.rmtree(pod.folder / "singularity/images", ignore_errors=True)
