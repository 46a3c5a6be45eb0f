"""What a container starts with the launcher's capabilities comes from the agent image: compared before it is run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import planted
import pytest
from pod_harness import REPOSITORY, Pod

from singularity_proxy.launcher import tools
from singularity_proxy.protocol import exit_codes, messages, names

pytestmark = pytest.mark.criu
Make = Callable[..., Pod]
LAUNCHER = f"{names.AGENT_DIR}/launcher"


@pytest.fixture
def agent(criu_bundle: Path, tmp_path: Path) -> Path:
    """What the agent image installs, to be changed."""
    shutil.copytree(criu_bundle, tmp_path / "agent")
    return tmp_path / "agent"


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """A layer of the user's image."""
    (tmp_path / "layer").mkdir()
    return tmp_path / "layer"


@pytest.fixture
def volume(criu_bundle: Path, tmp_path: Path) -> Path:
    """A volume of the user's that looks as the launcher's libraries, with one that records who loads it."""
    folder = tmp_path / "volume"
    shutil.copytree(criu_bundle / "launcher/lib", folder)
    (folder / "libc.so.6").write_bytes(planted.library())
    return folder


def refused(make_pod: Make, agent: Path, rootfs: str, mounts: dict[str, Path] | None = None) -> str:
    """Why the container of a user's pod ends before anything of the user's was run."""
    plan = messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
    options = {"rootfs": rootfs, "torch": None, "criu": agent, "mounts": mounts or {}, "command": ["true"]}
    pod = make_pod("pod", plan=plan, **options).start()
    assert pod.wait() == exit_codes.PROTOCOL, pod.log()
    assert planted.ran(pod.folder / "upper" / planted.RECORD.lstrip("/")) == []
    return pod.log()


@pytest.mark.parametrize("name", [tools.LOADER, "criu", "python/bin/python3", "start", "lib/libc.so.6"])
def test_a_file_that_is_not_the_agent_images_is_never_run(make_pod: Make, rootfs: Path, agent: Path, name: str) -> None:
    path = agent / "launcher" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    said = refused(make_pod, agent, str(rootfs))
    assert f"[launcher] files of {LAUNCHER}: not what the agent image has" in said


def test_a_file_that_is_missing_is_named(make_pod: Make, rootfs: Path, agent: Path) -> None:
    (agent / "launcher/criu").unlink()
    assert "./criu" in refused(make_pod, agent, str(rootfs))


def test_a_volume_over_a_part_of_the_launcher_is_refused(
    make_pod: Make, rootfs: Path, agent: Path, volume: Path
) -> None:
    said = refused(make_pod, agent, str(rootfs), {f"{LAUNCHER}/lib": volume})
    assert f"[launcher] a mount below {LAUNCHER}: not what the agent image has" in said


def test_an_images_link_leads_no_volume_over_a_part_of_the_launcher(
    make_pod: Make, rootfs: Path, agent: Path, layer: Path, volume: Path
) -> None:
    """The guard sees a volume at /mine, and the runtime follows the image's link."""
    (layer / "mine").symlink_to(f"{LAUNCHER}/lib".lstrip("/"))
    said = refused(make_pod, agent, f"{layer}:{rootfs}", {"/mine": volume})
    assert f"[launcher] a mount below {LAUNCHER}: not what the agent image has" in said


def test_an_images_link_in_place_of_our_folder_is_refused(
    make_pod: Make, rootfs: Path, agent: Path, layer: Path
) -> None:
    (layer / "elsewhere").mkdir()
    (layer / "singularity").symlink_to("elsewhere")
    said = refused(make_pod, agent, f"{layer}:{rootfs}")
    assert f"[launcher] {LAUNCHER} is a link: not what the agent image has" in said


_INSTALL = """
mount --make-rprivate /
mount -t tmpfs tmpfs /opt
mkdir /opt/singularity
mount --bind "$0" /opt/singularity
exec sh "$1" "$2"
"""


def install(agent: Path, target: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`install-agent` in an image that has `agent`."""
    words = [str(agent), str(REPOSITORY / "images/install-agent"), str(target)]
    argv = ["unshare", "--mount", "sh", "-ec", _INSTALL, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, **env})


@pytest.mark.parametrize("engine", ["process", "state"])
def test_the_init_container_installs_what_the_image_has(agent: Path, tmp_path: Path, engine: str) -> None:
    target = tmp_path / "target"
    for _ in range(2):  # a container may be started again
        done = install(agent, target, SINGULARITY_ENGINE=engine)
        assert done.returncode == 0, done.stderr
    assert (target / "launcher/criu").exists() == (engine == "process")
    listed = {line.split("  ", 1)[1] for line in (target / "launcher/digests").read_text().splitlines()}
    files = {
        f"./{path.relative_to(target / 'launcher')}" for path in (target / "launcher").rglob("*") if path.is_file()
    }
    assert listed == files - {"./digests"}


def test_the_init_container_fails_where_the_volume_has_something_else(agent: Path, tmp_path: Path) -> None:
    with (agent / "launcher/criu").open("ab") as file:
        file.write(b"x")
    done = install(agent, tmp_path / "target")
    assert done.returncode == 1 and "./criu: FAILED" in done.stdout
    assert done.stderr.splitlines()[-1] == f"install-agent: {tmp_path}/target has not what the image has"
