"""How the pages of a rank go from the launcher to the sidecar during a dump: frames on a unix socket.

    begin    magic, rank
    frame    number of a file of pages, bytes (at most LONGEST), content; the files' content in order
    end      0, 0; the answer is one byte, 0: everything was taken

Little-endian 32-bit words. A connection that closes before the answer was no dump. `LIST`, a file in the folder of the
images, says which files were sent, and their bytes: an image is complete only together with them.
"""

from __future__ import annotations

import struct
from typing import Final

WORDS: Final = struct.Struct("<II")
MAGIC: Final = 0x50474631
LONGEST: Final = 1 << 20
"""Bytes of content in one frame."""
END: Final = WORDS.pack(0, 0)
TAKEN: Final = b"\0"
LIST: Final = "streamed.json"
"""Name of a file of pages -> bytes."""


def file_name(number: int) -> str:
    """Of the file of pages, as CRIU looks for it."""
    return f"pages-{number}.img"
