"""What a checkpoint holds comes back bit for bit, or an error names what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_nursery import Nursery

pytestmark = [pytest.mark.criu]  # root and the torch environment

BLOCK = 1 << 20


def one(nursery: Nursery, program: str, root: Path) -> dict:
    return nursery.run(1, f"state_content_programs.{program}", root=str(root))[0]


def test_a_state_that_is_not_what_was_saved_is_named(nursery: Nursery, root: Path) -> None:
    found = one(nursery, "mismatches", root)
    words = {
        "missing": "state['model.gate'] is not in the checkpoint",
        "extra": "state['model.bias'] is in the checkpoint only",
        "reshaped": "state['model.weight'] has size [4, 3]; the checkpoint has [4, 2]",
        "dtype": "state['model.bias'] has dtype float64; the checkpoint has float32",
        "object": "state['model.epoch'] is a tensor; the checkpoint has an object",
        "tensor": "state['model.bias'] is an object; the checkpoint has a tensor",
    }
    for name, sentence in words.items():
        kind, message = found.pop(name)
        assert kind == "MismatchError" and sentence in message, message
        assert "build model and optimizer as they were" in message
    assert found == {"optional": ["", ""], "a part": ["", ""]}


def test_the_error_of_one_rank_reaches_all(nursery: Nursery, root: Path) -> None:
    answers = nursery.run(2, "state_content_programs.mismatch_of_one_rank", root=str(root))
    assert answers[0] == answers[1]
    (load, unsavable, differs, steps) = answers[0]
    assert load[0] == "MismatchError" and load[1].startswith("rank 1: ") and "state['w'] has size [3]" in load[1]
    assert unsavable[0] == "UnsavableError" and "rank 1: state['o'] = random.Random" in unsavable[1]
    assert differs[0] == "UnsavableError" and "state['o.who']: ranks 0 and 1 have other values" in differs[1]
    assert steps[0] == "ArgumentError" and "step = [0, 1] by rank" in steps[1]


def test_bad_calls_are_refused_before_anything_is_written(nursery: Nursery, root: Path) -> None:
    found = one(nursery, "bad_calls", root)
    wanted = {
        "keep": ("ArgumentError", "keep = 0"), "timeout": ("ArgumentError", "timeout_s = 0"),
        "step": ("ArgumentError", "step = -1"), "meta": ("ArgumentError", "meta: it is not JSON"),
        "nan": ("ArgumentError", "meta: it is not JSON"),
        "object": ("UnsavableError", "state['w.hook'] = builtins.list"),
        "sparse": ("UnsavableError", "state['w']: layout = torch.sparse_coo"),
        "meta tensor": ("UnsavableError", "state['w']: device = meta"), "same name": ("UnsavableError", "rename one"),
        "no such id": ("DamagedError", "there is no manifest"),
        "stock": ("FormatError", "a checkpoint of torch.distributed.checkpoint"),
        "file": ("WriteError", "cannot write"),
    }  # fmt: skip
    assert found.keys() == wanted.keys()
    for name, (kind, words) in wanted.items():
        assert found[name][0] == kind and words in found[name][1], (name, found[name])


def test_damage_is_found_wherever_it_is(nursery: Nursery, root: Path) -> None:
    found = one(nursery, "damage", root)
    assert len(found["blobs"]) == 2 * 5
    for where, (kind, message) in {**found["blobs"], **found["manifest"]}.items():
        assert kind in ("DamagedError", "FormatError"), (where, kind, message)
        assert str(root) in message, where
    assert {kind for kind, _ in found["blobs"].values()} == {"DamagedError"}
    for name, words in (("engine", "engine = 'process'"), ("version", "version = 2"), ("format", "no manifest of")):
        assert found[name][0] == "FormatError" and words in found[name][1], found[name]
    assert found["older"] is True
    assert found["newest"] == ["", ""]
    assert found["mended"] == ["", ""]  # another process does not build on a blob that it has not checked
    assert found["half"][0] == 4
    assert found["folders"][-1] == found["half"][1] > "00000100-"  # a number is never used again
    assert len(found["folders"]) == 2


def test_objects_come_back_as_they_were(nursery: Nursery, root: Path) -> None:
    found = one(nursery, "objects", root)
    assert found["wrong"] == []
    by_torch = {name for name, kind in found["kinds"].items() if kind == "torch"}
    assert by_torch == {"all.torch", "all.size", "all.mixed"}
    assert found["named"][0] == "UnsavableError" and "state['p']" in found["named"][1]


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [((4, 0), (3, 0)), ((4, 0), (2, 1)), ((2, 1), (3, 0)), ((3, None), (2, 0)), ((2, 0), (3, None))],
)
def test_a_rank_reads_what_it_needs(
    nursery: Nursery, root: Path, saved: tuple[int, int | None], loaded: tuple[int, int | None]
) -> None:
    rows, columns = 1000, 4096  # 16 MB
    size = {"rows": rows, "columns": columns}
    written = nursery.run(saved[0], "state_content_programs.save_placed", root=str(root), placement=saved[1], **size)
    assert sum(written) == rows * columns * 4
    for each in nursery.run(
        loaded[0], "state_content_programs.load_placed", root=str(root), placement=loaded[1], **size
    ):
        if 1 in (saved[1], loaded[1]):  # the other columns lie in the same blocks
            assert each["got"] <= rows * columns * 4
        else:
            assert each["got"] <= each["own"] + 2 * saved[0] * BLOCK
            assert loaded[1] is None or each["got"] < 0.75 * rows * columns * 4


def test_the_code_of_the_documentation_reads_it(nursery: Nursery, root: Path) -> None:
    page = (Path(__file__).parents[4] / "docs/state-checkpoints.md").read_text()
    code = page.rpartition("```python\n")[2].partition("```")[0]
    assert code.startswith("import json")
    nursery.run(3, "state_content_programs.as_documented", root=str(root), code=code)


def test_torchs_own_save_and_load_take_our_writer_and_reader(nursery: Nursery, root: Path) -> None:
    assert one(nursery, "with_torchs_own_calls", root) == {"lr": [0.25, 0.25], "list": [[1, 2], [1, 2]]}
