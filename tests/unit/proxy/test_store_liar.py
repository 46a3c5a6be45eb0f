"""A store whose server lies: other ranges, fewer bytes, old versions, pages of errors with status 200.

Whatever it answers, no file of an image gets a byte that was not stored, and once it tells the truth all is as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from lying_server import Answer, Lie, LyingServer
from object_servers import ENDPOINTS
from store_samples import JOB, MIB, NAMESPACE, commit, image, noise, same

from singularity_proxy.errors import DamageError, StoreError
from singularity_proxy.store import Store, download, object_client

PAGE = b"<html><body>The service is not available. Please try again.</body></html>" * 100
SIZE = 9 * MIB


def other_range(answer: Answer, whole: bytes) -> Answer:
    """The bytes that follow, said to be those that were asked for."""
    size = len(answer.body)
    return answer._replace(body=(whole[answer.first + 64 :] + whole)[:size])


def other_range_said(answer: Answer, whole: bytes) -> Answer:
    """The same, with the range that it is."""
    return answer._replace(first=answer.first + 64, body=whole[answer.first + 64 :][: len(answer.body)])


def short(answer: Answer, whole: bytes) -> Answer:
    return answer._replace(body=answer.body[: len(answer.body) // 2])


def old_version(answer: Answer, whole: bytes) -> Answer:
    """What had been there before: as long, and other content."""
    return answer._replace(body=noise(9, len(answer.body)))


def whole_object(answer: Answer, whole: bytes) -> Answer:
    """The range was not looked at. HTTP allows that."""
    return Answer(200, 0, whole, len(whole))


def page(answer: Answer, whole: bytes) -> Answer:
    return Answer(200, 0, PAGE, len(PAGE))


def page_in_part(answer: Answer, whole: bytes) -> Answer:
    return answer._replace(body=(PAGE * (len(answer.body) // len(PAGE) + 1))[: len(answer.body)])


LIES: list[Lie] = [other_range, other_range_said, short, old_version, whole_object, page, page_in_part]


@pytest.fixture(params=["gs", pytest.param("s3", marks=pytest.mark.full)])
def liar(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, LyingServer]]:
    """A store in an empty bucket, and what stands before its server."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    variable = ENDPOINTS[request.param]
    server = LyingServer(urlsplit(os.environ[variable]).port or 0)
    monkeypatch.setenv(variable, server.url)
    monkeypatch.setattr(download, "SECOND_LOOK_S", 0.01)
    monkeypatch.setattr(download, "DIRECT", 0)
    yield Store(url, patience_s=1.0), server
    server.close()


def stored_only(back: Path, folder: Path) -> bool:
    """Every byte of a file is what was stored, or a hole."""
    for path in back.rglob("*.img"):
        found, expected = path.read_bytes(), (folder / path.relative_to(back)).read_bytes()
        if any(byte not in (0, wanted) for byte, wanted in zip(found, expected, strict=True)):
            return False
    return True


@pytest.mark.parametrize("lie", LIES)
def test_no_file_gets_what_was_not_stored(liar: tuple[Store, LyingServer], tmp_path: Path, lie: Lie) -> None:
    store, server = liar
    folder = image(tmp_path / "image", size=SIZE)
    made = commit(store, folder)
    server.lie = lie
    with pytest.raises(StoreError):
        store.fetch_ranks(made, {0: tmp_path / "back"})
    assert server.told and stored_only(tmp_path / "back", folder)
    server.lie = None
    store.fetch_ranks(made, {0: tmp_path / "again"})
    assert same(folder, tmp_path / "again")


@pytest.mark.parametrize("lie", [other_range, other_range_said, short, whole_object])
def test_parts_of_a_large_object(
    liar: tuple[Store, LyingServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Lie
) -> None:
    """Where a pack is read in several requests, one of them may lie."""
    store, server = liar
    folder = image(tmp_path / "image", size=SIZE)
    made = commit(store, folder)
    monkeypatch.setattr(object_client, "PART", 3 * MIB)
    server.lie = lambda answer, whole: lie(answer, whole) if answer.first == 3 * MIB else answer
    with pytest.raises(StoreError):
        store.fetch_ranks(made, {0: tmp_path / "back"})
    assert stored_only(tmp_path / "back", folder)


@pytest.mark.parametrize(("lie", "error"), [(short, StoreError), (page, StoreError), (old_version, DamageError)])
def test_a_manifest_that_was_not_committed(
    liar: tuple[Store, LyingServer], tmp_path: Path, lie: Lie, error: type[StoreError]
) -> None:
    """Part of a manifest, and a page in its place, may be a store that is away: that makes no checkpoint unusable."""
    store, server = liar
    made = commit(store, image(tmp_path / "image"))
    digest = store.read_digest(NAMESPACE, JOB, made.id)[1]
    server.about, server.lie = f"/{made.id}.json", lie
    with pytest.raises(error):
        store.read_manifest(NAMESPACE, JOB, made.id, digest)
    assert server.told
    server.lie = None
    assert store.read_manifest(NAMESPACE, JOB, made.id, digest) == made
