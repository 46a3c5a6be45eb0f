"""Fixtures of the tests of agent, launcher and the sidecars' mesh."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import device_figures
import object_servers
import pytest
from mesh_world import FakeController
from pod_harness import Pod, install_agent
from program_runs import PROGRAMS, needs_torch
from rank_world import Ranks
from streamed_pod import Holders
from waits import until

from gpukit.build import collect_agent


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was measured on a real device, after everything else."""
    if device_figures.lines:
        terminalreporter.section("figures")
        for line in device_figures.lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def quick_collections() -> None:
    """A freeze collects garbage: what earlier tests have left in this process is none of its business.

    Nothing is taken back at the end: `gc.unfreeze` would give each later collection all of Airflow and all tests, half
    a minute on a slow machine, in which no other thread runs.
    """
    gc.collect()
    gc.freeze()


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
def criu_bundle(agent_rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AGENT_DIR of a pod: the agent, the launcher, CRIU."""
    target = tmp_path_factory.mktemp("agent") / "agent"
    collect_agent(agent_rootfs, target)
    return target


@pytest.fixture(scope="session")
def agent_rootfs(rootfs: Path) -> Path:
    """Root file system that the agent comes from: another than the pods' where those have no CRIU (`torch_matrix`)."""
    return Path(os.environ.get("SINGULARITY_TEST_AGENT_ROOTFS", rootfs))


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
def whole_gloo(torch_env: Path) -> None:
    """A torch whose FSDP2 runs on a CPU, and whose gloo scatters the sums of lists."""
    needs_torch(torch_env, (2, 8))


@pytest.fixture
def make_pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """`make_pod(name, ...)`: a Pod that is deleted at the end."""
    pods: list[Pod] = []

    def make(name: str, **options: object) -> Pod:
        if os.environ.get("SINGULARITY_TEST_USERNS"):  # every pod as one with `hostUsers: false`
            options.setdefault("uids", 100000)
        pod = Pod(tmp_path / name, **options)  # type: ignore[arg-type]
        pods.append(pod)
        return pod

    yield make
    for pod in pods:
        pod.delete()
        shutil.rmtree(pod.folder / "singularity/images", ignore_errors=True)


@pytest.fixture
def start_holder(make_pod: Callable[..., Pod], rootfs: Path, criu_bundle: Path) -> Iterator[Callable[..., Pod]]:
    """`start_holder(name, ...)`: a pod whose rank holds memory and counts (`streamed_pod.Holders.start`)."""
    holders = Holders(make_pod, rootfs, criu_bundle)
    yield holders.start
    holders.close()


@pytest.fixture
def memory_256m(tmp_path: Path) -> Iterator[Path]:
    """A memory cgroup (v1) of 256 MiB."""
    top = Path("/sys/fs/cgroup/memory")
    if not (top / "memory.oom_control").exists() and not (top / "memory.limit_in_bytes").exists():
        pytest.skip("needs a cgroup v1 hierarchy for memory")
    group = top / f"launcher-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(256 << 20))
    yield group
    until(lambda: not (group / "cgroup.procs").read_text(), "its processes have ended", pace_s=0.05)
    group.rmdir()


@pytest.fixture
def start_ranks(tmp_path: Path, rootfs: Path, torch_env: Path) -> Iterator[Callable[..., Ranks]]:
    """`start_ranks(name, script, *arguments, world=4, **env)`: ranks of a script of `programs/`, without a launcher."""
    worlds: list[Ranks] = []

    def make(name: str, script: str, *arguments: str, world: int = 4, **env: str | Sequence[str]) -> Ranks:
        folder = tmp_path / name
        folder.mkdir()
        (folder / script).write_text((PROGRAMS / script).read_text())
        worlds.append(Ranks(folder, [str(folder / script), *arguments], world, env, rootfs, torch_env))
        return worlds[-1]

    yield make
    for ranks in worlds:
        ranks.close()


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a fake-gcs-server (`localcluster/go/fakegcs`) that keeps objects in memory."""
    program = os.environ.get("SINGULARITY_FAKE_GCS")
    if not program:
        pytest.skip("SINGULARITY_FAKE_GCS is not set: `python -m localcluster.prepare --env` says what it is")
    with object_servers.running_gcs(program, tmp_path_factory.mktemp("gcs") / "log") as url:
        yield url


@pytest.fixture
def gs_url(gcs_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server)
    return object_servers.make_gcs_bucket(gcs_server)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3 server that keeps objects in memory."""
    if find_spec("moto") is None or find_spec("s3fs") is None:
        pytest.skip("moto or s3fs is not installed: install the extras proxy and dev of pyproject.toml")
    with object_servers.running_s3(tmp_path_factory.mktemp("s3") / "log") as url:
        yield url


@pytest.fixture
def s3_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket. A client reads its endpoint and its key when it first connects."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return object_servers.make_s3_bucket(s3_server)


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
