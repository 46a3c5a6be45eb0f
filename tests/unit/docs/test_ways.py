"""Each shell block of the pages that start, train and install is run by a test, or says itself that none runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from shell_blocks import ROOT, scripts

SECTIONS = ("Start", "Train", "Install")
NOT_RUN = "# No test of this project runs this"
"""The first words of a block that is run by hand only."""

FIRST_JOB, API_SERVER = "tests/e2e/test_e2e_first_job.py", "tests/unit/kueue/test_typed_pages.py"
WHEEL, SHELL = "tests/unit/packaging/test_wheel.py", "tests/e2e/test_e2e_command_line.py"
INSTALL_PAGES = "tests/e2e/test_e2e_install_pages.py"
TYPED = {
    "README.md": {"Try it on one machine": "Makefile"},
    "docs/start/try-it.md": {"Try it on one machine": "Makefile"},
    "docs/start/first-dag.md": {
        "Before you start": WHEEL, "See it move": "tests/e2e/test_e2e_first_dag.py",
    },
    "docs/start/command-line.md": {
        "Install the command": WHEEL, "Submit, and stay until the end": SHELL, "Change it while it trains": SHELL,
    },
    "docs/administration/images.md": {"Private registries": API_SERVER, "The wheel": WHEEL},
    "docs/administration/install.md": {
        "What you allow": API_SERVER, "Install": INSTALL_PAGES, "Fence the queues": INSTALL_PAGES,
        "Prepare a namespace": INSTALL_PAGES,
    },
    "docs/administration/first-job.md": {
        "A volume for results": FIRST_JOB, "Train": FIRST_JOB, "Read the weights in the next job": FIRST_JOB,
        "Clean up": FIRST_JOB,
    },
    "docs/administration/upgrade.md": {
        "Before the upgrade": INSTALL_PAGES, "Upgrade": INSTALL_PAGES, "Roll back": INSTALL_PAGES,
        "Remove": INSTALL_PAGES, "To 0.1.0 after a rotation": API_SERVER,
    },
    "docs/administration/keys.md": {
        "Three ways to make them": INSTALL_PAGES, "Rotate": API_SERVER, "Backup and restore": API_SERVER,
        "Encrypted checkpoints": API_SERVER, "Rotate the key of checkpoints": API_SERVER,
        "A key of checkpoints is lost": API_SERVER,
    },
    "docs/administration/gitops.md": {"With Argo CD or Flux": API_SERVER},
}  # fmt: skip
"""Page, heading -> the file that types the block as it stands, but for names in capitals."""

READ = {
    "README.md": {"Put it on your cluster": API_SERVER},
    "docs/start/try-it.md": {
        "The same story without a privilege": "tests/e2e/test_e2e_state_engine.py",
        "Look at it": "tests/e2e/test_e2e_cluster_life.py",
    },
    "docs/start/first-dag.md": {
        "A queue that admits it": "tests/unit/airflow/test_first_dag_page.py",
        "Run it": "tests/e2e/test_e2e_first_dag.py",
    },
    "docs/guides/placement.md": {"Place and devices": "tests/e2e/test_e2e_placement.py"},
    "docs/time-travel.md": {
        "A loss spike: `rewind`": "tests/e2e/test_e2e_time_travel.py",
        "Exploring from one state: `fork`": "tests/e2e/test_e2e_time_travel.py",
        "A new job from a checkpoint: `submit --start-from`": "tests/e2e/test_e2e_time_travel.py",
    },
    "docs/guides/state-engine.md": {
        "The change in a script": "tests/unit/docs/test_state_diff.py", "Prove it": "tests/unit/train/test_prove.py",
    },
    "docs/guides/frameworks.md": {
        "Checkpoints for the frameworks alone": "tests/unit/train/frameworks/test_store_export.py",
    },
    "docs/workload-kinds.md": {
        "A user's own Job": "tests/e2e/test_e2e_adopt.py",
        "Kubeflow TrainJob (Trainer v2.2)": "tests/e2e/test_e2e_trainjob.py",
    },
    "docs/administration/images.md": {"The plugin of kubectl": WHEEL},
    "docs/gpu.md": {"The kit": "tests/unit/proxy/test_gpu_kit.py"},
}  # fmt: skip
"""... -> the file that does the same with names and values of its own. `test_shell_blocks` and `test_install_blocks`
read the commands as `singularityctl` and Helm read them."""


class Loader(yaml.SafeLoader):
    """Takes mkdocs.yml, whose settings come from the environment."""


Loader.add_constructor("!ENV", lambda loader, node: "")


def blocks() -> dict[tuple[str, str], str]:
    """(page, heading) -> shell blocks."""
    nav: list[dict[str, Any]] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    sections = [pages for entry in nav for name, pages in entry.items() if name in SECTIONS]
    pages = ["README.md", *(f"docs/{page}" for section in sections for entry in section for page in entry.values())]
    return {
        (page, heading): script
        for page in pages
        for heading, script in scripts((ROOT / page).read_text(), "sh", "bash", "console").items()
    }


def known(table: dict[str, dict[str, str]]) -> dict[tuple[str, str], str]:
    return {(page, heading): file for page, found in table.items() for heading, file in found.items()}


def test_each_block_is_run_by_a_test_or_says_that_none_does() -> None:
    found = blocks()
    by_hand = {key for key, script in found.items() if script.startswith(NOT_RUN)}
    tested = {**known(TYPED), **known(READ)}
    assert found.keys() == tested.keys() | by_hand and not by_hand & tested.keys()
    assert len(by_hand) <= 2 and len(known(TYPED)) > len(known(READ))


@pytest.mark.parametrize("file", sorted({*known(TYPED).values(), *known(READ).values()}))
def test_the_file_that_runs_a_block_is_there(file: str) -> None:
    assert (ROOT / file).exists()


@pytest.mark.parametrize(("page", "heading", "file"), [(*key, file) for key, file in known(TYPED).items()])
def test_what_is_typed_is_read_from_the_page(page: str, heading: str, file: str) -> None:
    text = (ROOT / file).read_text()
    if file == "Makefile":
        full = text.partition("test-full: ")[2].partition("\n\n")[0]
        assert "demo" in full and blocks()[page, heading].startswith("make demo")
    else:
        assert Path(page).name in text
