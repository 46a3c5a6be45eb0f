"""What threads have chosen for themselves: how it is read, written as calls, and fitted to another pod."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_proxy.launcher.snapshot import settings
from singularity_proxy.launcher.snapshot.image import Settings

CPUS = st.lists(st.integers(0, 300), unique=True, max_size=6)


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


def test_a_process_that_has_chosen_nothing_has_no_settings(sleeper: int) -> None:
    assert settings.chosen([sleeper]) == []


def test_what_a_process_has_chosen_is_seen(sleeper: int) -> None:
    *_, last = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(sleeper, {last})
    [found] = settings.chosen([sleeper])
    assert found == Settings(sleeper, [last])
    assert settings.chosen([2**22 - 1]) == [], "it has ended"


@pytest.mark.parametrize(
    ("text", "mode", "nodes"),
    [
        ("interleave:0-1,64", 3, [0, 1, 64]), ("bind=static:1023", 2 | 1 << 15, [1023]), ("prefer:2", 1, [2]),
        ("local", 4, []), ("prefer (many):0-3", 5, [0, 1, 2, 3]), ("bind=static|balancing:0", 2 | 5 << 13, [0]),
        ("weighted interleave=relative:0,3", 6 | 1 << 14, [0, 3]),
    ],
)  # fmt: skip
def test_a_memory_policy_as_the_kernel_writes_it_is_one_as_it_takes_it(text: str, mode: int, nodes: list[int]) -> None:
    found, mask = settings.policy(text)
    assert (found, int.from_bytes(mask, "little"), len(mask)) == (mode, sum(1 << node for node in nodes), 128)


@pytest.mark.parametrize("text", ["", "elsewhere:0", "bind=odd:0", "bind:x"])
def test_another_policy_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"not known|invalid literal"):
        settings.policy(text)


@given(st.lists(CPUS, max_size=4), st.lists(st.integers(0, 300), unique=True, min_size=1, max_size=6))
def test_threads_keep_the_cpus_that_are_there_and_the_rest_is_told(wanted: list[list[int]], here: list[int]) -> None:
    found = [Settings(number, sorted(cpus)) for number, cpus in enumerate(wanted)]
    for each in found:
        bound = [mask for call, _, _, mask in settings.calls(each, here) if call == 203]
        masks = [int.from_bytes(mask, "little") for mask in bound if isinstance(mask, bytes)]
        assert masks == ([sum(1 << cpu for cpu in {*each.cpus} & {*here})] if {*each.cpus} & {*here} else [])
    told = settings.missing(0, found, here)
    assert len(told) == (1 if any({*cpus} - {*here} for cpus in wanted) else 0)
