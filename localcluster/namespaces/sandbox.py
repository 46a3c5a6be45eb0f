"""The namespaces that a cluster lives in: PID, mount and network, held open by one process (`holder`).

Ending that process ends every process of the cluster and, with them, every mount, network interface, nftables table and
pod. The host keeps one veth end, control groups and the cluster's folder.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import ClusterConfig
from ..errors import CommandError, NotReadyError
from ..shell import run, run_logged, wait_until
from .procfs import ProcessId, identify, same


@dataclass(frozen=True)
class Sandbox:
    """A running one. `holder` is its first process, by the host's numbering."""

    config: ClusterConfig
    holder: ProcessId

    @property
    def proc(self) -> Path:
        """/proc as the processes inside see it."""
        return Path(f"/proc/{self.holder.pid}/root/proc")

    def alive(self) -> bool:
        return same(self.holder)

    def enter(self, command: Sequence[str | Path]) -> list[str]:
        """Command line that runs `command` inside."""
        return [
            *("nsenter", "--target", str(self.holder.pid), "--pid", "--mount", "--net", "--"),
            *(str(word) for word in command),
        ]

    def run(self, command: Sequence[str | Path], *, timeout: float = 60) -> str:
        """:raises CommandError: see `shell.run`"""
        return run(self.enter(command), timeout=timeout, cwd=Path("/"))


def find(config: ClusterConfig) -> Sandbox | None:
    """The running sandbox of this cluster, or None."""
    try:
        pid, started, boot = (config.run / "sandbox").read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    sandbox = Sandbox(config, ProcessId(int(pid), int(started)))
    return sandbox if boot == boot_id() and sandbox.alive() else None


def start(config: ClusterConfig, keep: Sequence[Path]) -> Sandbox:
    """Make the namespaces and the network link of `config`; returns the sandbox that runs if there is one.

    :param keep: directories of the host that stay visible inside, wherever they are
    :raises CommandError, NotReadyError: the kernel refused something
    """
    running = find(config)
    if running is not None and _accepts(running):
        return running
    kill(config)  # what is left of a sandbox that is ending, or of an interrupted start
    config.run.mkdir(parents=True, exist_ok=True)
    for stale in config.run.iterdir():
        stale.unlink()
    log = config.logs / "sandbox.log"
    program = Path(__file__).with_name("holder.py")
    run_logged(
        ["setsid", sys.executable, "-I", program, config.name, config.root, *keep], log, cwd=Path("/"), timeout=30
    )
    pid = int((config.run / "holder").read_text())
    holder = identify(Path("/proc"), pid)
    if holder is None:
        raise NotReadyError(f"the first process of cluster {config.name} ended at once, see {log}")
    sandbox = Sandbox(config, holder)
    try:
        _connect(sandbox)
        draft = config.run / "sandbox.tmp"
        draft.write_text(f"{holder.pid} {holder.started} {boot_id()}")
        draft.rename(config.run / "sandbox")
    except BaseException:
        _kill(holder)
        raise
    return sandbox


def _accepts(sandbox: Sandbox) -> bool:
    """False for a sandbox whose first process was killed a moment ago: it still shows until all others have ended."""
    try:
        sandbox.run(["true"])
    except CommandError:
        return False
    return True


def _connect(sandbox: Sandbox) -> None:
    """One veth pair: the host's end and the cluster's; routes to pods and services on both sides."""
    config = sandbox.config
    remove_link(config)
    ip = ["ip", "-4"]
    prefix = config.uplink.prefixlen
    run(["ip", "link", "add", config.link, "type", "veth", "peer", "name", "uplink", "netns", str(sandbox.holder.pid)])
    run([*ip, "addr", "add", f"{config.host_address}/{prefix}", "dev", config.link])
    run(["ip", "link", "set", config.link, "up"])
    sandbox.run([*ip, "addr", "add", f"{config.address}/{prefix}", "dev", "uplink"])
    sandbox.run(["ip", "link", "set", "uplink", "up"])
    sandbox.run([*ip, "route", "add", "default", "via", config.host_address])
    sandbox.run(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
    for network in (config.pod_subnet, config.service_subnet):
        run([*ip, "route", "replace", str(network), "via", config.address, "dev", config.link])


def remove_link(config: ClusterConfig) -> None:
    """Idempotent. The kernel removes the link as well, some time after the last process of the sandbox has ended."""
    link = Path("/sys/class/net", config.link)
    if link.exists():
        try:
            run(["ip", "link", "delete", config.link])
        except CommandError:
            if link.exists():
                raise


def kill(config: ClusterConfig) -> None:
    """End every process of the cluster and wait until they have gone.

    :raises NotReadyError: some stay (a process in an uninterruptible wait)
    """
    for holder in {found.holder for found in (find(config), _unfinished(config)) if found is not None}:
        _kill(holder)


def _unfinished(config: ClusterConfig) -> Sandbox | None:
    """A holder of an `up` that was interrupted before it could write down the start time."""
    try:
        pid = int((config.run / "holder").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    holder = identify(Path("/proc"), pid)
    if holder is None or str(config.root).encode() not in command:
        return None
    return Sandbox(config, holder)


def _kill(holder: ProcessId) -> None:
    if same(holder):
        os.kill(holder.pid, signal.SIGKILL)
    # The kernel keeps the first process until all others of its PID namespace have ended.
    wait_until(lambda: not same(holder), f"the processes of the cluster (first: {holder.pid}) have ended", timeout=60)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
