"""What a rank leaves behind for its launcher, which has more rights than the rank: nothing but a small JSON object."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from singularity_proxy.launcher.output.result import hand_over
from singularity_proxy.protocol.messages import RESULT_BYTES

LONGEST = '{"value": "' + "x" * (RESULT_BYTES - len('{"value": ""}')) + '"}'


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


@pytest.mark.parametrize("content", ['{"value": null}', '{"notes": []}', LONGEST], ids=["null", "notes", "longest"])
def test_an_object_is_handed_over_as_it_is(tmp_path: Path, content: str) -> None:
    text(content)(tmp_path / "left")
    (tmp_path / "to").write_text("of an earlier rank")
    assert hand_over(tmp_path / "left", tmp_path / "to") == ""
    assert (tmp_path / "to").read_text() == content


def test_nothing_is_nothing(tmp_path: Path) -> None:
    assert hand_over(tmp_path / "left", tmp_path / "to") == ""
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "left: "),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.mkdir(), "left: "),
        (text(LONGEST.replace("x", "xx", 1)), "longer than 48000 bytes"),
        (text("{"), "is not valid JSON"),
        (text('{"value": NaN}'), "left is "),
        (text("[1]"), "has no JSON object"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "left is "),
    ],
    ids=["link", "pipe", "folder", "too long", "cut", "nan", "list", "bytes"],
)
def test_anything_else_is_named_and_stays(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    make(tmp_path / "left")
    assert why in hand_over(tmp_path / "left", tmp_path / "to")
    assert [path.name for path in tmp_path.iterdir()] == ["left"]


def test_a_folder_that_takes_nothing_is_named(tmp_path: Path) -> None:
    text("{}")(tmp_path / "left")
    assert "to: No such file or directory" in hand_over(tmp_path / "left", tmp_path / "absent" / "to")
