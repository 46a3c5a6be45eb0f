"""Values that are no tensors, as bytes: JSON where plain Python goes, else torch's format without code in it.

JSON has no tuples, no bytes and no keys but strings. So each of these, and each dictionary, is an object with one key
that names its type: `{"tuple": [1, 2]}`.
"""

from __future__ import annotations

import base64
import io
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from .errors import DamagedError, UnsavableError

JSON = "json"
TORCH = "torch"


def encode(key: str, value: object) -> tuple[str, bytes]:
    """Kind and bytes.

    :param key: of `value` in the state, for the message
    :raises UnsavableError: `value` needs code to come back, or cannot be stored at all
    """
    try:
        return JSON, json.dumps(_tagged(value), allow_nan=False, separators=(",", ":")).encode()
    except (_OtherError, RecursionError):
        pass
    file = io.BytesIO()
    try:
        torch.save(value, file)
        torch.load(io.BytesIO(file.getbuffer()), map_location="cpu", weights_only=True)
    except Exception as error:
        raise UnsavableError(
            f"state[{key!r}] = {type(value).__module__}.{type(value).__qualname__}: this object cannot be stored "
            f"without code ({_first_line(error)}); give its state_dict(), or plain values and tensors"
        ) from error
    return TORCH, file.getvalue()


def decode(kind: str, data: bytes) -> Any:
    """:raises DamagedError: bytes that `encode` did not make"""
    try:
        if kind == JSON:
            return _untagged(json.loads(data))
        if kind == TORCH:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise DamagedError(f"object of kind {kind!r}: it cannot be read: {_first_line(error)}") from error
    raise DamagedError(f"kind = {kind!r}: it is neither {JSON!r} nor {TORCH!r}; read it with the version that wrote it")


class _OtherError(Exception):
    """No plain Python."""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _tagged(value: object) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list) and kind is list:
        return [_tagged(each) for each in value]
    if isinstance(value, (tuple, set, frozenset)) and kind in (tuple, set, frozenset):
        ordered = value if isinstance(value, tuple) else sorted(value, key=repr)
        return {kind.__name__: [_tagged(each) for each in ordered]}
    if isinstance(value, dict) and kind is dict:
        return {"dict": [[_tagged(key), _tagged(each)] for key, each in value.items()]}
    if isinstance(value, (bytes, bytearray)) and kind in (bytes, bytearray):
        return {kind.__name__: base64.b64encode(value).decode()}
    if isinstance(value, complex) and kind is complex:
        return {"complex": repr(value)}
    if kind.__module__ == "numpy":
        return _numpy(value)
    raise _OtherError


def _numpy(value: Any) -> Any:
    """Arrays and scalars of numbers: the state of numpy's generators has them."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or dtype.kind not in "biufc":
        raise _OtherError
    kind = "ndarray" if type(value).__name__ == "ndarray" else "numpy"
    return {kind: [dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(each) for each in value]
    if isinstance(value, dict):
        ((tag, inner),) = value.items()
        return _MADE[tag](inner)
    return value


def _array(inner: list[Any]) -> Any:
    numpy = sys.modules.get("numpy") or __import__("numpy")
    dtype, shape, data = inner
    return numpy.frombuffer(base64.b64decode(data), dtype=dtype).reshape(shape).copy()


_MADE: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "complex": complex,
    "tuple": lambda inner: tuple(map(_untagged, inner)),
    "set": lambda inner: set(map(_untagged, inner)),
    "frozenset": lambda inner: frozenset(map(_untagged, inner)),
    "dict": lambda inner: {_untagged(key): _untagged(each) for key, each in inner},
    "bytes": base64.b64decode,
    "bytearray": lambda inner: bytearray(base64.b64decode(inner)),
    "ndarray": _array,
    "numpy": lambda inner: _array(inner)[()],
}
