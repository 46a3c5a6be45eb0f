"""A PID alone is not an identity."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from localcluster.namespaces.procfs import HOST_PROC, ProcessId, host_pids, identify, parse_stat, resident_bytes, same


def test_command_with_spaces_and_parentheses() -> None:
    fields = " ".join(str(number) for number in range(1, 50))
    state, started = parse_stat(f"42 (a) (b c) S {fields}\n")
    assert (state, started) == ("S", 19)  # field 22 of the line, counted from 1


def test_running_process_is_itself_and_a_reused_number_is_not() -> None:
    own = identify(HOST_PROC, os.getpid())
    assert own is not None
    assert same(own)
    assert not same(ProcessId(own.pid, own.started - 1))


def test_dead_and_zombie_processes_do_not_run() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not collected: a zombie
    assert (HOST_PROC / str(child.pid)).exists()
    assert identify(HOST_PROC, child.pid) is None
    child.wait()
    assert identify(HOST_PROC, child.pid) is None


def test_memory_of_a_process() -> None:
    assert resident_bytes(HOST_PROC, os.getpid()) > 1 << 20
    assert resident_bytes(Path("/nowhere"), 1) == 0


def test_own_namespace_numbers_are_the_host_numbers() -> None:
    numbers = host_pids(os.getpid())
    assert os.getpid() in numbers.values()
