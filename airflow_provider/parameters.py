"""The operator's parameters as a TrainSpec: checked when the Dag is parsed as far as they are known, else at submit."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kueue_integration.errors import SpecError
from kueue_integration.spec.train_spec import TrainSpec, from_mapping
from kueue_integration.spec.validate import validate

from .exceptions import InvalidTrainingError

SPEC_FIELDS: Mapping[str, str] = {
    "queue_name": "queue", "pod_resources": "resources", "workers": "workers", "min_workers": "min_workers",
    "topology": "topology", "node_selector": "node_selector", "tolerations": "tolerations",
    "resource_claims": "resource_claims",
    "world_size": "world_size", "image": "image", "priority_class": "priority_class", "env": "env",
    "workdir": "workdir", "store": "store", "inputs": "inputs", "outputs": "outputs",
    "engine": "engine", "checkpoint_budget_s": "checkpoint_budget_s",
    "grace_period_s": "grace_period_s", "checkpoint_every": "checkpoint_every", "hold": "hold",
    "checkpoint_disk": "checkpoint_disk", "checkpoint_memory": "checkpoint_memory",
    "reproducible_layout": "reproducible_layout", "privileges": "privileges",
    "volumes": "volumes", "volume_mounts": "volume_mounts", "pod_override": "pod_override",
    "infrastructure_retries": "infrastructure_retries", "resume_on_exit_codes": "resume_on_exit_codes",
}  # fmt: skip
"""Operator parameter -> field of TrainSpec, for those that are passed on as they are."""
_OTHERS = ("command", "files", "labels", "annotations", "namespace")
_TOGETHER = (
    {"workers", "min_workers", "world_size"},
    {"volumes", "volume_mounts", "store", "inputs", "outputs", "pod_override", "node_selector", "tolerations",
     "resource_claims"},
    {"workdir", "files"},
)  # fmt: skip
"""Parameters with rules over several of them: while one is a template, the others are not checked."""


def spec_values(operator: Any) -> dict[str, Any]:
    """Fields of TrainSpec that the operator passes on as they are, without those that are not set."""
    return {
        field: getattr(operator, parameter)
        for parameter, field in SPEC_FIELDS.items()
        if getattr(operator, parameter) is not None
    }


def check_known(operator: Any) -> None:
    """Raise InvalidTrainingError for every parameter whose value is known already and cannot be right; no I/O."""
    unknown = {name for name in (*SPEC_FIELDS, *_OTHERS) if is_open(getattr(operator, name))}
    if isinstance(operator.files, Mapping) and not operator.render_files:
        unknown.discard("files")  # braces in them are the program's own
    unknown = unknown.union(*(group for group in _TOGETHER if group & unknown))
    values = {k: v for k, v in spec_values(operator).items() if k not in {SPEC_FIELDS.get(n, n) for n in unknown}}
    values |= {n: getattr(operator, n) for n in _OTHERS if n not in unknown and getattr(operator, n) is not None}
    values = {"queue": "unknown", "command": ("unknown",), **values, "name": "unknown"}
    try:
        validate(from_mapping(values))
    except SpecError as error:
        raise refusal(in_operator_words(error)) from None


def is_open(value: Any) -> bool:
    """Whether `value` is only known when the task runs: a template, or something of another task's."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_open(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(is_open(item) for item in value)
    return hasattr(value, "iter_references")  # XComArg and what else Airflow resolves later


def is_rendered(files: Any) -> bool:
    """Whether Airflow has to make `files` of something else: a template of the whole, or another task's value."""
    values = files.values() if isinstance(files, Mapping) else [files]
    return any(hasattr(value, "iter_references") for value in [files, *values]) or (
        isinstance(files, str) and is_open(files)
    )


def in_operator_words(error: SpecError) -> SpecError:
    """The same problems under the names that the Dag's author wrote."""
    parameters = {field: parameter for parameter, field in SPEC_FIELDS.items()}

    def rename(field: str) -> str:
        base, bracket, rest = field.partition("[")
        return parameters.get(base, base) + bracket + rest

    return SpecError([(rename(field), value, text) for field, value, text in error.problems])


def refusal(error: SpecError) -> InvalidTrainingError:
    """What the Dag's author reads."""
    lines = "".join(f"\n  {field} = {value!r}: {text}" for field, value, text in error.problems)
    return InvalidTrainingError(f"The training job was refused before anything was created:{lines}")


def make_spec(values: Mapping[str, Any]) -> TrainSpec:
    """Raises SpecError that names the operator's parameters."""
    try:
        return from_mapping(values)
    except SpecError as error:
        raise in_operator_words(error) from None


def mapping(parameter: str, value: Any) -> dict[str, Any]:
    """A parameter that this package adds to: a mapping, its JSON text, or nothing. Raises SpecError."""
    given = value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None if value in ("", "None") else value
    if value is not None and not isinstance(value, Mapping):
        raise SpecError([(parameter, given, "must be a mapping, or the JSON text of one")])
    return dict(value or {})


def plain(value: Any) -> Any:
    """Models of the Kubernetes client in `value`, as `V1Volume`, as plain data; anything else as it is."""
    if hasattr(value, "openapi_types"):
        own = {key: getattr(value, name) for name, key in value.attribute_map.items()}
        return {key: plain(part) for key, part in own.items() if part is not None}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def number(parameter: str, value: object, least: int, none: str) -> None:
    """Raise ValueError unless `value` is a whole number of at least `least`, or None, which means `none`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and value >= least):  # type: ignore[operator]
        raise ValueError(f"{parameter} = {value!r}: must be a whole number, {least} or more, or None{none}")


def words(parameter: str, value: Any) -> None:
    """Raise ValueError for a text where a list of words belongs: each of its letters would be one."""
    if isinstance(value, str) and not is_open(value):
        raise ValueError(f"{parameter} = {value!r}: must be a list of words, as in {value.split()!r}")


def text(parameter: str, value: Any) -> None:
    """Raise ValueError unless `value` is a text, None, or only known when the task runs."""
    if value is not None and not isinstance(value, str) and not is_open(value):
        raise ValueError(f"{parameter} = {value!r}: must be a text")


def word_list(parameter: str, value: Any) -> list[str]:
    """A rendered list of words: a sequence, or its JSON text. Raises SpecError."""
    given = value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SpecError([(parameter, given, "must be a list of words, or the JSON text of one")])
    return [str(word) for word in value]


def duration(parameter: str, value: Any) -> None:
    """Raise ValueError unless `value` is a timedelta of at least nothing."""
    if not isinstance(value, datetime.timedelta) or value < datetime.timedelta():
        raise ValueError(f"{parameter} = {value!r}: must be a datetime.timedelta, zero or more")


def exit_codes(resumed: Any, skipped: Any, failed: Any) -> None:
    """Raise ValueError for exit codes that are none, or that are to do two things."""
    seen: dict[int, str] = {}
    named = (("resume_on_exit_codes", resumed), ("skip_on_exit_code", skipped), ("fail_on_exit_codes", failed))
    for parameter, value in named:
        if is_open(value):
            if parameter == "resume_on_exit_codes":
                continue
            raise ValueError(f"{parameter} = {value!r}: cannot be a template; give the exit codes themselves")
        for code in (value,) if isinstance(value, int) else value or ():
            if not isinstance(code, int) or isinstance(code, bool) or not 1 <= code <= 255:
                raise ValueError(f"{parameter} = {value!r}: exit codes of failures are whole numbers from 1 to 255")
            if code in seen:
                raise ValueError(f"{parameter} = {value!r}: exit code {code} is in {seen[code]} already; name it once")
            seen[code] = parameter
