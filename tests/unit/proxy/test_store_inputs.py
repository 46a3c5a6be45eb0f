"""A folder at a URL comes into a pod: from every kind of file system, and over a bad network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from faulty_proxy import FaultyProxy
from object_servers import ENDPOINTS

from singularity_proxy.errors import StoreAwayError, StoreError
from singularity_proxy.protocol import outputs as protocol
from singularity_proxy.store import backend, inputs
from singularity_proxy.store.backend import Backend
from singularity_proxy.store.inputs import Input

MIB = 1 << 20
BIG = 20 * MIB
"""Two parts of a request."""


@pytest.fixture(params=["file", "gs", "s3", "gs by fsspec", pytest.param("s3 by fsspec", marks=pytest.mark.full)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    scheme, _, client = request.param.partition(" by ")
    monkeypatch.setenv(backend.CLIENT, client)
    if scheme == "file":
        return f"file://{tmp_path}/store/data"
    return str(request.getfixturevalue(f"{scheme}_url")) + "/data"


def put(url: str, **files: bytes) -> None:
    store = Backend(url)
    for name, content in files.items():
        source = os.memfd_create("x")
        os.write(source, content)
        store.write_file(name.replace("__", "/"), source, len(content))
        os.close(source)


def found(target: Path) -> dict[str, bytes]:
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def test_a_folder_comes_whole_and_then_its_marker(url: str, tmp_path: Path) -> None:
    big, target, told = os.urandom(BIG), tmp_path / "pod/data", list[tuple[int, int]]()
    put(url, train__images=big, train__labels=b"0123", empty=b"", **{protocol.MANIFEST: b"{}"})
    put(url + "-other", of_another=b"x")
    place = Input(url + "/", target)
    assert not place.complete
    assert place.fetch(lambda *now: told.append(now)) == (3, BIG + 4)
    assert found(target) == {"train/images": big, "train/labels": b"0123", "empty": b""}
    assert place.complete and Input(url, target).complete and not Input(url + "-other", target).complete
    assert told[0] == (0, BIG + 4) and told[-1] == (BIG + 4, BIG + 4)
    assert {path.stat().st_mode & 0o777 for path in target.rglob("*")} == {0o755, 0o644}


def test_a_half_fetched_folder_is_fetched_anew(tmp_path: Path) -> None:
    url, target = f"file://{tmp_path}/data", tmp_path / "pod/data"
    put(url, a=b"1", b=b"2")
    target.mkdir(parents=True)
    (target / "a").write_bytes(b"half")
    (target / "of-before").write_bytes(b"x")
    assert not Input(url, target).complete
    Input(url, target).fetch()
    assert found(target) == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("text", ["", "{", "file:///other", "\udcff"])
def test_a_marker_that_says_something_else_is_none(tmp_path: Path, text: str) -> None:
    place = Input(f"file://{tmp_path}/data", tmp_path / "pod/data")
    place.marker.parent.mkdir()
    place.marker.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert not place.complete


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("key")
    url, target = f"file://{tmp_path}/data", tmp_path / "pod/data"
    put(url, a=b"1")
    (tmp_path / "data/file").symlink_to(tmp_path / "secret/key")
    (tmp_path / "data/folder").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "data/pipe")
    Input(url, target).fetch()
    assert found(target) == {"a": b"1"}
    (tmp_path / "linked").symlink_to(tmp_path / "secret")
    with pytest.raises(StoreError, match=r"linked: nothing lies below it|a symbolic link"):
        Input(f"file://{tmp_path}/linked", target).fetch()


def test_a_name_that_leads_elsewhere_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Input("memory://x/data", tmp_path / "pod/data")
    for name in ("../up", "a//b", "a\\b"):
        monkeypatch.setattr(place._backend, "find", lambda relative, name=name: {name: (1, 0.0)})
        with pytest.raises(StoreError, match="cannot be a file here"):
            place.fetch()
    monkeypatch.setattr(place._backend, "find", lambda relative: {"a": (1, 0.0), "a/b": (1, 0.0)})
    with pytest.raises(StoreError, match="'a' is a file, and other names lie below it"):
        place.fetch()
    assert not place.complete


def test_an_empty_object_where_a_folder_is_counts_as_the_folder(tmp_path: Path, gs_url: str) -> None:
    url = gs_url + "/folders"
    put(url, a__b=b"1")
    place = Input(url, tmp_path / "pod/data")
    listed = {**place._backend.find(""), "a": (0, 0.0)}
    place._backend.find = lambda relative: listed  # type: ignore[method-assign]
    place.fetch()
    assert found(tmp_path / "pod/data") == {"a/b": b"1"}


def test_nothing_there_is_said_at_once(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing lies below it; give the URL of a folder that has files") as error:
        Input(url + "-none", tmp_path / "pod/data").fetch()
    assert not error.value.passes


def test_what_changes_meanwhile_is_an_error(tmp_path: Path, gs_url: str) -> None:
    url = gs_url + "/changes"
    put(url, a=b"12345")
    place = Input(url, tmp_path / "pod/data")
    listed = place._backend.find("")
    place._backend.find = lambda relative: listed  # type: ignore[method-assign]
    put(url, a=b"1")
    with pytest.raises(StoreError, match="a was changed while it was fetched"):
        place.fetch()
    assert not place.complete


def test_a_disk_that_is_too_small_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    disk, url = tmp_path / "disk", f"file://{tmp_path}/data"
    disk.mkdir()
    put(url, a=os.urandom(2 * MIB))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        with pytest.raises(StoreError, match="has 2097152 bytes, and the disk of this pod has 1048576 left for it"):
            Input(url, disk / "data").fetch()
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


# --- faults ---------------------------------------------------------------------------------------------------------
@pytest.fixture(params=["gs", "s3"])
def far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, FaultyProxy, bytes]]:
    found: str = request.getfixturevalue(f"{request.param}_url") + "/data"
    big = os.urandom(BIG)
    put(found, big=big, small=b"1")
    variable = ENDPOINTS[urlsplit(found).scheme]
    made = FaultyProxy(urlsplit(os.environ[variable]).port or 0)
    monkeypatch.setenv(variable, made.url)
    yield found, made, big
    made.close()


@pytest.mark.parametrize(("fault", "after", "times"), [("503", 0, 3), ("cut", 2 * MIB, 2), ("silence", 2 * MIB, 1)])
def test_faults_that_pass_cost_time_alone(
    far: tuple[str, FaultyProxy, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, after: int,
    times: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(backend, "FIRST_TRY_S", 4.0)
    url, proxy, big = far
    proxy.fail(fault, after=after, times=times)
    Input(url, tmp_path / "pod/data").fetch()
    assert proxy.fired[fault] == times and found(tmp_path / "pod/data") == {"big": big, "small": b"1"}


def test_what_is_there_is_not_fetched_again_after_an_error(
    far: tuple[str, FaultyProxy, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, proxy, big = far
    place, fetched, real = Input(url, tmp_path / "pod/data", patience_s=1), list[str](), Input._fetch

    def fetch(self: Input, name: str) -> str:
        fetched.append(name)
        if name == "big" and fetched.count("big") == 1:
            proxy.fail("503")
        return real(self, name)

    monkeypatch.setattr(inputs.Input, "_fetch", fetch)
    with pytest.raises(StoreAwayError, match="cannot read big"):
        place.fetch()
    assert not place.complete
    proxy.heal()
    place.fetch()
    assert fetched == ["small", "big", "big"] and found(tmp_path / "pod/data") == {"big": big, "small": b"1"}


def test_a_refusal_comes_at_once(far: tuple[str, FaultyProxy, bytes], tmp_path: Path) -> None:
    url, proxy, _ = far
    proxy.fail("403")
    with pytest.raises(StoreError, match="Forbidden") as refused:
        Input(url, tmp_path / "pod/data").fetch()
    assert not refused.value.passes
