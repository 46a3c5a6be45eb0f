"""Programs that fail and conditions that never come true say enough to act on."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster.errors import CommandError, NotReadyError, log_tail
from localcluster.shell import run, run_logged, wait_until


def test_output_and_input() -> None:
    assert run(["cat"], stdin="hello") == "hello"


def test_failure_shows_status_and_last_words() -> None:
    with pytest.raises(CommandError, match=r"(?s)status 3.*out of luck"):
        run(["sh", "-c", "echo out of luck >&2; exit 3"])


def test_missing_program_and_time_limit() -> None:
    with pytest.raises(CommandError, match="no-such-program is not there"):
        run(["no-such-program"])
    with pytest.raises(CommandError, match="longer than 0 s"):
        run(["sleep", "30"], timeout=0.2)


def test_logged_failure_names_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    with pytest.raises(CommandError, match=rf"(?s)see {log}:.*the reason"):
        run_logged(["sh", "-c", "echo the reason; exit 1"], log)
    assert log.read_text() == "the reason\n"


def test_wait_until_shows_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    with pytest.raises(NotReadyError) as caught:
        wait_until(lambda: False, "the part is ready", timeout=0.2, log=log)
    text = str(caught.value)
    assert "in vain until the part is ready" in text
    assert str(log) in text
    assert "line 99" in text
    assert "line 80" not in text


def test_wait_until_gives_up_on_a_dead_process() -> None:
    with pytest.raises(NotReadyError, match="the process has ended"):
        wait_until(lambda: False, "it is ready", timeout=3600, alive=lambda: False)


def test_tail_of_a_missing_log(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "none") == ""
