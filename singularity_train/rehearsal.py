"""A rehearsal of a resume: one step of each attempt is computed again from what its checkpoint would hold.

The state before the recorded step is kept: parameters, buffers, `extra`. When the next step is over, the function that
the script gave to `step.backward` is copied with all that it reads: models, closure, globals. The kept state is loaded
into the copies, and they compute the same batch with the same random numbers. Loss and gradients have to have the same
bits. If they have not, the function reads something that changes while it trains and that no checkpoint has, such as
the hidden state of a truncated back-propagation. Nothing of the training itself is touched.

It is no proof of an exact resume: what the body of the loop does after `backward`, and values that it makes anew for
each step, are not computed again. What cannot be copied stays what it is in the training, and may hide a difference.
"""

from __future__ import annotations

import copy
import dis
import os
import types
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import torch

from . import rng
from .engines import Compute, drawn, measured
from .parts import Parts, shown, untensors
from .parts import tensors as flat
from .reach import fingerprint

AFTER = 1
"""Steps of an attempt before the recorded one: what is made lazily has been made."""
SHARE = 0.25
"""Of the memory that is free, for the copies."""
DEPTH = 4
"""How deep objects are looked into for tensors."""
CGROUP = Path("/sys/fs/cgroup")


class Rehearsal:
    """Of one attempt. :param keep: objects that are not copied, such as the job and its data set"""

    def __init__(self, parts: Parts, seed: int, keep: tuple[Any, ...]) -> None:
        self._parts, self._seed, self._keep = parts, seed, keep
        self._first: int | None = None
        self._record: _Record | None = None
        self.step: int | None = None
        """That was computed again with the same bits."""
        self.why = "no step has been computed again so far"
        """Where `step` is None."""

    def watch(self, step: Any, compute: Compute) -> _Record | None:
        """What looks on at the first call of a step, where it is the one to be recorded."""
        self._first = step.number if self._first is None else self._first
        if step.number != self._first + AFTER:
            return None
        parameters = self._parts.parameters().values()
        device = next(iter(parameters)).device
        if device.type != "cpu" and not torch.are_deterministic_algorithms_enabled():
            self.why = "kernels of the GPU may add in any order: call torch.use_deterministic_algorithms(True)"
            return None
        needed = 3 * sum(each.numel() * each.element_size() for each in parameters)
        if needed > SHARE * _free(device):
            self.why = f"too little memory is free for copies of {needed / 1e9:.1f} GB"
            return None
        if not isinstance(getattr(compute, "__func__", compute), types.FunctionType):
            self.why = f"step.backward was given a {type(compute).__name__}, whose variables are not known"
            return None
        self._record = _Record(self._parts, step, compute)
        return self._record

    def due(self, step: Any) -> bool:
        """Whether the rehearsal comes after this step, on all ranks."""
        return self._first is not None and step.number == self._first + AFTER + 1

    def play(self, step: Any) -> str:
        """The difference that the rehearsal has found; empty: none."""
        record, self._record = self._record, None
        if record is None:
            return ""
        if record.problem:
            self.why = record.problem
            return ""
        try:
            return self._played(record, step)
        except Exception as error:
            # A rehearsal that fails says nothing about the training.
            self.why = f"the copy failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            return ""

    def _played(self, record: _Record, step: Any) -> str:
        memo: dict[int, Any] = {id(each): each for each in (*self._keep, step._job)}
        memo[id(step)] = record.step
        now = _Variables(record.compute)
        compute = now.copied(record, memo)
        own = _registered(self._parts)
        if not own & memo.keys() or any(id(each) in own for each in now.originals):
            self.why = "the model cannot be copied with the function that computes its loss"
            return ""
        # The function may read some of a model's layers by names of their own.
        twins = {name: copy.deepcopy(model, memo) for name, model in self._parts.models.items()}
        record.load(twins, memo)
        gradients = [(each, each.grad) for each in self._parts.parameters().values()]
        for each, _ in gradients:
            each.grad = None
        try:
            loss = self._again(record, compute)
            touched = any(each.grad is not None for each, _ in gradients)
        finally:
            for each, gradient in gradients:
                each.grad = gradient
        if touched:
            self.why = "the function reads the model in a way that cannot be copied"
            return ""
        found = _gradients(Parts(twins, {}, {}))
        value = loss.item()
        if (value == record.loss or value != value) and found == record.gradients:
            self.step, self.why = record.step.number, ""
            return ""
        what = f"step {record.step.number}, computed again from what a checkpoint has, "
        what += "has other gradients" if value == record.loss else f"has the loss {value!r} and had {record.loss!r}"
        if any(id(each) in memo for each in self._parts.optimizers.values()):
            self.why = f"{what}; the function may read the optimizer"
            return ""
        changed = [name for name, mark in now.marks(own).items() if record.marks.get(name) != mark]
        reads = f"It reads {shown(changed)}, which changes." if changed else "It reads something that changes."
        return (
            f"{what}: a stop would change the training. {reads} Give it to attach (`extra`), or make it a buffer of "
            "the model. If it is made anew for each step from step.number, give attach rehearse=False."
        )

    def _again(self, record: _Record, compute: Compute) -> Any:
        with rng.kept(), torch.enable_grad():
            rng.seed(self._seed, *drawn((record.step.number, 0), record.rank))
            loss, _ = measured(compute(record.batch))
            (loss if record.scale is None else loss * record.scale).backward()
        return loss


class _Record:
    """The recorded step: what the state was, what came out, and what the function could read."""

    def __init__(self, parts: Parts, step: Any, compute: Compute) -> None:
        self._parts, self.step, self.compute = parts, step, compute
        self.problem, self.rank = "", 0
        self.batch: Any = None
        self.loss: float = 0.0
        self.scale: Any = None
        self.gradients: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        self.written: set[str] = set()
        """Variables that the function itself puts another object into."""
        self.marks: dict[str, Any] = {}
        self._models: dict[str, Any] = {}
        self._extra: dict[str, Any] = {}

    def begin(self, rank: int, batch: Any) -> None:
        """Before the function is called with the batch of a virtual rank."""
        self.rank = rank
        try:
            self.batch = copy.deepcopy(batch)
            for name, model in self._parts.models.items():
                self._models[name] = (
                    {key: (each.detach().clone(), each.requires_grad) for key, each in model.named_parameters()},
                    {key: each.detach().clone() for key, each in _persistent(model)},
                    {key: each.training for key, each in model.named_modules()},
                )
            self._extra = {
                name: {key: value.detach().clone() if isinstance(value, torch.Tensor) else value
                       for key, value in flat(name, each.state_dict()).items()}
                for name, each in self._parts.extra.items()
            }  # fmt: skip
        except Exception as error:
            self.problem = f"the step cannot be kept: {type(error).__name__}: {error}"
            return
        variables = _Variables(self.compute)
        self.before, self.marks = dict(variables.values), variables.marks(_registered(self._parts))

    def end(self, loss: Any, scale: Any) -> None:
        """After its backward pass, whose gradients no other has been added to."""
        self.loss, self.scale = loss.item(), scale
        self.gradients = _gradients(self._parts)
        after = _Variables(self.compute).values
        self.written = {name for name, value in self.before.items() if after.get(name) is not value}

    def load(self, twins: Mapping[str, Any], memo: Mapping[int, Any]) -> None:
        """Bring copies to the state before the step."""
        for name, twin in twins.items():
            parameters, buffers, modes = self._models[name]
            with torch.no_grad():
                for key, each in twin.named_parameters():
                    each.grad = None
                    each.copy_(parameters[key][0])
                    each.requires_grad_(parameters[key][1])
                for key, each in _persistent(twin):
                    each.copy_(buffers[key])
            for key, module in twin.named_modules():
                module.training = modes[key]
        for name, extra in self._parts.extra.items():
            twin = memo.get(id(extra))
            if twin is not None and twin is not extra:
                twin.load_state_dict(untensors(self._extra[name]))


class _Variables:
    """What a function reads: its closure, the globals that it names, and those of functions of the same file."""

    def __init__(self, compute: Any) -> None:
        self._bound = getattr(compute, "__self__", None)
        self._function: Any = getattr(compute, "__func__", compute)
        self.values: dict[str, Any] = {"self": self._bound} if self._bound is not None else {}
        self.originals: list[Any] = []
        """Tensors of what could not be copied."""
        self._functions: dict[str, Any] = {}
        self._read(self._function)

    def _read(self, function: Any) -> None:
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            self._found(name, _content(cell))
        for name in _globals_of(function.__code__):
            if name in function.__globals__:
                self._found(name, function.__globals__[name])

    def _found(self, name: str, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            if value.__globals__ is self._function.__globals__ and name not in self._functions:
                self._functions[name] = value
                self._read(value)
        elif name not in self.values and not isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType)):
            self.values[name] = value

    def copied(self, record: _Record, memo: dict[int, Any]) -> Any:
        """The function over copies of what it reads."""
        budget = SHARE * _free(torch.device("cpu"))
        made: dict[str, Any] = {}
        for name, value in self.values.items():
            # What the body puts there for each step is that of the recorded one.
            source = value if name in record.written else record.before.get(name, value)
            within = [each for _, each in _tensors(source, name, DEPTH, set())]
            try:
                if sum(each.numel() * each.element_size() for each in within) > budget:
                    raise MemoryError
                made[name] = _generator(source) if isinstance(source, torch.Generator) else copy.deepcopy(source, memo)
            except Exception:
                made[name] = source
                self.originals += within
        names = dict(self._function.__globals__) | made
        for name, each in self._functions.items():
            names[name] = _over(each, names, made)
        function = _over(self._function, names, {**made, **{name: names[name] for name in self._functions}})
        return function if self._bound is None else types.MethodType(function, made["self"])

    def marks(self, known: Set[int]) -> dict[str, Any]:
        """Of each tensor that it can reach, but for those `known`, a number that changes with its content."""
        found = {}
        for name, value in self.values.items():
            for path, tensor in _tensors(value, name, DEPTH, set()):
                if id(tensor) in known:
                    continue
                found[path] = fingerprint(tensor) if tensor.numel() <= 1 << 20 else (id(tensor), tensor._version)
        return found


def _registered(parts: Parts) -> set[int]:
    """What of the models a checkpoint has, and buffers that it has not."""
    return {id(each) for model in parts.models.values() for each in (*model.parameters(), *model.buffers())}


def _gradients(parts: Parts) -> dict[str, Any]:
    return {name: None if each.grad is None else fingerprint(each.grad) for name, each in parts.parameters().items()}


def _generator(source: torch.Generator) -> torch.Generator:
    return torch.Generator(source.device).set_state(source.get_state())


def _over(function: Any, names: dict[str, Any], cells: Mapping[str, Any]) -> Any:
    closure = tuple(
        types.CellType(cells.get(name, _content(cell)))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    )
    made = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned so far
        return None


def _globals_of(code: types.CodeType) -> Iterator[str]:
    """Names of the globals that it and the functions within it name."""
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"):
            yield each.argval
        elif isinstance(each.argval, types.CodeType):
            yield from _globals_of(each.argval)


def _persistent(model: Any) -> Iterator[tuple[str, Any]]:
    """Buffers that a state dictionary has."""
    for path, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                yield f"{path}.{key}", buffer


def _tensors(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        for key, each in [*value.items()]:
            yield from _tensors(each, f"{name}[{key!r}]", depth - 1, seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for place, each in enumerate([*value]):
            yield from _tensors(each, f"{name}[{place}]", depth - 1, seen)
    elif isinstance(value, torch.nn.Module):
        for key, each in (*value.named_parameters(), *value.named_buffers()):
            yield f"{name}.{key}", each
        for path, module in value.named_modules():
            within = {key: each for key, each in vars(module).items() if isinstance(each, (torch.Tensor, list, dict))}
            for key, each in within.items():
                if not key.startswith("_"):
                    yield from _tensors(each, ".".join(filter(None, (name, path, key))), 1, seen)
    else:
        for key, each in [*getattr(value, "__dict__", {}).items()]:
            yield from _tensors(each, f"{name}.{key}", depth - 1, seen)


def _free(device: Any) -> float:
    """Bytes that are free for this process: of the device, else of the machine and its cgroup."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    free = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        free = min(free, float(limit) - float(used)) if limit != "max" else free
    except OSError:
        pass  # cgroup v1, or none
    return free
