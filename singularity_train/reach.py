"""What of a training would not come back from a checkpoint, as far as that can be seen cheaply: it is refused by name.

A checkpoint holds what was attached. What else changes while it trains is lost at a stop, and nothing would tell. Some
of it can be seen: copies of the model, tensors and optimizers within an optimizer, buffers that no state dictionary
has, ranks whose state is not the same, several ranks that compute one model together. It is no proof: state in a
closure or a list is not seen, so the verdict is `unchecked` all the same.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import reduce
from .errors import UsageError
from .parts import Parts, address, shown

DEPTH = 3
"""How deep containers within an optimizer are looked into."""
OWN = ("param_groups", "state", "defaults", "_step_count")
"""Attributes of an optimizer that a checkpoint has, or that torch counts for its warnings."""
FIRST = 16
"""Steps of a job in which a finding ends it. Later ones would lose much: they are told, and are in the verdict."""
EVERY = 16
"""Steps from one look at the copies of a model to the next, after the first ones."""


def refuse(models: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
    """:raises UsageError: a model or an optimizer whose state no checkpoint of ours can bring back"""
    for name, model in models.items():
        unmade = [each for each, parameter in model.named_parameters() if torch.nn.parameter.is_lazy(parameter)]
        if unmade:
            raise UsageError(
                f"model {name}: {shown(unmade)} have no shape so far. Call the model once on a batch before attach."
            )
        parallel = [each for each, parameter in model.named_parameters() if _is_tensor_parallel(model, each, parameter)]
        if parallel:
            raise UsageError(
                f"model {name}: {shown(parallel)} are cut by tensor parallelism, whose ranks have to read the same "
                "batch, and each rank here reads its own. Use fully_shard alone, or the process engine."
            )
    for name, optimizer in optimizers.items():
        held = getattr(optimizer, "__dict__", {})
        inner = next((key for key, value in held.items() if isinstance(value, torch.optim.Optimizer)), "")
        if inner:
            raise UsageError(
                f"optimizer {name}: {type(optimizer).__name__} wraps another optimizer ({inner}), whose state its own "
                "does not have. Attach the inner one and do in the loop what the wrapper does, or use the process "
                "engine."
            )


def _is_tensor_parallel(model: Any, name: str, parameter: Any) -> bool:
    """Whether the parameter is cut in another way than `fully_shard` cuts it."""
    placements = getattr(parameter, "placements", None)
    if placements is None:
        return False
    cut = sum(not placement.is_replicate() for placement in placements)
    modules, at = [model], model
    for word in name.split(".")[:-1]:
        at = getattr(at, word)
        modules.append(at)
    return cut > 1 or not any(_is_fully_sharded(module) for module in modules)


def _is_fully_sharded(module: Any) -> bool:
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


class Reach:
    """Looks on at the steps of an attempt. All ranks call its methods in the same places."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._names = self._named()
        self._groups: list[int] = []
        self._copies: list[tuple[str, weakref.ref[Any], list[tuple[int, int]]]] | None = None
        self._buffers: dict[str, tuple[Any, str, tuple[int, Any]]] = {}
        self._numbers: dict[str, Any] = {}
        self._steps = 0
        self._others: dict[int, tuple[weakref.ref[Any], int]] = {}
        """Optimizers that are not attached and have made steps, with the last one of the attempt."""
        self._hook = _watched(weakref.WeakMethod(self._stepped))

    def agreed(self) -> None:
        """After all ranks have the same state, or should have. Collective.

        :raises UsageError: on all ranks: one's state would be restored on all
        """
        mine = {name: _content(each.state_dict()) for name, each in self._parts.extra.items()}
        others = reduce.gathered(mine)
        for rank, other in enumerate(others):
            differ = [name for name in others[0] if other.get(name) != others[0][name]]
            if differ:
                raise UsageError(
                    f"{differ[0]}: its state on rank {rank} is not that on rank 0, and a checkpoint has one for all. "
                    "Seed all ranks alike before it is made, or copy it from the model after attach."
                )

    def begin_step(self) -> None:
        """Before a step computes anything."""
        if self._copies is not None:
            return
        known = self._known()
        shapes = [_shapes(model) for model in self._parts.models.values()]
        self._copies = [
            (f"{type(module).__name__} with {len(_shapes(module))} parameters", weakref.ref(module), _versions(module))
            for module in _modules()
            if _shapes(module) in shapes and not known & {address(each) for each in module.parameters()}
        ]
        for name, model in self._parts.models.items():
            for path, module in model.named_modules():
                for key in module._non_persistent_buffers_set:
                    buffer = module._buffers.get(key)
                    if buffer is not None:
                        self._buffers[f"{name}: {path}.{key}".replace(" .", " ")] = (module, key, _mark(buffer))

    def end_step(self, number: int) -> list[str]:
        """After a step and its update.

        :param number: of the step, over all attempts
        :returns: what has changed that no checkpoint has, where it is too late to end the job for it
        :raises UsageError: the same, in the first steps; or no later attempt could go on from a checkpoint
        """
        early, told = number < FIRST or not self._steps, []
        if early:
            self._model_holds()
        if early or self._sizes() != self._groups:
            self._groups_hold()
        if early or number % EVERY == 0:
            told += self._copies_hold()
        told += self._others_hold()
        if not self._steps:
            self._buffers_hold()
        if self._steps < 3:
            for name, optimizer in self._parts.optimizers.items():
                self._look_into(name, optimizer)
        self._steps += 1
        if told and early:
            raise UsageError(told[0])
        return told

    def _groups_hold(self) -> None:
        self._groups = self._sizes()
        known = {id(each) for each in self._parts.parameters().values()}
        for name, optimizer in self._parts.optimizers.items():
            for place, group in enumerate(optimizer.param_groups):
                strange = [list(each.shape) for each in group["params"] if id(each) not in known]
                if strange:
                    raise UsageError(
                        f"optimizer {name}: group {place} has {len(strange)} parameters of no attached model (shape "
                        f"{strange[0]}), and no later attempt could give them to it. Make all parameters before "
                        "attach, attach the models that have them (model={...}), and replace none."
                    )

    def _model_holds(self) -> None:
        names = self._named()
        if names != self._names:
            new, gone = names - self._names, self._names - names
            what = f"has got {shown(new)}" if new else f"has lost {shown(gone)}"
            raise UsageError(
                f"model: it {what} since attach. A later attempt makes it as it was then, and could not go on. "
                "Make all parameters before attach, and freeze those that are not trained yet (requires_grad_(False))."
            )

    def _copies_hold(self) -> list[str]:
        told = []
        for place, (what, made, before) in enumerate(self._copies or []):
            module = made()
            if module is not None and _versions(module) != before:
                told.append(
                    f"a copy of the model ({what}) changes while it trains and is not attached: a stop would lose it. "
                    'Give it to attach, such as extra={"ema": averaged}.'
                )
                assert self._copies is not None
                self._copies[place] = (what, made, _versions(module))
        return told

    def _buffers_hold(self) -> None:
        for what, (module, key, mark) in self._buffers.items():
            buffer = module._buffers.get(key)
            if buffer is None or _mark(buffer) != mark:
                raise UsageError(
                    f"model {what} is a buffer that changes while it trains, and no state dictionary has it: a stop "
                    "would lose it. Register it with persistent=True."
                )
        self._buffers = {}

    def _stepped(self, optimizer: Any) -> None:
        """An optimizer of this process has made a step."""
        if self._copies is None or any(optimizer is each for each in self._parts.optimizers.values()):
            return
        held = [*self._parts.extra.values(), *self._parts.optimizers.values()]
        if any(optimizer is own for each in held for own in (each, *getattr(each, "__dict__", {}).values())):
            return
        known = {id(each) for each in self._parts.parameters().values()}
        ours = any(id(each) in known for group in optimizer.param_groups for each in group["params"])
        before = self._others.get(id(optimizer))
        again = before is not None and before[0]() is optimizer and before[1] != self._steps
        self._others[id(optimizer)] = (weakref.ref(optimizer), -1 if ours or again else self._steps)

    def _others_hold(self) -> list[str]:
        """Of optimizers that step on what is attached, or in more than one step of the loop."""
        found = [place for place, (_, last) in self._others.items() if last == -1]
        told = []
        for place in found:
            optimizer = self._others.pop(place)[0]()
            if optimizer is not None:
                told.append(
                    f"optimizer: {type(optimizer).__name__} makes steps in the loop and is not attached: a stop would "
                    'lose its state. Make it before attach, and attach it with its model: optimizer={"a": ..., "b": '
                    "...}, model={...}. To begin anew with other settings, change the groups of the attached one."
                )
        return told

    def close(self) -> None:
        """Look on no more."""
        self._hook.remove()

    def _named(self) -> set[str]:
        return {name for model in self._parts.models.values() for name, _ in model.named_parameters()}

    def _look_into(self, name: str, optimizer: Any) -> None:
        parameters = {id(each) for each in self._parts.parameters().values()}
        kind = type(optimizer).__name__
        strange = [key for key in optimizer.state if id(key) not in parameters]
        lost = [f"a tensor {list(key.shape)}" if isinstance(key, torch.Tensor) else str(key) for key in strange]
        hidden = [
            key
            for key, value in vars(optimizer).items()
            if key not in OWN and any(id(each) not in parameters for each in _tensors(value, DEPTH))
        ]
        more = {key: value for key, value in vars(optimizer).items() if key not in OWN}
        numbers = {key: value for key, value in more.items() if type(value) in (int, float)}
        counted = [key for key, value in numbers.items() if self._numbers.get(f"{name}.{key}", value) != value]
        self._numbers |= {f"{name}.{key}": value for key, value in numbers.items()}
        if counted:
            raise UsageError(
                f"optimizer {name}: {kind} counts in an attribute ({shown(counted)}), which a checkpoint does not "
                "have. Let it keep the number in param_groups, or use the process engine."
            )
        if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
            hidden += sorted(optimizer.state_dict().keys() - {"state", "param_groups"})
        if lost or hidden:
            what = f"state of no parameter ({shown(lost)})" if lost else f"tensors outside its state ({shown(hidden)})"
            raise UsageError(
                f"optimizer {name}: {kind} keeps {what}, which a checkpoint does not have. "
                "Use another optimizer, or the process engine."
            )

    def _sizes(self) -> list[int]:
        return [len(group["params"]) for each in self._parts.optimizers.values() for group in each.param_groups]

    def _known(self) -> set[int]:
        """Where the tensors lie that a checkpoint has."""
        found = {address(each) for model in self._parts.models.values() for each in model.parameters()}
        for extra in self._parts.extra.values():
            found |= {address(each) for each in _tensors(extra.state_dict(), DEPTH)}
            held = [extra, *getattr(extra, "__dict__", {}).values()]
            for each in held:
                if isinstance(each, torch.nn.Module):
                    found |= {address(parameter) for parameter in each.parameters()}
        return found


def _watched(stepped: weakref.WeakMethod[Any]) -> Any:
    """A hook on the steps of all optimizers, which keeps nothing alive."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        call = stepped()
        if call is not None:
            call(optimizer)

    return register_optimizer_step_post_hook(hook)


def _modules() -> Iterator[Any]:
    """All modules of this process. `isinstance` would run code of objects that stand in for others."""
    return (each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module))


def _shapes(module: Any) -> frozenset[tuple[str, tuple[int, ...]]]:
    made = ((name, each) for name, each in module.named_parameters() if not torch.nn.parameter.is_lazy(each))
    return frozenset((name, tuple(each.shape)) for name, each in made)


def _versions(module: Any) -> list[tuple[int, int]]:
    """Which tensors it has, and how often each was written."""
    return [(id(each), each._version) for each in (*module.parameters(), *module.buffers())]


def _mark(tensor: Any) -> tuple[int, Any]:
    """Changes with the values of a small tensor; a large one is known by how often it was written."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return (0, fingerprint(local)) if local.numel() <= 1 << 20 else (id(tensor), tensor._version)


def _content(state: Any) -> list[Any]:
    """A short text for what a state dictionary says, the same wherever the same tensors are."""
    whole = (each for each in _tensors(state, DEPTH) if not hasattr(each, "placements"))
    return [(list(each.shape), str(each.dtype), fingerprint(each)) for each in whole]


def fingerprint(tensor: Any) -> int:
    """Of its bits, in pieces: it does not depend on an order."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex() or flat.dtype.is_floating_point or flat.dtype == torch.bool:
        flat = flat.view(torch.uint8)
    weight = torch.arange(1, 257, device=flat.device)
    return sum(int((piece.to(torch.int64) * _tiled(weight, len(piece))).sum()) for piece in flat.split(1 << 20))


def _tiled(weight: Any, count: int) -> Any:
    """So that two values that change places are seen."""
    return weight.repeat(count // len(weight) + 1)[:count]


def _tensors(value: Any, depth: int) -> Iterable[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from _tensors(each, depth - 1)
