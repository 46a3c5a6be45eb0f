"""`python -m singularity_proxy.store`, as other tools call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from store_samples import FOLDER, JOB, NAMESPACE, commit, image

from singularity_proxy.store import Store
from singularity_proxy.store.command import main

WHERE = ["--namespace", NAMESPACE, "--job", JOB, "--json"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(f"file://{tmp_path}/store")
    for number in (1, 2):
        commit(made, image(tmp_path / f"image-{number}", number), number)
    return made


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main(list(words))
    return status, json.loads(capsys.readouterr().out)


def test_every_command(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--store", store.url]
    status, found = call(capsys, "ls", *at, "--json")
    assert status == 0
    assert [(c["id"], c["step"], c["pinned"]) for c in found["checkpoints"]] == [
        ("train-a1-g2", 17, False), ("train-a1-g1", 17, False),
    ]  # fmt: skip
    assert call(capsys, "ls", *at, "--namespace", "other", "--json") == (0, {"checkpoints": []})
    status, found = call(capsys, "show", *at, *WHERE, "latest")
    assert status == 0 and found["id"] == "train-a1-g2" and found["ranks"][0]["files"] == 4 and found["problem"] == ""
    assert call(capsys, "verify", *at, *WHERE, "latest")[1] == {"id": "train-a1-g2", "objects": 2, "problems": []}
    archive = str(tmp_path / "one.tar")
    assert call(capsys, "export", *at, *WHERE, "train-a1-g1", archive)[0] == 0
    assert call(capsys, "pin", *at, *WHERE, "latest") == (0, {"id": "train-a1-g2", "pinned": True})
    assert call(capsys, "unpin", *at, *WHERE, "train-a1-g2")[0] == 0
    assert call(capsys, "prune", *at, *WHERE, "--keep", "1") == (0, {"deleted": ["train-a1-g1"]})
    status, found = call(capsys, "gc", *at, "--json")
    assert status == 0 and found["jobs"][0]["deleted"] == 2 and found["jobs"][0]["freed"] > 1 << 20
    status, found = call(capsys, "import", *at, "--job", "copy", "--json", archive)
    assert (status, found) == (0, {"id": "train-a1-g1", "namespace": NAMESPACE, "job": "copy"})
    assert main(["ls", *at]) == 0
    assert "train-a1-g2" in capsys.readouterr().out


def test_what_is_wrong_is_said_with_status_1(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--store", store.url]
    assert "no checkpoint 'x'" in call(capsys, "show", *at, *WHERE, "x")[1]["error"]
    for path in store.backend.find(f"{FOLDER}/packs"):
        store.backend.write(path, b"damaged")
    status, found = call(capsys, "verify", *at, *WHERE, "train-a1-g1")
    assert status == 1 and "7 bytes instead of" in found["problems"][0]
    assert "no checkpoint that can be used" in call(capsys, "show", *at, *WHERE, "latest")[1]["error"]
    assert main(["ls", "--store", "nosuch://x"]) == 1
    assert main(["gc", *at, "--job", JOB]) == 2 and main(["gc", *at, "--ended"]) == 2


def test_uploads_that_broke_off_end_when_that_is_said(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--store", store.url, *WHERE]
    store.put_ranks(NAMESPACE, JOB, "train-a1-g3", {0: image(tmp_path / "image-3", 3)})
    (job,) = call(capsys, "gc", *at)[1]["jobs"]
    assert job["deleted"] == 0 and job["uploads_running"] == store.uploads(NAMESPACE, JOB) != []
    (job,) = call(capsys, "gc", *at, "--ended")[1]["jobs"]
    assert job["deleted"] == 2 and job["uploads_running"] == [] == store.uploads(NAMESPACE, JOB)


def test_as_a_process_it_reads_an_archive_from_a_pipe(store: Store, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "singularity_proxy.store"]
    export = [*command, "export", "--store", store.url, "--namespace", NAMESPACE, "--job", JOB, "latest", "-"]
    archive = subprocess.run(export, check=True, capture_output=True).stdout
    take = [*command, "import", "--store", f"file://{tmp_path}/other", "--json", "-"]
    done = subprocess.run(take, check=True, input=archive, capture_output=True)
    assert json.loads(done.stdout)["id"] == "train-a1-g2"
    broken = subprocess.run(take, input=archive[:-100_000], capture_output=True)
    assert broken.returncode == 1
