"""Cutting connections in CRIU's files.img, and mending other images.

That CRIU restores what is left is shown in test_launcher_anywhere.py and test_held_programs.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_proxy.launcher.errors import DumpError
from singularity_proxy.launcher.snapshot import connections, files_image, overlaid, protobuf, sessions, timers
from singularity_proxy.launcher.snapshot.protobuf import Field
from singularity_proxy.launcher.snapshot.sockets import Socket, leads_out

MAGICS = struct.pack("<II", 0x54564319, 0x56303138)
ESTABLISHED, CLOSED, LISTEN = 1, 7, 10
TCP, UDP, RAW = 6, 17, 255


def words(address: str) -> list[int]:
    return list(struct.unpack("<I", bytes(int(part) for part in address.split("."))))


def inet(protocol: int, state: int, source: tuple[str, int], target: tuple[str, int] = ("0.0.0.0", 0)) -> list[Field]:
    """inet_sk_entry as CRIU writes it, up to the owner and the options."""
    numbers = [(1, 7), (2, 4711), (3, 2), (4, 1), (5, protocol), (6, state), (7, source[1]), (8, target[1])]
    entry = [Field(number, 0, value) for number, value in [*numbers, (9, 2), (10, 0)]]
    entry += [Field(11, 0, word) for word in words(source[0])] + [Field(12, 0, word) for word in words(target[0])]
    # An owner with a negative pid, and options: both must come through untouched.
    return [*entry, Field(13, 2, protobuf.encode([Field(1, 0, 2**64 - 1)])), Field(14, 2, b"\x08\x01")]


def file(*entries: list[Field]) -> bytes:
    """files.img of a regular file and these sockets."""
    regular = [Field(1, 0, 1), Field(2, 0, 3), Field(3, 2, b"\x0a\x04name")]
    messages = [regular, *([Field(1, 0, 2), Field(2, 0, 7), Field(4, 2, protobuf.encode(e))] for e in entries)]
    parts = [protobuf.encode(message) for message in messages]
    return MAGICS + b"".join(struct.pack("<I", len(part)) + part for part in parts)


def sockets(data: bytes) -> list[dict[int, int | bytes]]:
    entries = [list(protobuf.fields(entry)) for entry in protobuf.messages(data, MAGICS)]
    found = [f.value for entry in entries for f in entry if f.number == 4]
    return [{f.number: f.value for f in protobuf.fields(value)} for value in found if isinstance(value, bytes)]


def test_tcp_to_the_outside_is_closed_in_both_directions() -> None:
    entry = inet(TCP, ESTABLISHED, ("10.0.0.5", 40000), ("192.0.2.7", 443))
    [cut] = sockets(connections.severed(file(entry), leads_out))
    assert (cut[6], cut[7], cut[8], cut[11], cut[12], cut[19]) == (CLOSED, 0, 0, 0, 0, 3)
    before = {f.number: f.value for f in entry}
    assert {n: cut[n] for n in (1, 2, 3, 4, 5, 9, 10, 13, 14)} == {n: before[n] for n in (1, 2, 3, 4, 5, 9, 10, 13, 14)}


def test_a_direction_that_was_shut_already_is_said_once() -> None:
    entry = [*inet(TCP, ESTABLISHED, ("10.0.0.5", 40000), ("192.0.2.7", 443)), Field(19, 0, 1)]
    data = connections.severed(file(entry), leads_out)
    [message] = [f.value for e in protobuf.messages(data, MAGICS) for f in protobuf.fields(e) if f.number == 4]
    assert isinstance(message, bytes)
    assert [f.value for f in protobuf.fields(message) if f.number == 19] == [3]


def test_udp_keeps_its_peer_and_gives_up_its_address() -> None:
    [cut] = sockets(
        connections.severed(file(inet(UDP, ESTABLISHED, ("10.0.0.5", 40000), ("192.0.2.7", 8125))), leads_out)
    )
    assert (cut[6], cut[7], cut[8], cut[11]) == (ESTABLISHED, 0, 8125, 0)
    assert [cut[12]] == words("192.0.2.7")
    assert 19 not in cut


def test_what_stays_within_the_rank_is_not_touched() -> None:
    one, other = ("127.0.0.1", 5000), ("127.0.0.1", 40000)
    data = file(
        inet(TCP, LISTEN, one),
        inet(TCP, ESTABLISHED, one, other),
        inet(TCP, ESTABLISHED, other, one),
        inet(UDP, CLOSED, ("0.0.0.0", 6000)),
        inet(TCP, CLOSED, ("0.0.0.0", 0)),
        inet(RAW, ESTABLISHED, ("10.0.0.5", 1), ("192.0.2.7", 1)),
    )
    assert connections.severed(data, leads_out) == data


def test_the_rule_is_told_what_the_image_has() -> None:
    told: list[tuple[Socket, set[object]]] = []

    def rule(socket: Socket, ours: set[tuple[tuple[str, int], tuple[str, int]]]) -> bool:
        told.append((socket, set(ours)))
        return False

    pair = (("10.0.0.5", 40000), ("192.0.2.7", 443))
    connections.severed(file(inet(TCP, ESTABLISHED, *pair)), rule)
    assert [(str(socket), ours) for socket, ours in told] == [
        ("is connected (tcp) from 10.0.0.5:40000 to 192.0.2.7:443", {pair})
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 20,
        file()[:-1],
        MAGICS + b"\x05\x00",
        MAGICS + struct.pack("<I", 2) + b"\x80\x80",
        MAGICS + struct.pack("<I", 2) + b"\x0b\x00",
        file([Field(5, 0, TCP), Field(6, 0, 1)]),
    ],
    ids=["nothing", "another file", "cut short", "cut in a size", "number without end", "unknown kind", "no address"],
)
def test_another_image_is_refused_and_left_as_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / files_image.FILES
    path.write_bytes(data)
    with pytest.raises(DumpError, match=r"files\.img cannot be read: .*CRIU 4"):
        connections.sever(tmp_path, leads_out)
    assert path.read_bytes() == data


# --- the other images that are mended -------------------------------------------------------------------------------
TREE = struct.pack("<II", 0x54564319, 0x50273030)


def messages(begin: bytes, *found: list[Field]) -> bytes:
    return protobuf.image(begin, map(protobuf.encode, found))


def numbers(**values: int) -> list[Field]:
    return [Field(int(name[1:]), 0, value) for name, value in values.items()]


def held(kind: int, entry: list[Field]) -> list[Field]:
    """A file_entry."""
    return [Field(1, 0, 17), Field(2, 0, 3), Field(kind, 2, protobuf.encode(entry))]


def test_a_timer_that_had_expired_gets_its_interval_and_others_stay() -> None:
    def timer(ticks: int, left: tuple[int, int], every: tuple[int, int]) -> list[Field]:
        return held(12, numbers(_4=1, _5=ticks, _6=0, _7=left[0], _8=left[1], _9=every[0], _10=every[1]))

    expired, runs, once = timer(3, (0, 0), (2, 5)), timer(0, (1, 7), (2, 5)), timer(1, (0, 0), (0, 0))
    data = messages(MAGICS, expired, runs, once)
    assert timers.rearmed(data) == messages(MAGICS, timer(3, (2, 5), (2, 5)), runs, once)


def test_who_has_no_session_leader_joins_the_first_process() -> None:
    root, leads, within, lost = (
        numbers(_1=p, _2=q, _3=q, _4=s) for p, q, s in ((9, 0, 9), (10, 9, 10), (11, 9, 10), (12, 9, 7))
    )
    data = messages(TREE, root, leads, within, lost)
    assert sessions.joined(data) == messages(TREE, root, leads, within, numbers(_1=12, _2=9, _3=9, _4=9))


def test_a_file_with_a_name_of_ours_gets_its_path_and_others_stay() -> None:
    def regular(name: bytes, external: bool) -> list[Field]:
        return held(3, [*numbers(_1=3, _2=0), Field(6, 2, name), *(numbers(_9=1) if external else []), *numbers(_10=4)])

    data = messages(MAGICS, regular(b"file[37:9f]", True), regular(b"file[38:9f]", True), regular(b"/x", False))
    found = overlaid.named(data, {"file[37:9f]": "/usr/lib/x"})
    named = (regular(b"/usr/lib/x", False), regular(b"file[38:9f]", True), regular(b"/x", False))
    assert found == messages(MAGICS, *named)


@pytest.mark.parametrize("data", [b"", b"x" * 20, MAGICS + b"\x05\x00", TREE, TREE + b"\x05\x00"])
@pytest.mark.parametrize("change", [sessions.join, timers.rearm, partial(overlaid.name, files={"file[1:1]": "/x"})])
def test_no_other_image_is_changed(tmp_path: Path, data: bytes, change: Callable[[Path], None]) -> None:
    for name in (files_image.FILES, sessions.TREE):
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DumpError, match=r"cannot be read: .*CRIU 4"):
        change(tmp_path)
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {data}


NUMBERS = st.integers(min_value=1, max_value=2**29 - 1)
FIELDS = st.one_of(
    st.builds(Field, NUMBERS, st.just(0), st.integers(min_value=0, max_value=2**64 - 1)),
    st.builds(Field, NUMBERS, st.just(2), st.binary(max_size=300)),
    st.builds(Field, NUMBERS, st.just(1), st.binary(min_size=8, max_size=8)),
    st.builds(Field, NUMBERS, st.just(5), st.binary(min_size=4, max_size=4)),
)


@given(st.lists(FIELDS, max_size=20))
def test_a_message_comes_back_as_it_was(message: list[Field]) -> None:
    assert list(protobuf.fields(protobuf.encode(message))) == message
