"""A pod whose rank holds memory and counts, and an upload that takes its pages while it is dumped."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pod_harness import Pod
from pod_moves import until
from store_samples import manifest

from singularity_proxy.protocol import messages, names
from singularity_proxy.store import Arena, PagesSocket, PutResult, Store

MIB = 1 << 20
HELD = 48
HOLDER = """
import hashlib, os, sys, time
held = bytearray(os.urandom(int(sys.argv[1]) << 20))
own = hashlib.sha256(held).hexdigest()
with open("travels", "wb") as out:
    out.write(os.urandom(int(sys.argv[2]) << 20))
n = 0
while not os.path.exists("end"):
    n += 1
    with open("n.new", "w") as out:
        out.write(str(n))
    os.rename("n.new", "n")
    time.sleep(0.005)
with open("same", "w") as out:
    out.write(str(hashlib.sha256(held).hexdigest() == own))
"""
Start = Callable[..., Pod]


class Holders:
    """Starts pods of one test; `close` takes their disks away."""

    def __init__(self, make_pod: Start, rootfs: Path, criu: Path) -> None:
        self._make, self._rootfs, self._criu = make_pod, rootfs, criu
        self._mounts: list[Path] = []

    def start(
        self, name: str, *, plan: messages.Plan | None = None, travels: int = 0, disk: int = 0, env: Any = None,
        cgroup: Path | None = None, bring: Callable[[Pod], object] = lambda _: None,
    ) -> Pod:  # fmt: skip
        """:param travels: MiB of a file in its working directory

        :param disk: MiB of the volume of its images; 0: as much as there is
        """
        plan = plan or messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
        options = {"rootfs": self._rootfs, "torch": None, "criu": self._criu, "env": env, "cgroup": cgroup}
        pod = self._make(name, plan=plan, command=["python3", "holder.py", str(HELD), str(travels)], **options)
        (pod.volumes / "source/holder.py").write_text(HOLDER)
        if disk:
            images = pod.volumes / "images"
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk}m", "tmpfs", images], check=True)
            self._mounts.append(images)
        bring(pod)
        return pod.start()

    def close(self) -> None:
        for path in self._mounts:
            subprocess.run(["umount", "-l", path], check=True)


def count(pod: Pod) -> int:
    path = pod.work(0) / "cwd/n"
    return int(path.read_text()) if path.exists() else 0


def goes_on(pod: Pod) -> None:
    """Not only alive: its memory is what it was."""
    at = count(pod)
    until(lambda: count(pod) > at + 20, "it goes on", pod)
    (pod.work(0) / "cwd/end").touch()
    assert pod.wait() == 0, pod.log()
    assert (pod.work(0) / "cwd/same").read_text() == "True"


@contextmanager
def uploading(
    pod: Pod, store: Store, cancel: threading.Event | None = None, arena: Arena | None = None
) -> Iterator[Future[PutResult]]:
    """An upload that takes the pages of checkpoint `c` for as long as the context lasts.

    :param arena: where it takes them first
    """
    whole = threading.Event()
    pages = PagesSocket(pod.volumes / "run" / names.PAGES_FILE, arena=arena)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(
            store.put_ranks, "team", "train", "train-a1-g1", {0: pod.image("c", 0)}, growing=lambda: not whole.is_set(),
            below=pod.volumes / "images", pages=pages, cancelled=(cancel or threading.Event()).is_set,
        )  # fmt: skip
        try:
            yield put
        finally:
            whole.set()


def ready(pod: Pod) -> Pod:
    until(lambda: count(pod) > 3, "it counts", pod)
    return pod


def moves(start: Start, pod: Pod, store: Store, put: PutResult) -> None:
    """To another pod, by the store alone."""
    at = count(pod)
    pod.terminate()
    pod.wait_event("terminating")
    pod.sidecar.command("exit")
    assert pod.wait() == 143, pod.log()
    plan = messages.Plan("restore", 2, 1, [0], "127.0.0.1", 29501, 5, "c")
    back = start("back", plan=plan, bring=lambda to: store.fetch_ranks(manifest(put.images), {0: to.image("c", 0)}))
    back.wait_event("restored")
    assert count(back) >= at
    goes_on(back)
