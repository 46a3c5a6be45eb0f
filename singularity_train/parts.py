"""The parts of a training that a checkpoint holds, as a tree of tensors and bytes; nothing is keyed by a worker.

Tensors are those of the training itself, so that loading writes into them, whatever their sharding is. What is no
tensor becomes bytes without code in them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .errors import ModelChangedError, OptimizerChangedError, StateError

MAIN = "main"
"""Name of a sole model, optimizer or scheduler."""
SHOWN = 5
"""Names in a message."""


def named(given: Any) -> dict[str, Any]:
    """A mapping as it is; anything else as the sole one; None as none."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {MAIN: given}


def bare(model: Any) -> Any:
    """The module within DistributedDataParallel and `torch.compile`, whose names do not depend on them."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def pack(where: str, value: Any) -> bytes:
    """:raises StateError: a value that only comes back with code"""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        torch.load(io.BytesIO(file.getbuffer()), map_location="cpu", weights_only=True)
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise StateError(
            f"{where}: its state cannot be saved without code ({why}). "
            "Let state_dict() return plain values and tensors."
        ) from error
    return file.getvalue()


def unpack(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


@dataclass
class Parts:
    """:param models: by name, not wrapped
    :param extra: by name; each has `state_dict` and `load_state_dict`, as scheduler and scaler have
    """

    models: dict[str, Any]
    optimizers: dict[str, Any]
    extra: dict[str, Any]

    def __post_init__(self) -> None:
        self._frozen_at_first = self._frozen()
        self._groups_at_first = {name: self._groups(each) for name, each in self.optimizers.items()}

    def parameters(self) -> dict[str, Any]:
        """By a name that tells the model where there are several."""
        return {
            self._name(model, name): parameter
            for model, module in self.models.items()
            for name, parameter in module.named_parameters()
        }

    def _name(self, model: str, name: str) -> str:
        return name if len(self.models) == 1 else f"{model}.{name}"

    def tree(self) -> dict[str, Any]:
        """What is saved now, or is loaded into."""
        optimizers = {name: self._optimizer(name, optimizer) for name, optimizer in self.optimizers.items()}
        return {
            "models": {name: tensors(f"model {name}", module.state_dict()) for name, module in self.models.items()},
            "optimizers": optimizers,
            "extra": {name: tensors(f"extra {name}", each.state_dict()) for name, each in self.extra.items()},
        }

    def _optimizer(self, name: str, optimizer: Any) -> dict[str, Any]:
        names = {parameter: place for place, parameter in self.parameters().items()}
        groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        numbers: dict[str, dict[str, Any]] = {}
        found: dict[str, dict[str, Any]] = {}
        for parameter, state in optimizer.state.items():
            if parameter not in names:
                raise StateError(f"optimizer {name}: it has state of no parameter of a model. Attach the model.")
            for key, value in state.items():
                kept = found if isinstance(value, torch.Tensor) else numbers
                kept.setdefault(names[parameter], {})[key] = value
        return {"tensors": found, "rest": pack(f"optimizer {name}", {"groups": groups, "numbers": numbers})}

    def describe(self) -> dict[str, Any]:
        """What `compare` and `prepare` need, as JSON."""
        names = {parameter: place for place, parameter in self.parameters().items()}
        return {
            "groups_at_first": self._groups_at_first,
            "parameters": {name: list(each.shape) for name, each in self.parameters().items()},
            "frozen": self._frozen(), "frozen_at_first": self._frozen_at_first, "extra": sorted(self.extra),
            "extra_state": {
                name: {key: _spec(value) for key, value in tensors(f"extra {name}", each.state_dict()).items()}
                for name, each in self.extra.items()
            },
            "optimizers": {
                name: {
                    "class": type(optimizer).__name__,
                    "groups": self._groups(optimizer),
                    "state": {
                        names[parameter]: {
                            key: _spec(value) for key, value in state.items() if isinstance(value, torch.Tensor)
                        }
                        for parameter, state in optimizer.state.items()
                    },
                }
                for name, optimizer in self.optimizers.items()
            },
        }

    def _groups(self, optimizer: Any) -> list[list[str]]:
        """Names of the parameters of each group; "" for one of no model here."""
        names = {parameter: place for place, parameter in self.parameters().items()}
        return [[names.get(each, "") for each in group["params"]] for group in optimizer.param_groups]

    def _frozen(self) -> list[str]:
        return sorted(name for name, parameter in self.parameters().items() if not parameter.requires_grad)

    def thaw(self, saved: Mapping[str, Any]) -> None:
        """Freeze and thaw what the script had frozen and thawed between its attach and the checkpoint.

        Only where it begins as it began then: other parameters that are frozen at first are a change of the script.
        """
        if saved.get("frozen_at_first") != self._frozen_at_first:
            return
        frozen = {*saved["frozen"]}
        for name, parameter in self.parameters().items():
            parameter.requires_grad_(name not in frozen)

    def compare(self, saved: Mapping[str, Any]) -> None:
        """Whether a checkpoint that `describe` described can be loaded.

        :raises ModelChangedError: other parameters; they are named
        :raises OptimizerChangedError: another optimizer, other groups, other extra state
        """
        self.compare_models(saved)
        self._compare_rest(saved)

    def compare_models(self, saved: Mapping[str, Any]) -> None:
        """:raises ModelChangedError: other parameters; they are named"""
        before, now = saved["parameters"], {name: list(each.shape) for name, each in self.parameters().items()}
        reshaped = [
            f"{name} {before[name]} -> {now[name]}" for name in before if now.get(name, before[name]) != before[name]
        ]
        found = {"missing here": before.keys() - now, "new here": now.keys() - before, "reshaped": reshaped}
        if any(found.values()):
            told = "; ".join(f"{what}: {shown(names)}" for what, names in found.items() if names)
            raise ModelChangedError(
                f"model: its parameters are not those of the checkpoint. {told}. "
                "Give the same model, or another folder to begin anew."
            )

    def _compare_rest(self, saved: Mapping[str, Any]) -> None:
        """:raises OptimizerChangedError: another optimizer, other groups, other extra state"""
        described = self.describe()
        changed(saved["optimizers"].keys(), described["optimizers"].keys(), "optimizer")
        for name, past in saved["optimizers"].items():
            present = described["optimizers"][name]
            if saved.get("groups_at_first", {}).get(name) == self._groups_at_first[name]:
                present = {**present, "groups": past["groups"]}  # `prepare` makes the same of them
            for what in ("class", "groups"):
                if past[what] != present[what]:
                    was, is_ = (
                        each[what] if what == "class" else list(map(len, each[what])) for each in (past, present)
                    )
                    raise OptimizerChangedError(
                        f"optimizer {name}: its {what} is {is_}, and the checkpoint has {was}"
                        f"{'' if what == 'class' else ' parameters'}. Give the same optimizer over the same parameters "
                        "in the same order, or another folder to begin anew."
                    )
        changed(saved["extra"], described["extra"], "scheduler, scaler or extra")

    def prepare(self, saved: Mapping[str, Any]) -> None:
        """Give the optimizers the groups and tensors that the checkpoint has, for `tree` to be loaded into."""
        parameters = self.parameters()
        for name, optimizer in self.optimizers.items():
            groups = [[parameters[each] for each in names] for names in saved["optimizers"][name]["groups"]]
            del optimizer.param_groups[len(groups) :]
            for group, held in zip(optimizer.param_groups, groups, strict=False):
                group["params"][:] = held
            for held in groups[len(optimizer.param_groups) :]:
                optimizer.add_param_group({"params": held})
            optimizer.state.clear()
            for place, state in saved["optimizers"][name]["state"].items():
                optimizer.state[parameters[place]] = {
                    key: room(parameters[place], *spec) for key, spec in state.items()
                }

    def with_extra_of(self, saved: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
        """`tree` with what the checkpoint has of the extra state, for it to be loaded into: an average that is made at
        its first update, a best value that was None at first."""
        device = next(iter(self.parameters().values())).device
        extra = {
            name: {key: _place(tree["extra"][name].get(key), spec, device) for key, spec in specs.items()}
            for name, specs in saved.get("extra_state", {}).items()
        }
        return {**tree, "extra": {**tree["extra"], **extra}}

    def apply(self, loaded: Mapping[str, Any]) -> None:
        """Take over what is no tensor of the training. The tensors of a tree of ours are loaded already."""
        parameters = self.parameters()
        for name, optimizer in self.optimizers.items():
            rest = unpack(loaded["optimizers"][name]["rest"])
            for place, numbers in rest["numbers"].items():
                optimizer.state[parameters[place]].update(numbers)
            for group, options in zip(optimizer.param_groups, rest["groups"], strict=True):
                for key, value in options.items():
                    if isinstance(group.get(key), torch.Tensor):
                        group[key].copy_(value)  # On its device; a compiled step holds it.
                    else:
                        group[key] = value
        for name, module in self.models.items():
            own = {address(each) for each in (*module.parameters(), *module.buffers())}
            # A state_dict may give copies, which were loaded in place of the module's own tensors.
            if any(isinstance(value, bytes) or address(value) not in own for value in loaded["models"][name].values()):
                module.load_state_dict(untensors(loaded["models"][name]))
        for name, each in self.extra.items():
            each.load_state_dict(untensors(loaded["extra"][name]))


def address(tensor: Any) -> int:
    """Where the values of a tensor lie, of this rank's part of it."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.untyped_storage().data_ptr())


def room(parameter: Any, dtype: str, shape: list[int], on_cpu: bool) -> Any:
    """Zeros for one value of an optimizer's state; sharded as the parameter is if it has its shape."""
    if shape == list(parameter.shape) and not (on_cpu and parameter.device.type != "cpu"):
        return torch.zeros_like(parameter.detach(), dtype=getattr(torch, dtype))
    return _zeros(dtype, shape, on_cpu, parameter.device)


def _spec(value: Any) -> list[Any] | None:
    """Dtype, shape and whether it is on the CPU; None for bytes."""
    if not isinstance(value, torch.Tensor):
        return None
    return [str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type == "cpu"]


def _place(present: Any, spec: list[Any] | None, device: Any) -> Any:
    """What is there if it has the form, else new room."""
    if spec is None:
        return b""
    if isinstance(present, torch.Tensor) and _spec(present) == spec:
        return present
    return _zeros(spec[0], spec[1], spec[2], device)


def _zeros(dtype: str, shape: list[int], on_cpu: bool, device: Any) -> Any:
    return torch.zeros(shape, dtype=getattr(torch, dtype), device="cpu" if on_cpu else device)


ALL = "*"
"""The one key of a state dictionary that is packed whole."""


def tensors(where: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dictionary whose tensors stay tensors if it is flat; one with other values in it is packed, by key."""
    if any(isinstance(value, torch.Tensor) for value in state.values()):
        return {
            key: value if isinstance(value, torch.Tensor) else pack(f"{where}, {key}", value)
            for key, value in state.items()
        }
    return {ALL: pack(where, dict(state))}


def untensors(state: Mapping[str, Any]) -> dict[str, Any]:
    if state.keys() == {ALL}:
        return dict(unpack(state[ALL]))
    return {key: unpack(value) if isinstance(value, bytes) else value for key, value in state.items()}


def shown(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - SHOWN
    return ", ".join(ordered[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def changed(before: Iterable[str], now: Iterable[str], what: str) -> None:
    """:raises OptimizerChangedError: the names differ"""
    missing, new = set(before) - set(now), set(now) - set(before)
    if missing or new:
        told = "; ".join(
            f"{word}: {shown(names)}" for word, names in (("missing here", missing), ("new here", new)) if names
        )
        raise OptimizerChangedError(
            f"{what}: attached are not those of the checkpoint. {told}. Attach the same, or use another folder."
        )
