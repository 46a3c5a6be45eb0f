"""Where the driver's libraries are: only files that the container runtime has mounted from the node.

A rank is root on the container's file system and may put a library of any name there; it cannot change read-only
mounts. Whoever writes the pod chooses its volumes, also read-only ones, with paths of any name, and the image, whose
links lead a volume elsewhere. So a mount is judged by what it shows, not by where it lies:

- NVIDIA's runtime and CDI mount each library by itself, from a folder of libraries of the node or of the driver's own
  container; GKE mounts one folder of the node's.
- The kubelet mounts volumes from its own folder, from memory, from a server, or from the root of a file system. A part
  of a claim may look as a file of the node does: the guard of pods lets nobody mount one read-only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
FOLDERS = ("", "lib64", "lib")
"""Of a mounted folder."""
DISKS = frozenset(("btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "squashfs", "xfs", "zfs"))
"""File systems of nodes; others are in memory or on a server."""
anywhere = False
"""Outside of a container: the loader finds them."""

_FILE = re.compile(r"/lib(32|64)?/([^/]+/)*lib(cuda|nvidia-ml)\.so(\.\d+)*\Z")
_FOLDER = re.compile(r"/(home/kubernetes/bin|opt|usr/local)/nvidia\Z")
_VOLUME = re.compile(r"(^|/)pods/[^/]+/volume|/kubernetes\.io~|/snapshots/\d+/|/storage/overlay")
"""Of the kubelet, and of an image that is mounted as a volume."""


def find(name: str, mountinfo: Path | None = None) -> str | None:
    """The path of the library `name` (libcuda.so.1); None: it is not here, or the runtime has not mounted it."""
    if anywhere:
        return name
    stem = name.removesuffix(".1")
    for point, shown in sorted(_of_the_runtime(mountinfo or MOUNTINFO)):
        if _FILE.search(shown) and (point.name == stem or point.name.startswith(f"{stem}.")):
            if point.is_file():
                return str(point)
        elif _FOLDER.search(shown) and point.is_dir():
            for folder in FOLDERS:
                path = Path(os.path.realpath(point / folder / name))
                if path.is_file() and path.is_relative_to(point):
                    return str(path)
    return None


def _of_the_runtime(mountinfo: Path) -> Iterator[tuple[Path, str]]:
    """Mount points with the path that each shows of its file system: the topmost mounts, if they are read-only and no
    volume."""
    try:
        lines = [line.split() for line in mountinfo.read_text().splitlines()]
    except OSError:
        return
    for words in {words[4]: words for words in lines if len(words) > 5 and "-" in words}.values():
        kind, _, options = words[words.index("-", 6) + 1 :][:3]
        shown, point, own = _text(words[3]), _text(words[4]), words[5].split(",")
        # A container that runs writes into its root; an image that is a volume has nothing to write into.
        on_disk = kind in DISKS and (kind != "overlay" or "upperdir=" in options)
        if "ro" in own and on_disk and not _VOLUME.search(shown):
            yield Path(point), shown


def _text(word: str) -> str:
    return re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), word)
