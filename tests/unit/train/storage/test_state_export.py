"""Exports are read by torch itself and by the package safetensors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from torch_nursery import Nursery

from localcluster.config import cache_dir
from localcluster.images.rootfs import beside_torch

pytestmark = [pytest.mark.criu]  # root and the torch environment


def test_each_format_is_read_by_its_own_program(nursery: Nursery, root: Path) -> None:
    site = nursery.folder / "site"
    shutil.copytree(beside_torch(cache_dir(), ["safetensors==0.8.0"], print), site, dirs_exist_ok=True)
    found = nursery.run(1, "state_export_programs.exports", root=str(root), site=str(site))[0]
    assert found["list"][0] == 0 and found["list"][1].count("  step ") == 2
    assert found["help"][0] == 0 and "examples:" in found["help"][1]
    for name in ("torch", "dcp", "safetensors", "left out"):
        assert found[name][0] == 0, found[name]
    assert found["safetensors"][2] == ""
    assert "left out, as safetensors has tensors only: extra.flag" in found["left out"][2]
    for name, words in {
        "there": "it is there already", "no key": "the checkpoint has extra, model, optim",
        "no id": "checkpoint = 'nine'", "nothing": "no committed checkpoint", "no format": "--format and --output",
    }.items():  # fmt: skip
        assert found[name][0] == 2 and words in found[name][2], found[name]
    assert found["no type"][0] == 1 and "complex128" in found["no type"][2]
    assert not [name for name in found["left behind"] if name.endswith("tmp") or name == "x"]
