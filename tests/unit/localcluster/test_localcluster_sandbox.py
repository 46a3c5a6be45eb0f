"""Real namespaces and real processes: what ends with what, and what is left. Takes root, but no cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import registry
from localcluster.config import ClusterConfig
from localcluster.errors import CommandError, NotReadyError
from localcluster.namespaces import processes, sandbox
from localcluster.namespaces.processes import Part
from localcluster.namespaces.procfs import host_pids, identify, same
from localcluster.namespaces.sandbox import Sandbox
from localcluster.shell import run, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
SLEEPER = Part("sleeper", ["sleep", "1000"])


@pytest.fixture
def config(tmp_path: Path) -> Iterator[ClusterConfig]:
    known = {f"c{index}": index for index in range(8)}  # those are for people's clusters
    config = ClusterConfig("unit", registry.choose_index("unit", known, registry.host_networks()), tmp_path)
    yield config
    sandbox.kill(config)
    sandbox.remove_link(config)


@pytest.fixture
def box(config: ClusterConfig) -> Sandbox:
    return sandbox.start(config, [config.root])


def host_pid(box: Sandbox, name: str) -> int:
    process = processes.running(box, name)
    assert process is not None
    return host_pids(box.holder.pid)[process.pid]


def gone(box: Sandbox, config: ClusterConfig) -> bool:
    mounts = Path("/proc/self/mountinfo").read_text()
    return not same(box.holder) and str(config.root) not in mounts


def test_a_link_that_the_kernel_removes_first_is_gone(config: ClusterConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(command: list[str]) -> str:
        run(command)  # the kernel was faster
        return run(command)

    run(["ip", "link", "add", config.link, "type", "veth"])
    monkeypatch.setattr(sandbox, "run", slowly)
    sandbox.remove_link(config)
    assert not Path("/sys/class/net", config.link).exists()
    monkeypatch.setattr(sandbox, "run", lambda command: run(["false"]))
    run(["ip", "link", "add", config.link, "type", "veth"])
    with pytest.raises(CommandError):  # it is still there
        sandbox.remove_link(config)
    monkeypatch.undo()


def test_start_is_idempotent_and_reachable(box: Sandbox, config: ClusterConfig) -> None:
    assert sandbox.start(config, [config.root]) == box
    assert sandbox.find(config) == box
    assert Path("/sys/class/net", config.link).exists()
    server = Part(
        "server",
        [sys.executable, "-m", "http.server", "8080", "--bind", config.address, "--directory", "/proc/sys/kernel"],
    )
    processes.start(box, server)
    from localcluster.control_plane.probe import http_ok

    wait_until(lambda: http_ok(f"http://{config.address}:8080/ostype"), "the server answers", timeout=20)


def test_what_the_cluster_writes_outside_its_folder_stays_in_its_view(box: Sandbox, config: ClusterConfig) -> None:
    for path in ("/run/unit", "/var/lib/unit", "/var/log/unit", "/etc/unit"):
        box.run(["touch", path])
        assert box.run(["ls", path]).strip() == path
        assert not Path(path).exists()
    box.run(["touch", config.root / "mine"])
    assert (config.root / "mine").exists()


def test_folders_below_a_covered_path_stay_visible(config: ClusterConfig) -> None:
    kept = Path("/var/lib/singularity-unit-test")
    kept.mkdir()
    try:
        (kept / "file").write_text("seen")
        box = sandbox.start(config, [kept])
        assert box.run(["cat", kept / "file"]) == "seen"
        assert "dpkg" not in box.run(["ls", "/var/lib"])
    finally:
        (kept / "file").unlink()
        kept.rmdir()


def test_parts_start_once_and_are_started_again_after_kill_9(box: Sandbox) -> None:
    assert processes.start(box, SLEEPER)
    first = host_pid(box, "sleeper")
    assert not processes.start(box, SLEEPER)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: processes.running(box, "sleeper") is None, "it is seen to be dead", timeout=10)
    assert processes.start(box, SLEEPER)
    assert host_pid(box, "sleeper") != first


def test_another_process_with_the_recorded_number_is_not_the_part(box: Sandbox) -> None:
    processes.start(box, SLEEPER)
    record = box.config.run / "sleeper"
    pid, _, started = record.read_text().partition(" ")
    record.write_text(f"{pid} {int(started) - 1}")
    assert processes.running(box, "sleeper") is None


def test_part_that_dies_at_once_is_reported_with_its_log(box: Sandbox) -> None:
    part = Part("broken", ["sh", "-c", "echo no such flag >&2; exit 2"])
    processes.start(box, part)
    with pytest.raises(NotReadyError, match=r"(?s)process has ended.*no such flag"):
        wait_until(
            lambda: False,
            "it is ready",
            timeout=20,
            log=processes.log_path(box, "broken"),
            alive=lambda: processes.running(box, "broken") is not None,
        )


def test_stop_is_gentle_first_and_certain_in_the_end(box: Sandbox) -> None:
    processes.start(box, SLEEPER)
    processes.stop(box, "sleeper")
    assert processes.running(box, "sleeper") is None
    deaf = Part("deaf", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    processes.start(box, deaf)
    log = processes.log_path(box, "deaf")
    wait_until(lambda: "ready" in log.read_text(), "the trap is set", timeout=10)
    processes.stop(box, "deaf", timeout=0.5)
    assert processes.running(box, "deaf") is None


def test_kill_ends_orphans_mounts_and_link(box: Sandbox, config: ClusterConfig) -> None:
    processes.start(box, SLEEPER)
    box.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & mount -t tmpfs unit /mnt"])
    everyone = [identify(Path("/proc"), pid) for pid in host_pids(box.holder.pid).values()]
    assert len([process for process in everyone if process]) >= 3
    sandbox.kill(config)
    assert gone(box, config)
    assert [process for process in everyone if process and same(process)] == []
    assert sandbox.find(config) is None
    wait_until(lambda: not Path("/sys/class/net", config.link).exists(), "the link has gone", timeout=10)
    sandbox.kill(config)  # again: nothing to do


def enters(box: Sandbox) -> bool:
    try:
        box.run(["true"])
    except CommandError:
        return False
    return True


def test_kill_9_of_the_holder_ends_everything_and_a_new_start_works(box: Sandbox, config: ClusterConfig) -> None:
    processes.start(box, SLEEPER)
    sleeper = identify(Path("/proc"), host_pid(box, "sleeper"))
    assert sleeper is not None
    os.kill(box.holder.pid, signal.SIGKILL)
    wait_until(lambda: not enters(box), "the signal has reached the first process", timeout=10)
    again = sandbox.start(config, [config.root])  # at once: what is ending may still be there
    assert again.holder != box.holder
    assert gone(box, config)
    assert not same(sleeper)
    assert processes.running(again, "sleeper") is None
    assert processes.start(again, SLEEPER)


def test_start_that_was_interrupted_is_cleaned_up(box: Sandbox, config: ClusterConfig) -> None:
    """Between the holder's start and the note of its identity."""
    (config.run / "sandbox").unlink()
    assert sandbox.find(config) is None
    sandbox.kill(config)
    assert gone(box, config)


def test_stale_number_of_a_foreign_process_is_left_alone(config: ClusterConfig) -> None:
    config.run.mkdir(parents=True)
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        (config.run / "holder").write_text(str(bystander.pid))
        (config.run / "sandbox").write_text(f"{bystander.pid} 1 {sandbox.boot_id()}")
        sandbox.kill(config)
        assert bystander.poll() is None
        bystander.kill()
