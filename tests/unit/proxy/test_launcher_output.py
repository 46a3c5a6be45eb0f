"""The launcher passes on what ranks print: whole lines, with a limit, from where an earlier pod ended."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from singularity_proxy.launcher.errors import (
    CommandError,
)
from singularity_proxy.launcher.output import rate_limit
from singularity_proxy.launcher.output.rate_limit import LogRate
from singularity_proxy.launcher.output.tail import LAST, LONGEST, Tail
from singularity_proxy.protocol import names


def test_tail_prefixes_whole_lines_and_the_rest_at_the_end(tmp_path: Path) -> None:
    out, path = io.BytesIO(), tmp_path / "log"
    tail = Tail(path, "[rank 1] ", out)
    assert tail.pump() == 0
    path.write_bytes(b"one\ntwo")
    tail.pump()
    assert out.getvalue() == b"[rank 1] one\n"
    with path.open("ab") as file:
        file.write(b"!\n\nlast")
    tail.pump()
    tail.pump(final=True)
    assert out.getvalue() == b"[rank 1] one\n[rank 1] two!\n[rank 1] \n[rank 1] last\n"
    assert tail.position == path.stat().st_size


def test_tail_begins_where_an_earlier_pod_ended(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"old\nnew\n")
    out = io.BytesIO()
    Tail(tmp_path / "log", "", out, position=4).pump(final=True)
    assert out.getvalue() == b"new\n"


def test_tail_passes_on_endless_lines(tmp_path: Path) -> None:
    out = io.BytesIO()
    (tmp_path / "log").write_bytes(b"x" * (LONGEST + 1))
    Tail(tmp_path / "log", "", out).pump()
    assert out.getvalue() == b"x" * (LONGEST + 1) + b"\n"


def test_tail_of_a_flood_keeps_the_beginning_and_the_end_and_counts_the_rest(tmp_path: Path) -> None:
    out, path, now = io.BytesIO(), tmp_path / "log", [100.0]
    seen: list[bytes] = []
    tail = Tail(path, "[rank 3] ", out, see=seen.append, rate=LogRate(1000, lambda: now[0]))
    with path.open("ab", buffering=0) as file:
        file.write(b"%0100d\n" * 5 % (1, 2, 3, 4, 5))
        tail.pump()
        file.write(b"".join(b"%09d\n" % i for i in range(300_000)))
        tail.pump()
        before = out.getvalue().count(b"\n")
        assert 5 < before < 1000 and b"not shown" not in out.getvalue()
        assert seen[-1] == b"000299999", "progress is read from what is not shown, too"
        file.write(b"also\n")
        now[0] += 0.5
        tail.pump()
        assert out.getvalue().count(b"\n") == before, "for a second nothing is shown"
        now[0] += 0.6
        file.write(b"again\n")
        tail.pump()
        lines = out.getvalue().splitlines()
        assert lines[-1] == b"[rank 3] again" and len(lines) == before + 2
        dropped = 300_006 - before
        said = b"[rank 3] [launcher] %d lines (3.0 MB) are not shown: more than 0.9766 KiB/s; set SING" % dropped
        assert lines[-2].startswith(said)
        file.write(b"x" * 70_000 + b"\n" + b"y\n" * 100_000 + b"Traceback\nValueError: the end")
    tail.pump(final=True)
    lines = out.getvalue().splitlines()
    assert lines[-2:] == [b"[rank 3] Traceback", b"[rank 3] ValueError: the end"]
    assert lines.count(b"[rank 3] y") >= LAST // 2 - 20
    assert any(b"lines (0.1 MB) are not shown" in line for line in lines[-LAST:])


def test_what_was_shown_is_given_back_to_the_disk_while_the_writer_goes_on(tmp_path: Path) -> None:
    path, out = tmp_path / "log", io.BytesIO()
    tail = Tail(path, "", out, rate=LogRate(0))
    with path.open("ab", buffering=0) as file:
        for number in range(8):
            file.write((b"%d" % number) * (1 << 20) + b"\n")
            os.fsync(file.fileno())
            tail.pump()
            assert path.stat().st_blocks * 512 < 3 << 20
        file.write(b"last\n")
    tail.pump(final=True)
    assert path.stat().st_size == 8 * ((1 << 20) + 1) + 5 == tail.position
    shown = out.getvalue()
    assert shown.endswith(b"\nlast\n")
    assert [shown.count(b"%d" % number) for number in range(8)] == [1 << 20] * 8


def test_no_limit_and_a_limit_that_is_no_number() -> None:
    assert rate_limit.from_env({}) == rate_limit.BYTES_PER_S and rate_limit.from_env({names.ENV_LOG_RATE: "0"}) == 0
    assert all(LogRate(0).take(1 << 30) for _ in range(9))
    with pytest.raises(CommandError, match="SINGULARITY_LOG_RATE = '1MB': bytes per second as a whole number"):
        rate_limit.from_env({names.ENV_LOG_RATE: "1MB"})
