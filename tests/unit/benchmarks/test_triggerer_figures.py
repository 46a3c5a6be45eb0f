"""The pure parts of the triggerer's figures, and the look at a real process."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from airflow_provider.triggers import SingularityJobTrigger
from benchmarks import triggerer
from benchmarks.session import Session

JOB = {"metadata": {"name": "many-1", "namespace": "n", "uid": "u"}}


def test_the_triggers_are_those_that_the_operators_defer_to():
    from airflow.providers.cncf.kubernetes.triggers.job import KubernetesJobTrigger

    path, kwargs = triggerer.we_wait(JOB)
    made = SingularityJobTrigger(**kwargs)
    assert made.serialize()[0] == path and made.get_logs
    path, kwargs = triggerer.they_wait(JOB)
    assert KubernetesJobTrigger(**kwargs).serialize()[0] == path
    path, kwargs = triggerer.nobody_waits(3)
    from benchmarks.deferred import NothingTrigger

    assert NothingTrigger(**kwargs).serialize() == (path, kwargs)


def test_a_pod_that_has_ended_well():
    one = {"name": "train", "state": {"running": {}}, "ready": True}
    status = triggerer.ended({"status": {"phase": "Running", "containerStatuses": [one]}})
    assert status["phase"] == "Succeeded"
    assert status["containerStatuses"][0]["state"] == {"terminated": {"exitCode": 0, "reason": "Completed"}}
    assert status["initContainerStatuses"] == []


def test_quantile():
    assert triggerer.quantile([1.0], 0.95) == 1.0
    assert triggerer.quantile([float(n) for n in range(1, 41)], 0.95) == 38.0
    with pytest.raises(ValueError, match="no values"):
        triggerer.quantile([], 0.5)


def test_what_a_session_takes():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = (
            f"import socket, os; s = socket.create_connection(('127.0.0.1', {port})); x = 'a' * 20_000_000\n"
            "n = sum(range(3_000_000)); pid = os.fork()\n"
            "print('ready', flush=True) if pid else None\n"
            "import sys; sys.stdin.read()"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            seen = Session(child.pid)
            assert len(seen.pids()) == 2
            assert seen.connections(port) == 1 and seen.connections(port + 1 if port < 65535 else 1) == 0
            assert seen.memory_kb() > 20_000 and seen.cpu_s() > 0
        finally:
            child.communicate(timeout=30)
