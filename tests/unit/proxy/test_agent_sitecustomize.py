"""The agent in an interpreter: one variable switches it on, the image's own sitecustomize runs, nothing breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def python(lib: Path, code: str, *more: Path, **env: str) -> subprocess.CompletedProcess[str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SINGULARITY", "USE_"))}
    path = os.pathsep.join(map(str, (lib, *more)))
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=lib,
        env={**base, "PYTHONPATH": path, **env},
        text=True,
        capture_output=True,
        timeout=60,
    )


STATE = "import os, sys; print(os.environ.get('USE_LIBUV'), [n for n in sys.modules if n.startswith('_singularity')])"


def test_off_without_a_rank(agent_lib: Path) -> None:
    done = python(agent_lib, STATE)
    assert (done.stdout.strip(), done.stderr) == ("None []", "")


def test_on_in_a_rank(agent_lib: Path, tmp_path: Path) -> None:
    done = python(agent_lib, STATE, SINGULARITY_RANK_DIR=str(tmp_path))
    assert done.stdout.strip() == "0 ['_singularity', '_singularity.agent', '_singularity.agent.hooks']"
    assert done.stderr == ""


@pytest.mark.parametrize("rank_dir", ["", "/run/rank-0"])
def test_the_images_own_sitecustomize_runs(agent_lib: Path, tmp_path: Path, rank_dir: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.own = 'here'")
    done = python(agent_lib, "import sys; print(sys.own)", own, SINGULARITY_RANK_DIR=rank_dir)
    assert done.stdout.strip() == "here"


def test_a_broken_agent_is_reported_and_breaks_nothing(agent_lib: Path, tmp_path: Path) -> None:
    (agent_lib / "_singularity/agent/hooks.py").write_text("raise ImportError('half an installation')")
    done = python(agent_lib, "print('trains')", SINGULARITY_RANK_DIR=str(tmp_path))
    assert (done.returncode, done.stdout.strip()) == (0, "trains")
    assert "agent is off, this rank cannot be checkpointed" in done.stderr
    assert "half an installation" in done.stderr


def test_an_older_python_is_told_and_trains(agent_lib: Path, tmp_path: Path) -> None:
    code = "import sys, runpy; sys.version_info = (3, 9, 2); runpy.run_path('sitecustomize.py'); print('trains')"
    done = python(agent_lib, f"import os; os.environ['SINGULARITY_RANK_DIR'] = {str(tmp_path)!r}; {code}")
    assert (done.returncode, done.stdout.strip()) == (0, "trains")
    assert "agent is off, it needs Python 3.10 or newer, not " in done.stderr


def optimizer_module(folder: Path, text: str) -> Path:
    """Stands in for the one module of torch that the hook looks for: this test is about the import machinery."""
    package = folder / "torch/optim"
    package.mkdir(parents=True)
    (folder / "torch/__init__.py").write_text("")
    (package / "__init__.py").write_text("from . import optimizer")
    (package / "optimizer.py").write_text(text)
    return folder


def test_the_hook_is_installed_after_the_import(agent_lib: Path, tmp_path: Path) -> None:
    site = optimizer_module(tmp_path / "site", "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n")
    code = "import torch.optim.optimizer as o; print([h.__module__ for h in o.hooks])"
    done = python(agent_lib, code, site, SINGULARITY_RANK_DIR=str(tmp_path))
    assert done.stdout.strip() == "['_singularity.agent.membership']"
    assert python(agent_lib, code, site).stdout.strip() == "[]"


def test_a_torch_without_the_hook_is_reported_and_works(agent_lib: Path, tmp_path: Path) -> None:
    site = optimizer_module(tmp_path / "site", "answer = 42\n")
    code = "import torch.optim.optimizer as o; print(o.answer)"
    done = python(agent_lib, code, site, SINGULARITY_RANK_DIR=str(tmp_path))
    assert done.stdout.strip() == "42"
    assert "the hook on torch.optim.optimizer failed, this rank cannot be checkpointed" in done.stderr


def test_a_module_that_fails_to_import_fails_as_ever(agent_lib: Path, tmp_path: Path) -> None:
    site = optimizer_module(tmp_path / "site", "raise RuntimeError('no GPU')\n")
    done = python(agent_lib, "import torch.optim", site, SINGULARITY_RANK_DIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: no GPU")


def test_a_users_module_named_like_ours_is_not_shadowed(agent_lib: Path, tmp_path: Path) -> None:
    for name in ("proxy", "agent", "protocol", "launcher", "names", "page"):
        (tmp_path / f"{name}.py").write_text("mine = True")
        done = python(agent_lib, f"import {name}; print({name}.mine)", tmp_path, SINGULARITY_RANK_DIR=str(tmp_path))
        assert done.stdout.strip() == "True", (name, done.stderr)


@pytest.mark.parametrize(
    ("version", "hooked"),
    [("2.5.1+cu124", False), ("1.13.1", False), ("2.6.0", True), ("2.15.0a0+git", True), ("x", True)],
)
def test_a_torch_that_is_too_old_is_left_alone_and_said(
    agent_lib: Path, tmp_path: Path, version: str, hooked: bool
) -> None:
    site = optimizer_module(tmp_path / "site", "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n")
    (site / "torch/version.py").write_text(f"__version__ = {version!r}\n")
    (site / "torch/__init__.py").write_text("from . import version\n")
    code = "import torch.optim.optimizer as o; print(len(o.hooks))"
    done = python(agent_lib, code, site, SINGULARITY_RANK_DIR=str(tmp_path))
    assert done.stdout.strip() == str(int(hooked))
    said = f"torch is {version}, older than 2.6: the training runs, but this rank cannot be checkpointed"
    assert done.stderr.count(said) == (0 if hooked else 1)
