"""Whether a state is the one that was saved. Pure; each difference is named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from . import memory
from .errors import MismatchError
from .manifest import Manifest, Object, Tensor

SHOWN = 5


def compare(state: Mapping[str, Any], manifest: Manifest, optional: Collection[str] = ()) -> None:
    """Check that the checkpoint has what `state` asks for.

    :param state: flat, by dotted name
    :param optional: first keys whose entries may be missing
    :raises MismatchError: an entry is missing, reshaped, of another type, or an object instead of a tensor
    """
    found = []
    for name, value in state.items():
        wrong = _wrong(name, value, manifest, optional)
        if wrong:
            found.append(wrong)
    if found:
        raise MismatchError(_sentence(manifest, found))


def nothing_more(names: Collection[str], manifest: Manifest, optional: Collection[str] = ()) -> None:
    """Check that the checkpoint has no more than what all ranks ask for, below the first keys that they ask for.

    A state without the optimizer is loaded without it. A state with it needs all of it.

    :param names: dotted, of all ranks
    :raises MismatchError: names the entries
    """
    entries: dict[str, Tensor | Object] = {**manifest.tensors, **manifest.objects}
    tops = {entries[name].path[0] for name in names if name in entries} - set(optional)
    found = [
        f"state[{name!r}] is in the checkpoint only"
        for name, each in entries.items()
        if each.path[0] in tops and name not in names
    ]
    if found:
        raise MismatchError(_sentence(manifest, found))


def _wrong(name: str, value: Any, manifest: Manifest, optional: Collection[str]) -> str:
    saved = manifest.tensors.get(name)
    has_size = isinstance(value, torch.Tensor) or hasattr(value, "global_shape")
    if saved is None and name not in manifest.objects:
        return "" if name.partition(".")[0] in optional else f"state[{name!r}] is not in the checkpoint"
    if (saved is not None) != has_size:
        kinds = ("an object", "a tensor")
        return f"state[{name!r}] is {kinds[has_size]}; the checkpoint has {kinds[saved is not None]}"
    if saved is None:
        return ""
    size = tuple(value.global_shape if hasattr(value, "global_shape") else value.size())
    if size != saved.size:
        return f"state[{name!r}] has size {list(size)}; the checkpoint has {list(saved.size)}"
    dtype = memory.name_of_dtype(value.dtype)
    if dtype != saved.dtype:
        return f"state[{name!r}] has dtype {dtype}; the checkpoint has {saved.dtype}"
    return ""


def _sentence(manifest: Manifest, found: list[str]) -> str:
    rest = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (
        f"checkpoint {manifest.id}: {'; '.join(found[:SHOWN])}{rest}; "
        "build model and optimizer as they were when it was saved, or start without it"
    )
