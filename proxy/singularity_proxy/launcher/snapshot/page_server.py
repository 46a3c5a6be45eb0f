"""A process that takes the memory pages of one rank from CRIU and writes its memory images (`page_images`). When
the job leaves, it sends the content of the pages to the sidecar instead (`page_sink`).

It is a process of its own. The ranks of a pod are dumped at the same time, each with as much of a core as it can get.
It runs outside the rank's slot, so CRIU never sees it. CRIU reaches it over a unix socket in the folder of its logs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...protocol import decode
from .. import reap
from ..errors import DumpError
from ..ranks import process_scan
from ..tools import Tools
from . import page_frames, page_images, page_nowhere, page_stream
from .criu import WAS_KILLED
from .page_disk import PageDisk
from .page_frames import PageFrames
from .page_nowhere import Nowhere
from .page_sink import PageSink
from .page_stream import PROCESS, Opened
from .relative_memory import RelativeMemory

ENDS_S = 10.0
"""How long it may take to end after CRIU has ended."""
_WORDS = 500
Bases = Mapping[int, Sequence[int]]
"""PID of a process -> PIDs of those that it may have memory in common with, the best first."""
Memory = Callable[[int], RelativeMemory | None]
Frames = Callable[[int], PageFrames | None]


class Sidecar(NamedTuple):
    """Where the content of a rank's pages goes.

    :param deadline: of the monotonic clock, which all processes of a machine share
    """

    socket: Path
    rank: int
    deadline: float


class PageServer:
    """The launcher's side.

    :param images: folder of the rank's images
    :param logs: folder for the socket
    :param pids: of the rank's processes, as we see them
    :param drain: None: the pages are written to the images
    """

    def __init__(
        self, tools: Tools, images: Path, logs: Path, pids: Sequence[int], drain: Sidecar | Nowhere | None = None
    ) -> None:
        self.socket = logs / "pages.sock"
        self.said = ""
        self._words = os.fdopen(os.memfd_create("pages"), "w+b")
        family = {"bases": bases(pids), "pids": {process_scan.inner_pid(pid): pid for pid in pids}}
        with _listening(self.socket) as listener:
            number = listener.fileno()
            sink = [] if drain is None else [type(drain).__name__, *(str(value) for value in drain)]
            self._process = reap.spawn(
                tools.python("snapshot.page_server", str(number), str(images), json.dumps(family), *sink),
                env=tools.environment(), pass_fds=(number,), stdin=subprocess.DEVNULL, stdout=self._words,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        _goes_first(self._process.pid)

    def end(self, failed: bool) -> str:
        """To be called when CRIU has ended, or has `failed`. Returns the problem of this server, "" for none.

        `said` is then what it said without a problem.
        """
        ours = ""
        try:
            code = self._process.wait(0.2 if failed else ENDS_S)
        except subprocess.TimeoutExpired:
            ours = "did not end"
            self._process.kill()
            code = self._process.wait(ENDS_S)
        reap.forget(self._process)
        self.socket.unlink(missing_ok=True)
        self._words.seek(0)
        said = self._words.read().decode(errors="replace").strip()[-_WORDS:]
        self._words.close()
        self.said = "" if code else said
        ended = WAS_KILLED if code == -signal.SIGKILL else f"ended with {code}"
        return (said or f"page server: {ours or ended}") if code else ""


def _goes_first(pid: int) -> None:
    """Where the container has no memory left, the kernel kills this process before a rank: a dump can be had again."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def bases(pids: Sequence[int], proc: Path = process_scan.PROC) -> dict[int, list[int]]:
    """For each process its eldest sibling, then its parent, if they once shared memory by a fork. PIDs as the processes
    see them.

    A process without a new exec has its code and its stack at the same addresses as its relatives. Siblings come first:
    workers of a fork server have imported the same modules, each for itself, and the server has not.
    :param pids: as we see them
    """
    people = sorted((process_scan.inner_pid(pid, proc), pid) for pid in pids)
    inner = {pid: number for number, pid in people}
    origin: dict[int, tuple[int, str, str]] = {}
    for number, pid in people:
        with contextlib.suppress(OSError):
            words = process_scan.stat_words(proc / str(pid) / "stat")
            origin[number] = inner.get(int(words[1]), 0), words[23], words[25]
    eldest: dict[tuple[int, str, str], int] = {}
    found = {}
    for number, here in origin.items():
        parent = here[0]
        relatives = [eldest.setdefault(here, number)]
        if parent in origin and origin[parent][1:] == here[1:]:
            relatives.append(parent)
        found[number] = [relative for relative in relatives if relative != number]
    return found


class Family(NamedTuple):
    """The processes of a rank, by their PIDs as they see themselves.

    :param memory: opens the memory of a process; None where nobody may
    :param frames: the same for the frames of its pages
    """

    bases: Bases
    memory: Memory
    frames: Frames


def receive(peer: socket.socket, folder: Path, family: Family, sink: PageSink | PageDisk) -> None:
    """Write the memory images that CRIU sends; the content of pages goes to the sink. Raises DumpError, OSError."""
    images: list[page_images.PageImage] = []
    with contextlib.ExitStack() as files:
        for what in page_stream.read(peer):
            if isinstance(what, Opened):
                images.append(_opened(what, folder, family, images, sink))
                files.callback(images[-1].close)
                continue
            entry, content = what
            if not images:
                raise DumpError("CRIU sent pages of no image")
            if not content.left:
                images[-1].add(entry)
            at = entry.address
            while content.left:
                for there, size in images[-1].look(at, min(content.left, page_stream.BLOCK)):
                    if there:
                        content.skip(size)
                        images[-1].leave_out(at, size, entry.flags)
                    else:
                        images[-1].take(at, content.read(size), entry.flags)
                    at += size
        for image in images:
            image.write_pagemap()
        page_images.write_shared(folder, images)
        sink.end(folder)
    page_stream.accept(peer)


def _opened(
    what: Opened, folder: Path, family: Family, images: Sequence[page_images.PageImage], sink: PageSink | PageDisk
) -> page_images.PageImage:
    processes = {image.number: image for image in images if image.kind == PROCESS and (image.memory or image.frames)}
    wanted = family.bases.get(what.number, ()) if what.kind == PROCESS else ()
    base = next((processes[pid] for pid in wanted if pid in processes), None)
    relative = what.kind == PROCESS and any(what.number in some for some in family.bases.values())
    memory = family.memory(what.number) if relative else None
    frames = family.frames(what.number) if relative or base is not None else None
    number = page_images.FIRST_ID + len(images)
    return page_images.PageImage(folder, what.kind, what.number, number, sink, base, memory, frames)


def _open_memory(pids: Mapping[int, int], number: int) -> RelativeMemory | None:
    try:
        file = os.open(process_scan.PROC / str(pids[number]) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        return RelativeMemory(file, pids[number])
    except (KeyError, OSError) as error:
        print(f"what process {number} shares is saved twice, as nobody may read it: {error!r}", file=sys.stderr)
        return None


def _open_frames(pids: Mapping[int, int], number: int) -> PageFrames | None:
    with contextlib.suppress(KeyError, OSError):
        return PageFrames(pids[number])
    return None


def hidden(number: int) -> None:
    """The frames of process `number` cannot be used."""


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A unix socket: its address has at most 107 bytes, and folders of images may have longer names."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
            listener.listen(1)
            yield listener
    finally:
        os.close(folder)


def main() -> int:
    number, folder, family = int(sys.argv[1]), Path(sys.argv[2]), decode.json_value(sys.argv[3])
    found, pids = ({int(key): value for key, value in family[part].items()} for part in ("bases", "pids"))
    kind, *where = sys.argv[4:] or [""]
    with socket.socket(fileno=number) as listener:
        peer, _ = listener.accept()
    try:
        with peer, contextlib.ExitStack() as stack:
            if kind == Nowhere.__name__:
                page_nowhere.drop(peer, Nowhere(Path(where[0]), float(where[1])))
                return 0
            sidecar = kind == Sidecar.__name__
            sink = PageSink(Path(where[0]), int(where[1]), float(where[2])) if sidecar else PageDisk(folder)
            stack.callback(sink.close)
            frames = partial(_open_frames, pids) if page_frames.usable() else hidden
            receive(peer, folder, Family(found, partial(_open_memory, pids), frames), sink)
    except (DumpError, OSError) as error:
        print(f"page server: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
