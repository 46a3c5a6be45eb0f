"""A rank that ends because another one was gone says so; one that fails by itself does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from singularity_proxy.agent import lost
from singularity_proxy.protocol import names

REPOSITORY = Path(__file__).resolve().parents[3]
CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.200.0.7]:4242"


class DistNetworkError(RuntimeError):
    """Named as torch's own."""


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (RuntimeError(CLOSED), True),
        (RuntimeError("Connection reset by peer"), True),
        (DistNetworkError("The client socket has timed out"), True),
        (caused(ValueError("step 3"), RuntimeError(CLOSED)), True),
        (ValueError("loss is nan"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ConnectionResetError("Connection reset by peer"), False),  # the user's own connection, to a database, say
        (None, False),
    ],
)
def test_whose_error_it_is(error: BaseException | None, wanted: bool) -> None:
    assert lost.is_lost_peer(error) is wanted


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert not lost.is_lost_peer(first)


@pytest.mark.parametrize("hook", ["", "sys.excepthook = lambda *_: None\n"])
@pytest.mark.parametrize(("text", "wanted"), [(CLOSED, True), ("out of ideas", False)])
def test_a_process_leaves_the_word_at_its_end(tmp_path: Path, text: str, wanted: bool, hook: str) -> None:
    program = (
        "import atexit, pathlib, sys\n"
        "from singularity_proxy.agent import lost\n"
        f"atexit.register(lost.note, pathlib.Path({str(tmp_path)!r}))\n"
        f"{hook}raise RuntimeError({text!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, timeout=120)
    assert done.returncode == 1
    assert (tmp_path / names.LOST_PEER_FILE).exists() is wanted
