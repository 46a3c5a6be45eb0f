"""Start the parts of a cluster inside its sandbox and know which of them run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import CommandError
from ..shell import wait_until, without_proxies
from .procfs import ProcessId, identify, same
from .sandbox import Sandbox

# The part records its own PID (inside the sandbox) before it becomes the program, so it never runs unrecorded. `exec`
# keeps PID and start time.
LAUNCH = 'file=$1; shift; echo $$ > "$file.tmp" && mv "$file.tmp" "$file" && exec "$@"'


@dataclass(frozen=True)
class Part:
    """One process of the cluster.

    :param env: added to the caller's environment
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


def log_path(sandbox: Sandbox, name: str) -> Path:
    return sandbox.config.logs / f"{name}.log"


def running(sandbox: Sandbox, name: str) -> ProcessId | None:
    """The part's process, by the sandbox's numbering; None when it does not run."""
    try:
        pid, _, started = (sandbox.config.run / name).read_text().strip().partition(" ")
        recorded = ProcessId(int(pid), int(started or -1))
    except (FileNotFoundError, ValueError):
        return None
    return recorded if same(recorded, sandbox.proc) else None


def start(sandbox: Sandbox, part: Part) -> bool:
    """Start `part` unless it runs. True when it was started now.

    :raises CommandError: it could not be started
    """
    if running(sandbox, part.name) is not None:
        return False
    pid_file = sandbox.config.run / part.name
    pid_file.unlink(missing_ok=True)
    log = log_path(sandbox, part.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = sandbox.enter(["setsid", "--fork", "sh", "-c", LAUNCH, "sh", pid_file, *part.command])
    with log.open("ab") as output:
        code = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**without_proxies(), **part.env},
            timeout=30,
        ).returncode
    if code != 0:
        raise CommandError(f"{part.name} could not be started (status {code}), see {log}")
    wait_until(pid_file.exists, f"{part.name} has started", timeout=10, log=log, interval=0.01)
    pid = int(pid_file.read_text())
    process = identify(sandbox.proc, pid)
    # Gone already: record a start time that nothing has, the caller's wait will say so and show the log.
    draft = pid_file.with_suffix(".new")
    draft.write_text(f"{pid} {process.started if process else -1}")
    draft.rename(pid_file)
    return True


def stop(sandbox: Sandbox, name: str, *, timeout: float = 20) -> None:
    """SIGTERM, then SIGKILL after `timeout` seconds."""
    process = running(sandbox, name)
    if process is None:
        return
    sandbox.run(["sh", "-c", f"kill -TERM {process.pid} 2>/dev/null || true"])
    try:
        wait_until(lambda: running(sandbox, name) is None, f"{name} has ended", timeout=timeout)
    except Exception:
        sandbox.run(["sh", "-c", f"kill -KILL {process.pid} 2>/dev/null || true"])
        wait_until(lambda: running(sandbox, name) is None, f"{name} has ended", timeout=timeout)
