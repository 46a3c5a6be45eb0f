"""Names of the GPUs of this process. After a move torch goes on to give the ones that it read first."""

from __future__ import annotations

from typing import Any

_moves: dict[str, str] = {}
"""UUID of a GPU that torch saw first -> of the one in whose place it is by now."""


def used_devices(cuda: Any) -> list[str]:
    """UUIDs of the GPUs that this process has memory on, or is set to."""
    numbers = {n for n in range(cuda.device_count()) if cuda.memory_reserved(n)} | {cuda.current_device()}
    return [uuid(cuda, n) for n in sorted(numbers)]


def uuid(cuda: Any, number: int) -> str:
    """UUID of the GPU that this process calls `number`, wherever it is by now."""
    found = f"GPU-{cuda.get_device_properties(number).uuid}"
    return _moves.get(found, found)


def moved(devices: dict[str, Any]) -> None:
    """`devices`: UUID of a GPU -> of the one that has taken its place."""
    new = {str(old): str(target) for old, target in devices.items()}
    known = {first: new.get(now, now) for first, now in _moves.items()}
    seen_first = {old: target for old, target in new.items() if old not in _moves.values()}
    _moves.clear()
    _moves.update(seen_first | known)
