"""Keys, and folders that are whole or absent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localcluster.cache import digest, made_once, tree_digest


def test_digest_knows_order_and_boundaries() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest(["a", "b"]) != digest(["b", "a"])
    assert digest(["a"]) == digest([b"a"])


def tree(root: Path) -> Path:
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("1")
    return root


def test_tree_digest_changes_with_name_content_and_mode(tmp_path: Path) -> None:
    root = tree(tmp_path)
    first = tree_digest(root, [root / "pkg"])
    (root / "pkg" / "__pycache__").mkdir()
    (root / "pkg" / "__pycache__" / "a.pyc").write_text("x")
    assert tree_digest(root, [root / "pkg"]) == first
    (root / "pkg" / "a.py").chmod(0o755)
    second = tree_digest(root, [root / "pkg"])
    (root / "pkg" / "a.py").write_text("2")
    third = tree_digest(root, [root / "pkg"])
    (root / "pkg" / "a.py").rename(root / "pkg" / "b.py")
    fourth = tree_digest(root, [root / "pkg"])
    assert len({first, second, third, fourth, tree_digest(root, [root / "pkg"], "other base")}) == 5


def test_concurrent_callers_make_it_once(tmp_path: Path) -> None:
    made: list[Path] = []
    said: list[str] = []

    def make(draft: Path) -> None:
        made.append(draft)
        (draft / "part").write_text("x" * 100_000)

    def call(_: int) -> Path:
        return made_once(tmp_path / "thing", make, what="a thing", progress=said.append)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, range(8)))
    assert results == [tmp_path / "thing"] * 8
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_failure_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(draft: Path) -> None:
        (draft / "half").touch()
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        made_once(tmp_path / "thing", fail, what="a thing", progress=print)
    assert list(tmp_path.iterdir()) == []
    made_once(tmp_path / "thing", lambda draft: (draft / "whole").touch(), what="a thing", progress=print)
    assert [path.name for path in (tmp_path / "thing").iterdir()] == ["whole"]


def test_leftover_of_a_killed_attempt_is_not_mixed_in(tmp_path: Path) -> None:
    leftover = tmp_path / ".thing.draft"
    leftover.mkdir()
    (leftover / "half").touch()
    made_once(tmp_path / "thing", lambda draft: (draft / "whole").touch(), what="a thing", progress=print)
    assert [path.name for path in (tmp_path / "thing").iterdir()] == ["whole"]
