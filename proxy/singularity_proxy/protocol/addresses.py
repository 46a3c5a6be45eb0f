"""Addresses of a pod that its ranks hold, such as `tcp 127.0.0.1:80` or `unix @name` (an abstract one), and in how few
pods all ranks have room. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from . import placement

UNIX: Final = "unix "
MOST: Final = 64
"""Addresses of a rank that are looked at."""
NEAR: Final = 16
"""So many ranks that hold one port are compared with each: the next ones, which it meets first."""


def clash(one: str, other: str) -> bool:
    """Whether a network has room for only one of both (without SO_REUSEPORT). With `>`: connections."""
    if _whole(one) or _whole(other):
        return one == other
    (host, port), (other_host, other_port) = (text.rsplit(":", 1) for text in (one, other))
    protocol, host = host.split(" ")
    other_protocol, other_host = other_host.split(" ")
    anywhere = {"0.0.0.0", "[::]"} & {host, other_host}  # noqa: S104 - compared, not bound
    return (protocol, port) == (other_protocol, other_port) and (host == other_host or bool(anywhere))


def _whole(address: str) -> bool:
    """There is no other that clashes with it than the same."""
    return address.startswith(UNIX) or ">" in address


def fewest_pods(world_size: int, workers: int, held: Mapping[int, Sequence[str]]) -> tuple[int, str]:
    """The fewest pods in which ranks have room that are on `workers` pods now, and why not on one less ("" for one).

    :param held: rank -> what it holds
    """
    now = {rank: placement.index_of(rank, workers, world_size) for rank in held}
    found = [pair for pair in _pairs(held) if now[pair[0][0]] != now[pair[1][0]]]
    for fewer in range(workers - 1, 0, -1) if found else ():
        pods = [placement.ranks_of(index, fewer, world_size) for index in range(fewer)]
        for (one, mine), (other, theirs) in found:
            if any(one in ranks and other in ranks for ranks in pods):
                return fewer + 1, f"on {fewer} pods ranks {one} and {other} would share one: {mine}, {theirs}"
    return 1, ""


def _pairs(held: Mapping[int, Sequence[str]]) -> Iterator[tuple[tuple[int, str], tuple[int, str]]]:
    groups: dict[str, list[tuple[int, str]]] = {}
    for rank in sorted(held):
        for text in held[rank][:MOST]:
            groups.setdefault(text if _whole(text) else text.rsplit(":", 1)[1], []).append((rank, text))
    for group in groups.values():
        for place, one in enumerate(group):
            for other in group[place + 1 : place + 1 + NEAR]:
                if one[0] != other[0] and clash(one[1], other[1]):
                    yield one, other
