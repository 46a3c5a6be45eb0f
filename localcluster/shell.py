"""Run a program, wait for a condition: the two things that everything here does, each with a deadline."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .errors import CommandError, NotReadyError, log_tail


def run(
    command: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
) -> str:
    """Standard output of `command`.

    :param timeout: seconds
    :raises CommandError: it cannot be started, fails or takes longer; the message has its last lines
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=None if env is None else dict(env),
            cwd=cwd,
            timeout=timeout,
        )
    except FileNotFoundError as error:
        raise CommandError(f"{words[0]} is not there: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"`{shown(words)}` took longer than {timeout:.0f} s") from error
    if done.returncode != 0:
        last = "\n".join(f"    {line}" for line in (done.stderr + done.stdout).splitlines()[-12:])
        raise CommandError(f"`{shown(words)}` failed with status {done.returncode}:\n{last}")
    return done.stdout


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 1800,
) -> None:
    """Run a long program with its output in `log`.

    :param timeout: seconds
    :raises CommandError: as `run`; the message names the log
    """
    words = [str(word) for word in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            code = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if env is None else dict(env),
                cwd=cwd,
                timeout=timeout,
            ).returncode
        except FileNotFoundError as error:
            raise CommandError(f"{words[0]} is not there: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"`{shown(words)}` took longer than {timeout:.0f} s, see {log}") from error
    if code != 0:
        raise CommandError(f"`{shown(words)}` failed with status {code}, see {log}:\n{log_tail(log)}")


def without_proxies(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for programs that talk to the cluster: a proxy on the way to the internet cannot reach it."""
    names = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}
    return {key: value for key, value in environ.items() if key.lower() not in names}


def shown(words: Sequence[str]) -> str:
    text = " ".join(words)
    return text if len(text) <= 160 else text[:157] + "..."


def wait_until(
    check: Callable[[], bool],
    what: str,
    *,
    timeout: float,
    log: Path | None = None,
    alive: Callable[[], bool] | None = None,
    interval: float = 0.1,
) -> None:
    """Poll `check` until it is true.

    :param what: a sentence fragment, as in "the API server is ready"
    :param timeout: seconds
    :param alive: false means that waiting is useless: the process is gone
    :raises NotReadyError: the deadline passed or the process died; names the log and shows its end
    """
    deadline = time.monotonic() + timeout
    while not check():
        reason = ""
        if alive is not None and not alive():
            reason = f"gave up waiting until {what}: the process has ended"
        elif time.monotonic() > deadline:
            reason = f"waited {timeout:.0f} s in vain until {what}"
        if reason:
            tail = f"; end of {log}:\n{log_tail(log)}" if log is not None else ""
            raise NotReadyError(reason + tail)
        time.sleep(interval)
