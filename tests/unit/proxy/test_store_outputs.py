"""Files of ranks at a URL: on every kind of file system, and behind a bad network."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pytest
from faulty_proxy import FaultyProxy
from object_servers import ENDPOINTS

from singularity_proxy.errors import StoreAwayError, StoreError
from singularity_proxy.protocol import outputs as protocol
from singularity_proxy.protocol.outputs import OutputFile, OutputsManifest
from singularity_proxy.store import backend
from singularity_proxy.store.outputs import Outputs, listed

MIB = 1 << 20
BIG = 20 * MIB
"""Two parts of a request."""


def written(work: Path, rank: int, **files: bytes) -> Path:
    folder = work / f"rank-{rank}"
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def manifest(files: list[OutputFile]) -> OutputsManifest:
    return OutputsManifest(protocol.FORMAT, "team-a", "train", 1, 40, "train-a1-g1", files)


def there(url: str) -> dict[str, bytes]:
    """Content of the folder, without the manifest."""
    store = backend.Backend(url)
    names = sorted(set(store.find("")) - {protocol.MANIFEST}) if not store.local else sorted(
        str(path.relative_to(store.root)) for path in Path(store.root).rglob("*")
        if path.is_file() and path.name != protocol.MANIFEST
    )  # fmt: skip
    return {name: store.read(name) or b"" for name in names}


@pytest.fixture(
    params=["file", "memory", "gs", "s3", "gs by fsspec", pytest.param("s3 by fsspec", marks=pytest.mark.full)]
)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    scheme, _, client = request.param.partition(" by ")
    monkeypatch.setenv(backend.CLIENT, client)
    if scheme == "file":
        yield f"file://{tmp_path}/outputs"
    elif scheme == "memory":
        yield f"memory://{tmp_path.name}/outputs"
        memory = fsspec.filesystem("memory")
        if memory.exists(f"/{tmp_path.name}"):
            memory.rm(f"/{tmp_path.name}", recursive=True)
    else:
        yield request.getfixturevalue(f"{scheme}_url") + "/outputs"


def test_files_arrive_as_they_were_and_the_manifest_comes_last(url: str, tmp_path: Path) -> None:
    big = os.urandom(BIG)
    folder = written(tmp_path / "work", 0, model=big, logs__loss=b"0.5\n", empty=b"")
    files, left = listed({0: folder, 1: tmp_path / "work/rank-1"}, tmp_path / "work")
    assert left == [] and {file.path: file.size for file in files} == {"model": BIG, "logs/loss": 4, "empty": 0}
    place, seen = Outputs(url), list[tuple[int, int]]()
    place.probe()
    assert there(url) == {} and place.withdraw() == []
    place.put(files, {0: folder}, tmp_path / "work", lambda *now: seen.append(now))
    assert place.manifest() is None, "nothing is complete yet"
    assert there(url) == {"model": big, "logs/loss": b"0.5\n", "empty": b""}
    assert seen[0] == (0, BIG + 4) and seen[-1] == (BIG + 4, BIG + 4)
    digest = place.complete(manifest(files))
    assert place.manifest() == manifest(files)
    text = backend.Backend(url).read(protocol.MANIFEST) or b""
    assert hashlib.sha256(text).hexdigest() == digest


def test_a_second_time_changes_nothing_and_other_outputs_replace_them(url: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "work", 0, model=b"first", old=b"gone with the next")
    files, _ = listed({0: folder}, tmp_path / "work")
    for _ in range(2):
        place = Outputs(url)
        before = place.withdraw()
        assert place.manifest() is None
        place.put(files, {0: folder}, tmp_path / "work")
        place.complete(manifest(files), before)
        assert there(url) == {"model": b"first", "old": b"gone with the next"}
    backend.Backend(url).write("of-somebody-else", b"stays")
    other = written(tmp_path / "other", 0, model=b"second")
    files, _ = listed({0: other}, tmp_path / "other")
    before = place.withdraw()
    place.put(files, {0: other}, tmp_path / "other")
    place.complete(manifest(files), before)
    assert there(url) == {"model": b"second", "of-somebody-else": b"stays"}


def test_what_is_no_file_is_left_out_by_name_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    folder = written(tmp_path / "work", 0, model=b"1", **{protocol.MANIFEST: b"{}"})
    (folder / "latest").symlink_to(tmp_path / "secret")
    (folder / "away").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("")
    (folder / "line\nbreak").write_text("")
    files, left = listed({0: folder}, tmp_path / "work")
    assert [file.path for file in files] == ["model"]
    why = {each.path: each.why for each in left}
    assert why["latest"] == why["away"] == why["pipe"] == "neither file nor folder"
    assert why[protocol.MANIFEST] == "the name is the manifest's"
    assert "UTF-8" in why["\ufffd"] and "control characters" in why["line\nbreak"]


def test_a_folder_that_is_a_link_or_that_changes_is_not_followed(tmp_path: Path) -> None:
    written(tmp_path / "elsewhere", 0, secret=b"key")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/rank-0").symlink_to(tmp_path / "elsewhere/rank-0")
    assert listed({0: tmp_path / "work/rank-0"}, tmp_path / "work") == ([], [])
    folder = written(tmp_path / "work", 1, model=b"1")
    files, _ = listed({1: folder}, tmp_path / "work")
    place = Outputs(f"file://{tmp_path}/outputs")
    (folder / "model").write_bytes(b"2")
    with pytest.raises(StoreError, match="was changed while it was stored"):
        place.put(files, {1: folder}, tmp_path / "work")
    (folder / "model").unlink()
    (folder / "model").symlink_to(tmp_path / "elsewhere/rank-0/secret")
    with pytest.raises(StoreError, match="a symbolic link"):
        place.put(files, {1: folder}, tmp_path / "work")


@pytest.mark.parametrize("name", ["../up", "/abs", "a//b", "a/./b", "", "a\\b", "x" * 300, protocol.MANIFEST])
def test_names_of_a_manifest_that_lead_elsewhere_are_never_deleted(tmp_path: Path, name: str) -> None:
    assert protocol.problem(name)
    place = Outputs(f"file://{tmp_path}/outputs")
    place.complete(manifest([OutputFile(name, 1, "0" * 64), OutputFile("a/b.pt", 1, "0" * 64)]))
    assert place.withdraw() == ["a/b.pt"] and place.manifest() is None


def test_of_a_name_that_several_ranks_have_the_lowest_counts() -> None:
    def file(path: str, rank: int, content: str = "") -> OutputFile:
        return OutputFile(path, 1, hashlib.sha256(content.encode()).hexdigest(), rank)

    files, left = protocol.together(
        [
            file("model", 1, "b"),
            file("model", 0, "a"),
            file("same", 3),
            file("same", 2),
            file("shard/3", 3),
            file("shard", 4),
            file("x", 0),
            file("x/y", 1),
        ]
    )
    assert [(each.path, each.rank) for each in files] == [("model", 0), ("same", 2), ("shard/3", 3), ("x", 0)]
    assert [(each.path, each.rank, each.why) for each in left] == [
        ("model", 1, "rank 0 has another file of this name"),
        ("x/y", 1, "x of rank 0 is a file"),
        ("shard", 4, "a lower rank has a folder of this name"),
    ]


# --- faults ---------------------------------------------------------------------------------------------------------
@pytest.fixture(params=["gs", "s3"])
def far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, FaultyProxy]]:
    found: str = request.getfixturevalue(f"{request.param}_url")
    variable = ENDPOINTS[urlsplit(found).scheme]
    made = FaultyProxy(urlsplit(os.environ[variable]).port or 0)
    monkeypatch.setenv(variable, made.url)
    yield f"{found}/outputs", made
    made.close()


@pytest.mark.parametrize(("fault", "after", "times"), [("503", 0, 3), ("cut", 2 * MIB, 2), ("silence", 2 * MIB, 1)])
def test_faults_that_pass_cost_time_alone(
    far: tuple[str, FaultyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, after: int, times: int
) -> None:
    monkeypatch.setattr(backend, "FIRST_TRY_S", 4.0)
    monkeypatch.setattr(backend, "SLOWEST", 100 * MIB)
    url, proxy = far
    big = os.urandom(BIG)
    folder = written(tmp_path / "work", 0, model=big)
    files, _ = listed({0: folder}, tmp_path / "work")
    proxy.fail(fault, after=after, times=times)
    Outputs(url).put(files, {0: folder}, tmp_path / "work")
    assert proxy.fired[fault] == times and there(url) == {"model": big}


def test_errors_that_stay_complete_nothing(
    far: tuple[str, FaultyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, proxy = far
    folder = written(tmp_path / "work", 0, model=b"1")
    files, _ = listed({0: folder}, tmp_path / "work")
    proxy.fail("503")
    with pytest.raises(StoreAwayError, match="cannot write model"):
        Outputs(url, patience_s=1).put(files, {0: folder}, tmp_path / "work")
    with pytest.raises(StoreAwayError, match="Give a place that the sidecar may write to"):
        Outputs(url, patience_s=1).probe()
    proxy.heal()
    assert Outputs(url).manifest() is None


def test_a_refusal_comes_at_once(far: tuple[str, FaultyProxy]) -> None:
    url, proxy = far
    proxy.fail("403")
    with pytest.raises(StoreError, match=r"outputs = .*Forbidden.*may write to and delete from") as refused:
        Outputs(url).probe()
    assert not refused.value.passes and proxy.fired["403"] == 1, "it is not tried again"


def test_a_full_disk_is_a_sentence_and_leaves_no_half_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        folder = written(tmp_path / "work", 0, a=b"small", model=os.urandom(2 * MIB))
        files, _ = listed({0: folder}, tmp_path / "work")
        place = Outputs(f"file://{disk}/outputs")
        with pytest.raises(StoreError, match="cannot write model: the disk is full"):
            place.put(files, {0: folder}, tmp_path / "work")
        assert there(f"file://{disk}/outputs") == {"a": b"small"} and place.manifest() is None
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        place.put(files, {0: folder}, tmp_path / "work")
        place.complete(manifest(files))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_another_user_reads_what_lies_in_a_folder(tmp_path: Path) -> None:
    folder = written(tmp_path / "work", 0, deep__er__model=b"1")
    (folder / "deep/er/model").chmod(0o600)
    files, _ = listed({0: folder}, tmp_path / "work")
    Outputs(f"file://{tmp_path}/outputs").put(files, {0: folder}, tmp_path / "work")
    made = tmp_path / "outputs/deep/er/model"
    assert made.stat().st_mode & 0o044 and made.parent.stat().st_mode & 0o055 == 0o055
