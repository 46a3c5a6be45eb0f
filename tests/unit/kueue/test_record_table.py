"""The table of what stands on a Job is whole, agrees with the guard, and its records change by the rules alone."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kueue_integration.contract import attempt_records, job_names, leaves, record_types, saveable
from kueue_integration.guard import ownership
from kueue_integration.job import records
from singularity_proxy.protocol import names
from singularity_proxy.protocol.decode import Record

GOLDEN = Path(__file__).parent / "golden" / "records.json"
"""What the release before reads: record -> field -> whether it has to be there. At a release `python
test_record_table.py` writes it anew."""
ELSEWHERE = {
    job_names.ANN_RESHAPE, job_names.ANN_PAUSED, job_names.ANN_PRIORITY, job_names.ANN_FLAVOR, job_names.ANN_OVERDUE,
}  # fmt: skip
"""On Workloads, pods or the Lease."""
WRITTEN_WHOLE: set[type[Any]] = {
    attempt_records.Roster, attempt_records.Lost, leaves.Shape, saveable.Saveable, record_types.CheckpointMemory,
    record_types.NodeRequirement,
}  # fmt: skip
"""Made anew, not changed, by whoever writes it; or Kubernetes' own."""
WRITERS = {"controller": ownership.CONTROLLER, "creator": ownership.CREATION, "user": ownership.USER}


def _classes_in(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
        for inner in typing.get_type_hints(hint).values():
            yield from _classes_in(inner)
    elif typing.get_origin(hint) in (types.UnionType, typing.Union, list):
        for option in typing.get_args(hint):
            yield from _classes_in(option)


def classes() -> list[type[Any]]:
    """All records of the table, and those within them."""
    forms = [field.read.cls for field in records.FIELDS if isinstance(field.read, records.Message)]
    found = {cls for form in forms for cls in _classes_in(form)}
    return sorted(found, key=lambda cls: cls.__name__)


def shape(cls: type[Any]) -> dict[str, bool]:
    """Field -> whether it has no default."""
    own = [field for field in dataclasses.fields(cls) if field.name != "newer"]
    return {f.name: f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING for f in own}


def test_every_annotation_of_a_job_is_in_the_table_once() -> None:
    ours = [v for module in (names, job_names) for k, v in vars(module).items() if k.startswith("ANN_")]
    known = [field.name for field in records.FIELDS]
    assert len(known) == len(set(known))
    on_nodes_and_services = {name for name in ours if name not in {entry.name for entry in ownership.TABLE}}
    assert set(ours) - set(known) - ELSEWHERE <= on_nodes_and_services
    assert set(known) <= set(ours)


@pytest.mark.parametrize("field", records.FIELDS, ids=lambda field: str(field.name))
def test_the_guard_keeps_everybody_but_its_writer_from_a_field(field: records.Field) -> None:
    (entry,) = [entry for entry in ownership.TABLE if entry.name == field.name]
    assert entry.whose == WRITERS[field.writer] and field.means


def test_what_is_changed_and_written_again_keeps_what_it_does_not_know() -> None:
    assert [cls.__name__ for cls in classes() if not issubclass(cls, Record) and cls not in WRITTEN_WHOLE] == []


def test_records_change_only_by_fields_with_a_default() -> None:
    before: dict[str, dict[str, bool]] = json.loads(GOLDEN.read_text())
    now = {cls.__name__: shape(cls) for cls in classes()}
    for name, fields in before.items():
        assert fields.keys() <= now[name].keys(), f"{name}: a field has gone: an older release misses it"
        added = {field for field, required in now[name].items() if required and not fields.get(field, False)}
        assert not added, f"{name}: {added} needs a default: an older release does not write it"


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({cls.__name__: shape(cls) for cls in classes()}, indent=1) + "\n")
