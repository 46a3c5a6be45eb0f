"""What a pod ends with: exit codes of ranks, memory that is used up, orders of a slot that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from singularity_proxy.launcher import memory, verdict
from singularity_proxy.launcher.ranks import slot_init


# --- memory -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("events", "limit", "none"),
    [
        ("memory.events", "memory.max", "max"),
        ("memory/memory.oom_control", "memory/memory.limit_in_bytes", "9223372036854771712"),
    ],
)
def test_out_of_memory_is_told_with_the_limit(tmp_path: Path, events: str, limit: str, none: str) -> None:
    (tmp_path / "memory").mkdir()
    assert (memory.oom_kills(tmp_path), memory.limit(tmp_path)) == (0, None)
    (tmp_path / events).write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert memory.oom_kills(tmp_path) == 2
    (tmp_path / limit).write_text("536870912\n")
    assert memory.sentence(tmp_path).endswith("the limit of the container is 512 MiB")
    (tmp_path / limit).write_text(f"{none}\n")
    assert "has no limit, so its node had no memory left" in memory.sentence(tmp_path)


# --- exit codes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("codes", "wanted"),
    [({}, None), ({1: 0}, None), ({0: 0, 1: 0}, 0), ({1: 7, 0: 3}, 7), ({0: 0, 1: 139}, 139), ({0: 143, 1: 0}, 1)],
)
def test_exit_code(codes: dict[int, int], wanted: int | None) -> None:
    assert verdict.exit_code(codes, 2) == wanted


@pytest.mark.parametrize(
    ("codes", "lost", "stopped", "wanted"),
    [
        ({0: 1, 1: 1}, {0, 1}, set(), 143),
        ({0: 1, 1: 3}, {0}, set(), 3),  # its own error beside one that came from it
        ({0: 1, 1: 143}, {0}, {1}, 143),
        ({0: 3, 1: 143}, set(), {1}, 3),
        ({0: 137, 1: 1}, {1}, set(), 137),
        ({0: 1, 1: 0}, {0}, set(), 143),
        ({0: 1}, {0}, set(), None),
    ],
)
def test_a_peer_that_was_lost_is_not_this_pods_failure(
    codes: dict[int, int], lost: set[int], stopped: set[int], wanted: int | None
) -> None:
    assert verdict.exit_code(codes, 2, lost, stopped) == wanted


@pytest.mark.parametrize(
    ("failed_for", "sent", "wanted"),
    [
        (None, False, None),
        (1, False, None),
        (5, False, "TERM"),
        (6, True, None),
        (10, True, "KILL"),
        (10, False, "KILL"),
    ],
)
def test_what_the_others_get_after_a_failure(failed_for: float | None, sent: bool, wanted: str | None) -> None:
    assert verdict.stop_signal(failed_for, sent) == wanted


# --- slot init --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"no", "Expecting value"),
        (b"[]", "expected a JSON object, got list"),
        (b"{}", "exactly one of run, adopt, tool"),
        (b'{"adopt": 1, "tool": []}', "exactly one of"),
        (b'{"tool": 1}', "tool = 1: expected list"),
        (b'{"tool": ["x"], "env": {}}', "tool: real = None: expected list"),
        (b'{"tool": ["x"], "env": {}, "real": []}', "tool: connect = None: expected str"),
        (b'{"adopt": true}', "adopt = True: expected int"),
        (b'{"run": ["x"], "env": {}, "cwd": "/"}', "run: log = None: expected str"),
    ],
)
def test_bad_orders_are_named(line: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        slot_init.parse(line)
