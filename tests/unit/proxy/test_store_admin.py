"""What people ask a store: the same answers in this process and from `python -m singularity_proxy.store`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from singularity_proxy.protocol.manifest import Manifest, Requirements
from singularity_proxy.store import Store, admin

NOISE = os.urandom(5000)
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


def test_each_question_asks_for_its_words(url: str) -> None:
    for name in admin.QUESTIONS.keys() - {"probe"}:
        assert f"ask `{name} NAMESPACE" in admin.answer(url, [name])["error"]
    assert admin.answer(url, ["probe"]) == {"result": {"url": url}}
    assert admin.answer(url, ["jobs", "team"]) == {"result": ["train"]} != admin.answer(url, ["jobs", "other"])


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
    assert re.search(r"has chunk \d of other content than its key", found["problems"][0])


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
        ([], "ask jobs, ls"), (["ls", "team"], "ask `ls NAMESPACE JOB`"),
        (["gc", "team", "train", "0", "plan"], "keep = 0"),
        (["ls", "a", "b", "c"], "ask `ls NAMESPACE JOB`"), (["gc", "team", "train", "1", "all"], "what = 'all'"),
        (["show", "team", "train"], "ask `show NAMESPACE JOB CHECKPOINT [SHA256]`"),
        (["show", "team", "train", "nothing"], "no checkpoint 'nothing'"),
        (["ls", "../x", "train"], "not a Kubernetes"),
    ],
)  # fmt: skip
def test_bad_questions_are_answered_with_a_sentence(url: str, question: list[str], words: str) -> None:
    assert words in admin.answer(url, question)["error"]


def test_the_same_from_the_command_line(url: str) -> None:
    def ask(*words: str) -> tuple[int, object]:
        done = subprocess.run(
            [sys.executable, "-m", "singularity_proxy.store", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    assert ask(url, "ls", "team", "train") == (0, admin.answer(url, ["ls", "team", "train"]))
    code, said = ask("ftp5://nowhere", "ls", "team", "train")
    assert code == 1 and isinstance(said, dict) and "error" in said
    assert ask()[0] == 1


def state_url(tmp_path: Path, engine: str = "state") -> str:
    """A store with a checkpoint of two ranks, of which the first has the manifest."""
    for rank, files in enumerate(({"blobs/a": b"1", "checkpoints/c/manifest.json": b"{}"}, {"blobs/b": NOISE})):
        for name, data in files.items():
            path = tmp_path / f"rank-{rank}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    url = f"file://{tmp_path}/store"
    folders = {rank: tmp_path / f"rank-{rank}" for rank in (0, 1)}
    images = Store(url).put_ranks("team", "tiny", "tiny-a1-g1", folders).images
    made = Manifest(
        id="tiny-a1-g1", namespace="team", job="tiny", attempt=1, generation=1, step=4, world_size=2, engine=engine,
        created_at=1e9, ranks=images, requirements=NEEDS,
    )  # fmt: skip
    Store(url).write_manifest(made)
    return url


def test_fetch_lays_the_parts_of_the_ranks_together(tmp_path: Path) -> None:
    url, target = state_url(tmp_path), tmp_path / "deep/er/fetched"
    question = ["fetch", "team", "tiny", "tiny-a1-g1", str(target)]
    found = admin.answer(url, question)["result"]
    assert found == {"id": "tiny-a1-g1", "step": 4, "folder": str(target), "bytes": 5003}
    files = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert files == {"blobs/a": b"1", "blobs/b": NOISE, "checkpoints/c/manifest.json": b"{}"}
    assert [path.name for path in target.parent.iterdir()] == ["fetched"]
    assert "it is there already" in admin.answer(url, question)["error"]
    other = [*question[:-1], str(tmp_path / "other")]
    assert "is not the manifest that was committed" in admin.answer(url, [*other, "0" * 64])["error"]
    (pack,) = [p for p in (tmp_path / "store").rglob("packs/*") if p.stat().st_size > 4000]
    pack.write_bytes(pack.read_bytes()[:-1] + b"x")
    assert "pack" in admin.answer(url, other)["error"]
    assert not (tmp_path / "other").exists() and not (tmp_path / "other.images").exists()


def test_fetch_refuses_images_of_processes(tmp_path: Path) -> None:
    url = state_url(tmp_path, "process")
    said = admin.answer(url, ["fetch", "team", "tiny", "tiny-a1-g1", str(tmp_path / "x")])["error"]
    assert "is one of engine 'process'" in said and not (tmp_path / "x").exists()
