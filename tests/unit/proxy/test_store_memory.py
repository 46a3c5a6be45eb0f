"""An upload and a download of more than either may have in memory, with a store that is slower than the disk."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_samples import JOB, MIB, NAMESPACE, image, manifest, same

from singularity_proxy.store import Store
from singularity_proxy.store.backend import Backend

SIZE = 384 * MIB
MOST_MB = 150
"""What either may take beyond what the process had before: five packs of 8 MiB, each twice, and its tables."""
CHILD = """
import json, sys, threading, time
from pathlib import Path
from singularity_proxy.launcher.snapshot.page_sink import PageSink
from singularity_proxy.store import PagesSocket, Store
from singularity_proxy.store.backend import Backend
from store_samples import JOB, NAMESPACE, commit, manifest

def memory(kind):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith(kind))

def slowly(name):
    stock = getattr(Backend, name)
    def method(self, path, *args, **options):
        if "/packs/" in path:
            time.sleep(0.2)
        return stock(self, path, *args, **options)
    setattr(Backend, name, method)

what, url, folder = sys.argv[1:]
store = Store(url)
store.probe()
slowly("view" if what == "download" else "write")
before = memory("VmRSS")
if what == "upload":
    commit(store, Path(folder))
elif what == "upload-stream":  # from a launcher that sends as fast as it is let
    rest, over = Path(folder + "-rest"), threading.Event()
    rest.mkdir()
    pages = PagesSocket(rest.parent / "run/pages.sock")
    def send():
        sink = PageSink(rest.parent / "run/pages.sock", 0, time.monotonic() + 180)
        sink.open(1)
        with open(folder + "/pages-1.img", "rb") as file:
            while part := file.read(1 << 20):
                sink.write(1, memoryview(part))
        sink.end(rest)
        over.set()
    threading.Thread(target=send, daemon=True).start()
    growing = lambda: not over.is_set()
    put = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g1", {0: rest}, growing=growing, pages=pages)
    store.write_manifest(manifest(put.images))
    assert put.bytes_ahead > put.bytes / 2, put
else:
    store.fetch_ranks(store.read_manifest(NAMESPACE, JOB, f"{JOB}-a1-g1"), {0: Path(folder)})
print(json.dumps(memory("VmHWM") - before))
"""


def megabytes(*words: object) -> float:
    """By how much the memory of a process that does this grows."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [sys.executable, "-c", CHILD, *map(str, words)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=200, env=env)
    return float(json.loads(done.stdout))


def test_a_checkpoint_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    image, back = tmp_path / "image", tmp_path / "back"
    image.mkdir()
    with (image / "pages-1.img").open("wb") as file:
        for _ in range(SIZE // MIB):
            file.write(os.urandom(MIB))
    url = f"file://{tmp_path}/store"
    assert megabytes("upload", url, image) < MOST_MB
    assert megabytes("download", url, back) < MOST_MB
    streamed = f"file://{tmp_path}/streamed"
    assert megabytes("upload-stream", streamed, image) < MOST_MB
    assert megabytes("download", streamed, tmp_path / "again") < MOST_MB
    assert filecmp.cmp(image / "pages-1.img", tmp_path / "again" / "pages-1.img", shallow=False)
    assert filecmp.cmp(image / "pages-1.img", back / "pages-1.img", shallow=False)


def test_memory_of_a_request_that_was_given_up_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still be sent: under its name there must be nothing else."""
    kept: list[tuple[bytes | memoryview, bytes]] = []
    stock = Backend.write

    def write(backend: Backend, relative: str, data: bytes | memoryview, **options: bool) -> bool:
        stock(backend, relative, data, **options)
        if "/packs/" in relative:
            kept.append((data, bytes(data)))
        return len(kept) % 2 == 0

    monkeypatch.setattr(Backend, "write", write)
    store, folder = Store(f"file://{tmp_path}/store", threads=1), image(tmp_path / "image", size=60 * MIB)
    put = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g1", {0: folder})
    assert len(kept) >= 7 and all(data == sent for data, sent in kept[::2])
    assert any(data != sent for data, sent in kept[1::2]), "memory that is free is used again"
    store.fetch_ranks(manifest(put.images), {0: tmp_path / "back"})
    assert same(folder, tmp_path / "back")


FETCH = """
import sys
from pathlib import Path
import singularity_proxy.sidecar.sidecar
from singularity_proxy.store import PagesSocket, Store
folder, url = Path(sys.argv[1]), sys.argv[2]
store = Store(url)
[listing] = store.list_checkpoints("team", "train")
store.fetch_ranks(listing.manifest, {0: folder / "back"})
PagesSocket(folder / "pages.sock").close()
assert "numpy" not in sys.modules, "the first byte waits for what it does not need"
from singularity_proxy.store import memory
memory.load()
assert "numpy" in sys.modules
"""


def test_a_restore_does_not_wait_for_what_uploads_need(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    source = image(tmp_path / "source", size=MIB)
    made = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g1", {0: source})
    store.write_manifest(manifest(made.images, 1))
    words = [sys.executable, "-c", FETCH, str(tmp_path), f"file://{tmp_path}/store"]
    subprocess.run(words, check=True, timeout=120)
    for path in filter(Path.is_file, source.rglob("*")):
        assert (tmp_path / "back" / path.relative_to(source)).read_bytes() == path.read_bytes()
