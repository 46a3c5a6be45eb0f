"""What the demo started goes in every outcome: interrupted at any point, more than once, or failing on the way down."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waits import LIMIT_S, until

from localcluster import cluster
from localcluster.demo import main, stage
from localcluster.demo.airflow import Airflow
from localcluster.demo.errors import AirflowStartError
from localcluster.errors import HostError
from localcluster.namespaces import guests


def starting(airflow: Airflow) -> tuple[threading.Thread, list[BaseException]]:
    """`airflow.start()` in a thread, and what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            airflow.start()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """Every `airflow` command of this installation hangs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "airflow.py").write_text("import time\ntime.sleep(300)\n")
    monkeypatch.setenv("PYTHONPATH", str(programs))
    return Airflow(tmp_path / "home", tmp_path / "dags", tmp_path / "kubeconfig")


def test_stop_ends_a_start_that_is_under_way(airflow: Airflow) -> None:
    thread, raised = starting(airflow)
    until(lambda: guests.running(airflow.home))
    airflow.stop()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert isinstance(raised[0], AirflowStartError)
    assert guests.running(airflow.home) == []


def test_nothing_starts_after_stop(airflow: Airflow) -> None:
    airflow.stop()
    with pytest.raises(AirflowStartError, match="stopped"):
        airflow.start()
    assert guests.running(airflow.home) == []


class RecordedStage:
    """A stage on which the story is interrupted, and its teardown as well."""

    closed: list[bool]

    def __init__(self, name: str, say: Callable[[str], None], privileges: str) -> None:
        type(self).closed = []

    def up(self, with_airflow: bool) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the first signal ends the story")

    def close(self, keep: bool) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        self.closed.append(keep)


def test_later_signals_do_not_interrupt_the_teardown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "Stage", RecordedStage)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert main.run_demo(output=tmp_path) == main.INTERRUPTED
    assert RecordedStage.closed == [False]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def downs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the clusters that were taken down."""
    found: list[str] = []

    def down(name: str, **options: Any) -> None:
        found.append(name)

    monkeypatch.setattr(cluster, "down", down)
    return found


def test_the_cluster_goes_even_if_airflow_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage.Stage("unit", print)
    made._started = True

    def fail() -> None:
        raise TimeoutError("a process that cannot be ended")

    monkeypatch.setattr(made, "stop_airflow", fail)
    found = downs(monkeypatch)
    with pytest.raises(TimeoutError):
        made.close()
    assert found == ["unit"]


def test_who_is_not_root_is_told_so_and_nothing_is_taken_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = downs(monkeypatch)
    made = stage.Stage("unit", print)
    with pytest.raises(HostError, match="root"):
        made.up()
    made.close()
    assert found == []
