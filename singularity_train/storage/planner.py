"""The planners of torch.distributed.checkpoint, with objects as plain values in place of pickles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, WriteItem, WriteItemType

from . import memory, plain
from .blocks import digest
from .writer import Plain


class SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
    """Encodes each object once, when the plan is made: training may change it afterwards."""

    def create_local_plan(self) -> SavePlan:
        """:raises UnsavableError: an object or a tensor cannot be stored"""
        made = super().create_local_plan()
        self._objects: dict[str, Plain] = {}
        self._staged: Mapping[MetadataIndex, torch.Tensor] | None = None
        for item in made.items:
            name, given = item.index.fqn, self.lookup_object(item.index)
            if item.type == WriteItemType.BYTE_IO:
                self._objects[name] = Plain(*plain.encode(name, given))
            else:
                memory.check(name, given)
        return made

    def digests(self) -> dict[str, str]:
        """Of each object of this rank, to see whether two ranks have another one under one key."""
        return {name: digest(each.data) for name, each in self._objects.items()}

    def stage(self, plan: SavePlan, stage: memory.Stage) -> None:
        """Copy what this rank writes; the state is not needed from here on."""
        wanted = [item.index for item in plan.items if item.type != WriteItemType.BYTE_IO]
        self._staged = stage.copy({index: self.lookup_object(index) for index in wanted})
        self.state_dict: dict[str, Any] = {}

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | Plain:
        if write_item.type == WriteItemType.BYTE_IO:
            return self._objects[write_item.index.fqn]
        return self._staged[write_item.index] if self._staged is not None else self.lookup_object(write_item.index)


class LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]
    def load_value(self, item: ReadItem, value: Any) -> None:
        """Put an object in its place of the state."""
        *above, last = self.mappings[item.dest_index.fqn]
        place: Any = self.original_state_dict
        for key in above:
            place = place[_key_of(place, key)]
        place[_key_of(place, last)] = value


def _key_of(place: Any, key: str | int) -> Any:
    """The key that `place` has: the flat state has the keys of dictionaries as text."""
    if isinstance(place, Mapping) and key not in place:
        return next((each for each in place if str(each) == key), key)
    return key
