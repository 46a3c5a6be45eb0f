"""Programs and libraries that a hostile rank plants: whoever runs one leaves its /proc/self/status in RECORD.

Made by hand, byte for byte: no compiler is expected on a machine that runs the tests, nor in the image.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

RECORD = "/recorded"

# Position-independent x86_64: push rbx, r12; 4 KiB of stack; a = open(RECORD, O_WRONLY|O_CREAT|O_APPEND, 0666);
# b = open("/proc/self/status", O_RDONLY); n = read(b, stack, 4096); write(a, stack, n); close(b); close(a); pop.
_BODY = bytes.fromhex(
    "5341544881ec00100000b802000000488d3d69000000be41040000bab60100000f054189c4b802000000488d3d5800000031f60f0589c389c7"
    "31c04889e6ba001000000f054889c2b8010000004489e74889e60f05b80300000089df0f05b8030000004489e70f054881c400100000415c5b"
)
_EXIT = bytes.fromhex("b8e7000000bf010000000f05")  # exit_group(1)
_NOTHING = b"\x90" * len(_EXIT)
_TEXT = RECORD.encode() + b"\0/proc/self/status\0"
_HEADER, _PROGRAM = 64, 56
_DYNAMIC, _LOAD, _STACK = 2, 1, 0x6474E551
_BASE = 0x400000

PYTHON = f"""
try:
    open({RECORD!r}, "a").write(open("/proc/self/status").read())
except OSError:
    pass
raise ImportError("planted")
"""


def program() -> bytes:
    """A static program that records who runs it, and ends with 1."""
    code = _BODY + _EXIT + b"\xc3" + _TEXT
    start = _HEADER + _PROGRAM
    load = _segment(_LOAD, 0, _BASE, start + len(code), 7)
    return _header(2, _BASE + start, 1) + load + code


def library() -> bytes:
    """A shared library that records who loads it."""
    code = _BODY + _NOTHING + b"\xc3" + _TEXT
    start = _HEADER + 3 * _PROGRAM
    symbols = start + len(code) + -(start + len(code)) % 8
    strings = symbols + 24
    table = strings + 8  # a hash table with one bucket and the one symbol that every library has
    dynamic = table + 24
    entries = [(12, start), (5, strings), (10, 1), (6, symbols), (11, 24), (4, table), (0, 0)]
    size = dynamic + 16 * len(entries)
    named = _segment(_DYNAMIC, dynamic, dynamic, 16 * len(entries), 6)
    # A running program is given no library that wants code on its stack, as one that says nothing does.
    stack = _segment(_STACK, 0, 0, 0, 6)
    head = _header(3, 0, 3) + _segment(_LOAD, 0, 0, size, 7) + named + stack
    body = (head + code).ljust(symbols, b"\0") + bytes(24) + bytes(8) + struct.pack("<6I", 1, 1, 0, 0, 0, 0)
    return body + b"".join(struct.pack("<QQ", *entry) for entry in entries)


def _header(kind: int, entry: int, segments: int) -> bytes:
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    return identity + struct.pack(
        "<HHIQQQIHHHHHH", kind, 62, 1, entry, _HEADER, 0, 0, _HEADER, _PROGRAM, segments, 64, 0, 0
    )


def _segment(kind: int, offset: int, address: int, size: int, flags: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, 0x1000 if kind == _LOAD else 8)


def files() -> dict[str, str]:
    """What a rank that plants needs in its working directory: `plant.py`, and what it plants."""
    made = {"program": program(), "library": library(), "module": PYTHON.encode()}
    plant = Path(__file__).parents[1] / "unit/proxy/programs/plant.py"
    return {plant.name: plant.read_text(), **{f"planted.{name}": content.hex() for name, content in made.items()}}


ADDED = sum(1 << number for number in (12, 19, 21, 25))
"""NET_ADMIN, SYS_PTRACE, SYS_ADMIN, SYS_TIME: what a training container adds for its launcher."""


@dataclass(frozen=True)
class Ran:
    """Something planted was run: by whom, with which effective capabilities."""

    name: str
    effective: int


def ran(record: Path) -> list[Ran]:
    """What RECORD says; nothing if it is not there."""
    if not record.exists():
        return []
    found, name = [], ""
    for line in record.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key == "Name":
            name = value.strip()
        elif key == "CapEff":
            found.append(Ran(name, int(value, 16)))
    return found
