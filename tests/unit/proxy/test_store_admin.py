"""What people ask a store: the same answers in this process and from `python -m proxy.store`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.protocol.manifest import Manifest, Requirements
from proxy.store import Store, admin

NEEDS = Requirements(architecture="x86_64", cpu_flags_digest="")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with checkpoints train-a1-g1 .. g3 of job team/train."""
    url = f"file://{tmp_path}/store"
    store = Store(url)
    for number in (1, 2, 3):
        image = tmp_path / f"image-{number}"
        image.mkdir()
        (image / "pages-1.img").write_bytes(os.urandom(5000))
        images = store.put_ranks("team", "train", f"train-a1-g{number}", {0: image}).images
        store.write_manifest(
            Manifest(
                id=f"train-a1-g{number}", namespace="team", job="train", attempt=1, generation=number, step=10 * number,
                world_size=1, engine="process", created_at=1000.0 + number, ranks=images,
                requirements=NEEDS,
            )
        )  # fmt: skip
    return url


def ids(url: str) -> list[str]:
    return [entry["id"] for entry in admin.answer(url, ["ls", "team", "train"])["result"]]


def test_ls_and_show(url: str) -> None:
    found = admin.answer(url, ["ls", "team", "train"])["result"]
    assert [(e["id"], e["step"], e["bytes"]) for e in found[:1]] == [("train-a1-g3", 30, 5000)]
    shown = admin.answer(url, ["show", "team", "train", "train-a1-g2"])["result"]
    assert shown["ranks"] == [{"rank": 0, "files": 1, "bytes": 5000}]
    assert shown["requirements"]["architecture"] == "x86_64"
    assert admin.answer(url, ["ls", "team", "nobody"]) == {"result": []}


def test_verify_finds_every_altered_byte(url: str, tmp_path: Path) -> None:
    assert admin.answer(url, ["verify", "team", "train", "train-a1-g1"])["result"]["problems"] == []
    packs = [p for p in (tmp_path / "store").rglob("packs/*") if p.is_file()]
    for path in packs:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
    found = admin.answer(url, ["verify", "team", "train", "train-a1-g1"])["result"]
    assert len(found["problems"]) == 1 and found["objects"] == 2
    assert "does not match its digest" in found["problems"][0]


def test_gc_keeps_the_newest_and_what_is_live(url: str) -> None:
    plan = admin.answer(url, ["gc", "team", "train", "1", "plan", "train-a1-g1"])["result"]
    assert plan == {
        "deleted": False, "checkpoints": ["train-a1-g2"], "stay": ["train-a1-g3", "train-a1-g1"], "bytes_freed": 0,
        "uploads": [],
    }  # fmt: skip
    assert ids(url) == ["train-a1-g3", "train-a1-g2", "train-a1-g1"]
    done = admin.answer(url, ["gc", "team", "train", "1", "delete", "train-a1-g1"])["result"]
    assert done["deleted"] and done["checkpoints"] == ["train-a1-g2"]
    assert ids(url) == ["train-a1-g3", "train-a1-g1"]
    assert admin.answer(url, ["verify", "team", "train", "train-a1-g1"])["result"]["problems"] == []


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ([], "ask ls"), (["ls", "team"], "ask `ls NAMESPACE JOB`"), (["gc", "team", "train", "0", "plan"], "keep = 0"),
        (["show", "team", "train", "nothing"], "no checkpoint 'nothing'"),
        (["ls", "../x", "train"], "not a Kubernetes"),
    ],
)  # fmt: skip
def test_bad_questions_are_answered_with_a_sentence(url: str, question: list[str], words: str) -> None:
    assert words in admin.answer(url, question)["error"]


def test_the_same_from_the_command_line(url: str) -> None:
    def ask(*words: str) -> tuple[int, object]:
        done = subprocess.run(
            [sys.executable, "-m", "proxy.store", *words], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    assert ask(url, "ls", "team", "train") == (0, admin.answer(url, ["ls", "team", "train"]))
    code, said = ask("ftp5://nowhere", "ls", "team", "train")
    assert code == 1 and isinstance(said, dict) and "error" in said
    assert ask()[0] == 1
