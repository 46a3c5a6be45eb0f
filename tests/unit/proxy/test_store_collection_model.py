"""Uploads, commits, retention and collections in every order of their requests: what is committed is all there."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
from interleave import Act, Run, schedules
from store_samples import FOLDER, JOB, NAMESPACE, manifest, noise

from singularity_proxy.errors import StoreError
from singularity_proxy.store import Store, catalog, layout, locks
from singularity_proxy.store.backend import Backend

URL = "memory://interleaved"


@dataclass
class Scene:
    """A job's folder with checkpoint 1, whose manifest is gone: all it had is garbage, and is what `image` holds."""

    image: Path
    store: Store = field(default_factory=lambda: Store(URL, patience_s=0))
    committed: list[int] = field(default_factory=list)
    archive: bytes = b""

    def __post_init__(self) -> None:
        memory = fsspec.filesystem("memory")
        if memory.exists("/interleaved"):
            memory.rm("/interleaved", recursive=True)
        self.checkpoint(1)
        archive = io.BytesIO()
        self.store.export(self.store.read_manifest(NAMESPACE, JOB, f"{JOB}-a1-g1"), archive)
        self.archive = archive.getvalue()
        self.store.backend.delete(layout.manifest_path(NAMESPACE, JOB, f"{JOB}-a1-g1"))
        self.committed.clear()

    def put(self, number: int, part: int = 0) -> None:
        """One pod's upload that nobody commits."""
        self.store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g{number}", {0: self.image}, (part, 2))

    def checkpoint(self, number: int) -> None:
        put = self.store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g{number}", {0: self.image})
        self.store.write_manifest(manifest(put.images, number))
        self.committed.append(number)

    def collect(self) -> None:
        self.store.collect_garbage(NAMESPACE, JOB)

    def retain(self) -> None:
        self.store.prune(NAMESPACE, JOB, 1)
        self.store.collect_garbage(NAMESPACE, JOB)

    def problems(self) -> list[str]:
        """What is missing of checkpoints that are there; the newest committed one has to be."""
        files = self.store.backend.find(FOLDER)
        found = self.store.list_checkpoints(NAMESPACE, JOB)
        missing = [catalog.missing(x.manifest, files) if x.manifest else x.problem for x in found]
        if self.committed and f"{JOB}-a1-g{max(self.committed)}" not in [x.id for x in found]:
            missing.append("the newest manifest is gone")
        return [problem for problem in missing if problem]


Scenario = Callable[[Scene], dict[str, Act]]


def one_collection(scene: Scene) -> dict[str, Act]:
    return {"collection": scene.collect, "pod": lambda: scene.checkpoint(2)}


def given_up_and_again(scene: Scene) -> dict[str, Act]:
    """A checkpoint is given up after its upload; the next one is committed."""

    def pod() -> None:
        scene.put(2)
        scene.store.end_uploads(NAMESPACE, JOB, f"{JOB}-a1-g2", 0)
        scene.checkpoint(3)

    return {"collection": scene.collect, "pod": pod}


def two_collections(scene: Scene) -> dict[str, Act]:
    """A leader's, and somebody's from the command line, which has been there before."""

    def leader() -> None:
        scene.checkpoint(2)
        scene.retain()
        scene.checkpoint(3)

    def other() -> None:
        scene.collect()
        scene.collect()

    return {"collection": other, "pod": leader}


def start_of_an_attempt(scene: Scene) -> dict[str, Act]:
    """The retention at an attempt's start, however late, beside its first checkpoint. A pod died in its upload."""
    scene.put(1, part=1)
    ended = scene.store.uploads(NAMESPACE, JOB)
    assert len(ended) == 1

    def late() -> None:
        scene.store.withdraw_uploads(NAMESPACE, JOB, ended)
        scene.retain()

    return {"collection": late, "pod": lambda: scene.checkpoint(2)}


def an_import(scene: Scene) -> dict[str, Act]:
    def take() -> None:
        scene.store.import_(io.BytesIO(scene.archive))
        scene.committed.append(1)

    return {"collection": scene.collect, "import": take}


SCENARIOS = [one_collection, given_up_and_again, two_collections, start_of_an_attempt, an_import]


def played(tmp_path: Path, scenario: Scenario, most: int, kills: bool = True) -> Iterator[tuple[Run, list[str]]]:
    image = tmp_path / "image"
    image.mkdir()
    (image / "pages-1.img").write_bytes(noise(1, 3000))
    scenes: list[Scene] = []

    def play(prefix: list[int]) -> Run:
        scenes[:] = [Scene(image)]
        run = Run(prefix, frozenset({"collection"}), kills)
        run.play(scenario(scenes[0]))
        return run

    for run in schedules(most, play):
        yield run, scenes[0].problems()


@pytest.mark.parametrize("most", [2, pytest.param(3, marks=[pytest.mark.full, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_committed_is_all_there(tmp_path: Path, scenario: Scenario, most: int) -> None:
    count = 0
    for run, problems in played(tmp_path, scenario, most):
        count += 1
        assert problems == [], "\n".join([*run.log, *problems])
    assert count > 100


def _deaf(patch: pytest.MonkeyPatch) -> None:
    """An upload relies on what a mark names."""
    announce = locks.announce

    def deaf(backend: Backend, folder: str, name: str) -> frozenset[str]:
        announce(backend, folder, name)
        return frozenset()

    patch.setattr(locks, "announce", deaf)


def _blind(patch: pytest.MonkeyPatch) -> None:
    """A collection does not look for uploads."""
    mark = locks.mark

    def blind(backend: Backend, folder: str, objects: Iterable[str]) -> tuple[str, locks.Running]:
        return mark(backend, folder, objects)[0], locks.Running([], frozenset())

    patch.setattr(locks, "mark", blind)


def _forgetful(patch: pytest.MonkeyPatch) -> None:
    """A collection does not look for manifests again after it has looked for uploads."""
    needed, calls = catalog._needed, []

    def once(*args: Any) -> set[str]:
        calls.append(args[-1])
        return set() if sum(manifests is args[-1] for manifests in calls) == 2 else needed(*args)

    patch.setattr(catalog, "_needed", once)


def _tidy(patch: pytest.MonkeyPatch) -> None:
    """A collection whose delete has no answer takes its mark away."""
    collect = catalog.collect_garbage

    def tidy(store: Store, namespace: str, job: str) -> catalog.Collected:
        try:
            return collect(store, namespace, job)
        except StoreError:
            for mark in locks.marks(store.backend, FOLDER):
                locks.withdraw(store.backend, FOLDER, mark)
            raise

    patch.setattr(catalog, "collect_garbage", tidy)


def _sweeping(patch: pytest.MonkeyPatch) -> None:
    """The leader of an attempt withdraws all uploads that there are, instead of those that it has seen before."""

    def sweep(store: Store, namespace: str, job: str, names: Iterable[str]) -> None:
        for name in locks.pod_uploads(store.backend, FOLDER):
            locks.withdraw(store.backend, FOLDER, name)

    patch.setattr(Store, "withdraw_uploads", sweep)


def _same_names(patch: pytest.MonkeyPatch) -> None:
    """What is written anew has the name of what is being deleted."""
    patch.setattr(locks, "draw", lambda: "0" * 16)


@pytest.mark.parametrize(
    ("mistake", "scenario"),
    [
        (_deaf, one_collection), (_blind, one_collection), (_forgetful, one_collection), (_tidy, one_collection),
        (_sweeping, start_of_an_attempt), (_same_names, an_import),
    ],
)  # fmt: skip
def test_the_model_finds_what_each_rule_prevents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None], scenario: Scenario
) -> None:
    mistake(monkeypatch)
    assert any(problems for _, problems in played(tmp_path, scenario, 2))
