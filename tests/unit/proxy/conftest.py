"""Fixtures of the tests of agent, launcher and the sidecars' mesh."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from mesh_world import FakeController
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


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a fake-gcs-server (`localcluster/go/fakegcs`) that keeps objects in memory."""
    program = os.environ.get("SINGULARITY_FAKE_GCS")
    if not program:
        pytest.skip("SINGULARITY_FAKE_GCS is not set: a fake-gcs-server, `go install tool` in localcluster/go/fakegcs")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = (tmp_path_factory.mktemp("gcs") / "log").open("wb")
    words = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-external-url", url]
    with subprocess.Popen([program, *words], stdout=log, stderr=log) as process:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/_internal/healthcheck", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.05)
        yield url
        process.kill()


@pytest.fixture
def gs_url(gcs_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket, for gcsfs."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    body = f'{{"name": "{bucket}"}}'.encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{gcs_server}/storage/v1/b?project=test", body, headers)
    urllib.request.urlopen(request, timeout=10).close()
    return f"gs://{bucket}/checkpoints"


@pytest.fixture
def folder() -> Iterator[Path]:
    """For the parts of a mesh of sidecars."""
    path = Path(tempfile.mkdtemp(prefix="mesh-"))  # short: unix socket paths have at most 107 bytes
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def controller(folder: Path) -> AsyncIterator[FakeController]:
    fake = FakeController()
    runner = await fake.start(folder)
    yield fake
    await runner.cleanup()
