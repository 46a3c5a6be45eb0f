"""Memory images of a dump, read as CRIU reads them, with none of our own code but the fields of protobuf."""

from __future__ import annotations

import struct
from pathlib import Path

from singularity_proxy.launcher.snapshot import protobuf
from singularity_proxy.launcher.snapshot.page_stream import IN_PARENT, PAGE

Memory = dict[int, bytes]
"""Page number -> content."""


def restored(folder: Path, name: str) -> Memory:
    """Memory as CRIU reads it: what is IN_PARENT comes from the folder `parent`. Read with none of our own code."""
    data = (folder / name).read_bytes()
    at, found, pages = 8, [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        found.append({f.number: f.value for f in protobuf.fields(data[at + 4 : at + 4 + size])})
        at += 4 + size
    content = (folder / f"pages-{found[0][1]}.img").read_bytes()
    memory: Memory = {}
    above: Memory | None = None
    for entry in found[1:]:
        for page in range(int(entry[1]) // PAGE, int(entry[1]) // PAGE + int(entry[5])):
            if int(entry[4]) & IN_PARENT:
                above = restored(folder / "parent", name) if above is None else above
                memory[page] = above[page]
            else:
                memory[page] = content[pages * PAGE : (pages + 1) * PAGE]
                pages += 1
    assert pages * PAGE == len(content), "content without an entry"
    return memory
