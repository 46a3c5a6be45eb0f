"""Where the driver's libraries are: only files that the container runtime has mounted, never a file of the image.

They run with the launcher's capabilities. A rank is root on the container's file system, and may put a library of any
name there. It cannot change read-only mounts. NVIDIA's runtime mounts each library by itself, GKE one folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
FOLDERS = ("", "lib64", "lib")
"""Of a mounted folder."""
anywhere = False
"""Outside of a container: the loader finds them."""


def find(name: str, mountinfo: Path | None = None) -> str | None:
    """The path of the library `name` (libcuda.so.1); None: it is not here, or not mounted read-only."""
    if anywhere:
        return name
    stem = name.removesuffix(".1")
    for point in _read_only(mountinfo or MOUNTINFO):
        if point.name == stem or point.name.startswith(f"{stem}."):
            if point.is_file():
                return str(point)
        elif "nvidia" in point.name and point.is_dir():
            for folder in FOLDERS:
                path = Path(os.path.realpath(point / folder / name))
                if path.is_file() and path.is_relative_to(point):
                    return str(path)
    return None


def _read_only(mountinfo: Path) -> list[Path]:
    """The mount points whose topmost mount is read-only, except the root."""
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:
        return []
    options = {words[4]: words[5].split(",") for line in lines if len(words := line.split()) > 5}
    points = [re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), text) for text, o in options.items() if "ro" in o]
    return sorted(Path(point) for point in points if point != "/")
