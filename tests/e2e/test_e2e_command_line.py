"""The page "From the shell" as it stands: each command of its shell blocks, on the queue of the local cluster."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shell import Shell
from shell_blocks import lines

from kueue_integration.jobs.status import JobStatus, describe
from kueue_integration.kube.resources import JOB
from localcluster.demo.stage import CHECKOUT, NAMESPACE, Stage
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800), pytest.mark.full]
PAGE = CHECKOUT / "docs/start/command-line.md"
TIMEOUT_S = 600.0
UNTIL_THE_END = ("submit", "status", "logs")
"""Commands that stay until the job has ended."""

FIRST_TRAINS = {"resize": 1, "migrate": 2, "pause": 3}
"""Commands that a person types while the job trains, and the attempt that makes steps then."""


@pytest.fixture
def digits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], JobStatus]]:
    """The job of the page, as a user reads it. It is gone afterwards."""
    monkeypatch.chdir(CHECKOUT)
    yield lambda: describe(stage.kube, NAMESPACE, "digits")
    Shell(stage.cluster).type("kubectl delete job digits --ignore-not-found")


def trains(look: Callable[[], JobStatus], attempts: int) -> None:
    """Until attempt `attempts` has made steps."""

    def holds() -> bool:
        status = look()
        assert not status.final, f"{status.phase}: {status.message}"
        return status.attempt >= attempts and status.phase == "Running" and bool(status.step)

    wait_for(holds, f"steps of attempt {attempts}", TIMEOUT_S, detail=lambda: look().message)


def test_the_commands_of_the_page_run(
    stage: Stage, digits: Callable[[], JobStatus], tmp_path: Path, say: Callable[[str], None]
) -> None:
    shell = Shell(stage.cluster)
    commands = [line for line in lines(PAGE.read_text()) if line.startswith("singularityctl ")]
    assert len(commands) > 8 and " submit " in commands[0]
    follow: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for line in commands:
            words = shlex.split(line)[1:]
            if words[0] in UNTIL_THE_END:
                follow[words[0]] = shell.start(tmp_path / words[0], *words)
                wait_for(lambda: stage.kube.find(JOB, NAMESPACE, "digits"), "the job is there", TIMEOUT_S)
            else:
                if words[0] in FIRST_TRAINS:
                    trains(digits, FIRST_TRAINS[words[0]])
                said = shell.type(line)
                say(f"{line}\n{said.strip() or '(says nothing)'}")
        ends = {name: process.wait(TIMEOUT_S) for name, process in follow.items()}
    finally:
        for process in follow.values():
            process.kill()
            process.wait(30)
    errors = {name: (tmp_path / name).with_suffix(".err").read_text() for name in follow}
    assert set(ends.values()) == {0}, (ends, errors)
    last = digits()
    assert (last.phase, last.steps_lost, last.step) == ("Succeeded", 0, 900)
    assert [a.ended_by for a in last.attempts] == ["Resized", "Migrated", "Paused", "Finished"]
    assert [a.flavor for a in last.attempts[:3]] == ["ondemand", "ondemand", "spot"]
    printed = [int(n) for n in re.findall(r"step (\d+) loss", (tmp_path / "logs").read_text())]
    assert printed == sorted(set(printed)) and printed[-1] == 880
