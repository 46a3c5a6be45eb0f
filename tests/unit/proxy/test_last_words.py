"""The end of a traceback in one line, out of what a rank has printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from singularity_proxy.launcher.output import last_words

PROGRAM = """
def load(batch):
    raise ValueError(f"bad batch {batch}")

def main():
    load(3)

main()
"""


def test_a_real_traceback_becomes_one_line(tmp_path: Path) -> None:
    script, log = tmp_path / "train.py", tmp_path / "stdout.log"
    script.write_text(PROGRAM)
    with log.open("wb") as out:
        subprocess.run([sys.executable, script], stdout=out, stderr=subprocess.STDOUT, timeout=120, check=False)
    said = last_words.of_file(log)
    assert said == "ValueError: bad batch 3 (train.py:8 in <module>, train.py:6 in main, train.py:3 in load)"


@pytest.mark.parametrize(
    "text",
    ["", "step 1\nstep 2\n", "Traceback (most recent call last):\n", "Segmentation fault\n",
     'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x()\n'],
)  # fmt: skip
def test_without_a_whole_traceback_there_are_none(text: str) -> None:
    assert last_words.of_text(text) == ""


def test_what_torch_puts_before_each_line_is_left_out(tmp_path: Path) -> None:
    """So ranks that fail with the same words are seen to do so."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    marked = "".join(f"[rank13]: {line}\n" if line else "\n" for line in done.stderr.splitlines())
    assert last_words.of_text(f"step 7\n{marked}") == last_words.of_text(done.stderr)
    assert last_words.of_text(marked).startswith("ValueError: bad batch 3 (train.py:8 in <module>")


def test_the_last_of_several_counts() -> None:
    caught = 'Traceback (most recent call last):\n  File "/x/a.py", line 1, in f\nKeyError: 1\n'
    assert last_words.of_text(f"{caught}step 3\n{caught.replace('KeyError: 1', 'OSError: 2')}bye\n") == (
        "OSError: 2 (a.py:1 in f)"
    )


def test_it_stays_short_whatever_is_printed(tmp_path: Path) -> None:
    frames = "".join(f'  File "{"d" * 300}/{"n" * 300}.py", line {n}, in {"f" * 300}\n' for n in range(50))
    text = f"Traceback (most recent call last):\n{frames}{'E' * 9000}\n"
    assert 0 < len(last_words.of_text(text)) <= last_words.MOST
    log = tmp_path / "log"
    log.write_bytes(b"\0" * (1 << 20) + text.encode())  # blocks that were given back read as zeros
    assert len(last_words.of_file(log)) <= last_words.MOST
    assert last_words.of_file(tmp_path / "none") == ""
