"""A process tree whose workers change moves again and again by streams and the store, and loses no bit."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pod_harness import Pod
from pod_moves import dump_anywhere, until
from store_samples import manifest
from streamed_pod import uploading

from singularity_proxy.protocol import messages
from singularity_proxy.store import Arena, Store

pytestmark = pytest.mark.criu
TREE = Path(__file__).with_name("changing_tree.py")


def steps(pod: Pod) -> int:
    path = pod.work(0) / "cwd/chain"
    return path.read_bytes().count(b"\n") if path.exists() else 0


class Moves:
    """The tree in its pod of the moment."""

    def __init__(self, make_pod: Callable[..., Pod], rootfs: Path, criu: Path, folder: Path) -> None:
        self._make, self._options = make_pod, {"rootfs": rootfs, "torch": None, "criu": criu}
        self._arena = Arena(256 << 20)
        self.store, self.count = Store(f"file://{folder}/store"), 0
        self.pod = self._pod(messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)).start()

    def _pod(self, plan: messages.Plan) -> Pod:
        pod = self._make(f"pod-{self.count}", plan=plan, command=["python3", "tree.py", "0"], **self._options)
        (pod.volumes / "source/tree.py").write_text(TREE.read_text())
        return pod

    def on(self, least: int) -> None:
        at = steps(self.pod)
        until(lambda: steps(self.pod) >= at + least, "it goes on", self.pod)

    def let_go_on(self) -> None:
        self.pod.sidecar.command("resume", generation=5)
        self.on(20)

    def fail(self) -> None:
        """Nobody takes the pages."""
        event = dump_anywhere(self.pod, 4, stream=True)
        assert event.kind == "dump_failed", event.message
        self.pod.sidecar.command("resume", generation=4)

    def move(self, way: str) -> None:
        """By a stream; or the tree goes on once it is dumped, to `disk` or to `memory`, and what is stored then is what
        it was."""
        old, self.count = self.pod, self.count + 1
        if way == "stream":
            with uploading(old, self.store) as put:
                event = dump_anywhere(old, 5, stream=True)
            made = put.result(120)
        elif way == "memory":
            with uploading(old, self.store, arena=self._arena) as put:
                event = dump_anywhere(old, 5, stream=True, memory=self._arena.size)
                self.let_go_on()
            made = put.result(120)
        else:
            event = dump_anywhere(old, 5)
            self.let_go_on()
            made = self.store.put_ranks("team", "train", "train-a1-g1", {0: old.image("c", 0)})
        assert event.kind == "dumped", event.message
        self.store.write_manifest(manifest(made.images, self.count))
        old.terminate()
        old.wait_event("terminating")
        old.sidecar.command("exit")
        assert old.wait() == 143, old.log()
        self.pod = self._pod(messages.Plan("restore", self.count + 1, 1, [0], "127.0.0.1", 29501, 5, "c"))
        self.store.fetch_ranks(manifest(made.images, self.count), {0: self.pod.image("c", 0)})
        self.pod.start().wait_event("restored")
        old.forget("c")
        old.delete()
        self.store.prune("team", "train", 2)
        self.store.collect_garbage("team", "train")

    def end(self) -> list[str]:
        """Its chain."""
        (self.pod.work(0) / "cwd/end").touch()
        assert self.pod.wait() == 0, self.pod.log()
        return (self.pod.work(0) / "cwd/chain").read_text().splitlines()


@pytest.fixture
def tree(make_pod: Callable[..., Pod], rootfs: Path, criu_bundle: Path, tmp_path: Path) -> Iterator[Moves]:
    made = Moves(make_pod, rootfs, criu_bundle, tmp_path)
    yield made
    made.pod.delete()


@pytest.mark.parametrize(
    "moves",
    [
        3,
        pytest.param(200, marks=[pytest.mark.full, pytest.mark.timeout(5400)]),
    ],
)
def test_a_changing_tree_is_the_same_after_any_moves(tree: Moves, tmp_path: Path, moves: int) -> None:
    chance = random.Random(moves)
    for number in range(moves):
        tree.on(chance.randrange(1, 60))
        if chance.random() < 0.2:
            tree.fail()
            tree.on(1)
        tree.move(("stream", "memory", "disk")[number % 3])
    tree.on(20)
    found = tree.end()
    alone = tmp_path / "alone"
    alone.mkdir()
    subprocess.run([sys.executable, TREE, str(len(found))], cwd=alone, check=True, timeout=600)
    assert found == (alone / "chain").read_text().splitlines()
