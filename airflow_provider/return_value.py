"""Arguments and return value of a training function, as JSON on their way to the ranks and back to Airflow.

Both ends are here. `run` and `leave` are shipped beside the function and run in the training image: they need nothing
but the standard library of Python 3.8, and never fail a training that has just ended. `carried` and `taken` are for
Airflow.

JSON has no word for half of what programs return, so such values are marked: `{"!": kind, "is": ...}`. They come out as
what Airflow's own serialisation takes. What it does not take comes out as text, and a note says which value that was.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

LIMIT = 48_000
"""Bytes of JSON, as `singularity_proxy.protocol.messages.RESULT_BYTES`. An XCom is for results, not for models."""
FILE = "SINGULARITY_RESULT_FILE"
"""The variable that says where to leave it."""
MARK, IS = "!", "is"
DEEPEST = 24
"""Of containers within containers; JSON of ours may have 32 brackets."""
SHOWN = 200
"""Characters of a value that does not travel."""
MOST_NOTES = 10
_EXACT = 2**53 - 1
"""Larger whole numbers are not read exactly by everybody, larger ones than 64 bits not by Airflow."""


def run(function: Callable[..., Any], arguments: str) -> None:
    """Call a training function in every rank, with what the file `arguments` has for it."""
    with open(arguments, encoding="utf-8") as file:
        given = _decoded(json.load(file), "", None)
    result = function(*given["args"], **given["kwargs"])
    if os.environ.get("RANK", "0") == "0":
        leave(result)


def leave(value: Any, path: str | None = None) -> None:
    """Write down what rank 0 returns. Never raises: the training has succeeded, whatever it returns."""
    path = path or os.environ.get(FILE)
    if not path:
        print("no SINGULARITY_RESULT_FILE: what the function returned goes nowhere", flush=True)
        return
    try:
        text = written(value)
    except Exception as error:  # of a class of the user's, say in its __repr__
        text = json.dumps({"notes": [f"it cannot be read: {type(error).__name__}"]})
    try:
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(text)
        os.replace(path + ".new", path)  # noqa: PTH105
    except OSError as error:
        print(f"what the function returned cannot be written to {path}: {error}", flush=True)


def written(value: Any) -> str:
    """The JSON object: `value`, and `notes` about what did not travel as it was. Too large: `notes` alone."""
    encoder = _Encoder()
    try:
        encoded, notes = encoder.encoded(value, "", DEEPEST), encoder.notes
        if encoder.more:
            notes = [*notes, f"and {encoder.more} more values"]
        text = json.dumps({"value": encoded, "notes": notes} if notes else {"value": encoded})
        if len(text) <= LIMIT:
            return text
    except _TooLargeError:
        pass
    fix = "write it to a file of the outputs and return the path"
    return json.dumps({"notes": [f"it has more than {LIMIT} bytes as JSON: {fix}"]})


class _TooLargeError(Exception):
    pass


class _NotAsItIsError(Exception):
    pass


class _Encoder:
    """Of one value. Stops where the value cannot fit any more, also in one that contains itself.

    :param exact: for Python at the other end, and not for Airflow: paths stay such, and what would not arrive as it is
        raises _NotAsItIsError
    """

    def __init__(self, limit: int = LIMIT, exact: bool = False) -> None:
        self.notes: list[str] = []
        self.more = 0
        """Notes that are not among them."""
        self._exact = exact
        self._left = limit
        """Every value takes a byte at least."""

    def encoded(self, value: Any, where: str, left: int) -> Any:
        """:param where: as Python would index it, "" for the whole; :param left: of DEEPEST"""
        self._left -= 1
        if self._left < 0:
            raise _TooLargeError
        try:
            return self._of_its_kind(value, where, left)
        except (_TooLargeError, _NotAsItIsError):
            raise
        except Exception as error:  # of a class of the user's, or a value that its own class cannot write down
            self._note(where, f"cannot be read ({type(error).__name__})", "the beginning of its repr is there")
            return _shown(value)

    def _of_its_kind(self, value: Any, where: str, left: int) -> Any:
        if isinstance(value, enum.Enum):
            return self.encoded(value.value, where, left)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, int):
            return int(value) if abs(value) <= _EXACT else _marked("int", str(int(value)))
        if isinstance(value, float):
            return float(value) if abs(value) < 1e300 else _marked("float", repr(float(value)))
        if self._exact and isinstance(value, os.PathLike):
            return _marked("path", _text(os.fsdecode(value)))
        simple = _simple(value)
        if simple is not None:
            return simple
        if left > 1:
            if isinstance(value, Mapping):
                return self._object({_text(_key(key)): item for key, item in value.items()}, len(value), where, left)
            if isinstance(value, list):
                return self._items(value, where, left)
            for kind, type_ in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
                if isinstance(value, type_):
                    return _marked(kind, self._items(value, where, left - 1))
            if is_dataclass(value) and not isinstance(value, type):
                named = {f.name: getattr(value, f.name, None) for f in fields(value)}
                return self._object(named, len(named), where, left)
            if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
                return self._items(value, where, left)  # as Airflow's of the XComs of a mapped task
            plain = _plain(value)
            if plain is not None:
                return self.encoded(plain, where, left - 1)
        self._note(where, f"is of type {type(value).__name__}", "the beginning of its repr is there instead")
        return _shown(value)

    def _object(self, named: dict[str, Any], size: int, where: str, left: int) -> dict[str, Any]:
        if len(named) < size:
            self._note(where, "has keys that are the same as text", "the last of each is there")
        inner = left - 2 if MARK in named else left - 1
        found = {key: self.encoded(item, f"{where}[{key!r}]", inner) for key, item in named.items()}
        return _marked("dict", found) if MARK in found else found

    def _items(self, value: Any, where: str, left: int) -> list[Any]:
        return [self.encoded(item, f"{where}[{number}]", left - 1) for number, item in enumerate(value)]

    def _note(self, where: str, what: str, instead: str) -> None:
        if self._exact:
            raise _NotAsItIsError(f"{where or 'it'} {what}")
        if len(self.notes) < MOST_NOTES:
            self.notes.append(f"{where or 'it'} {what}: {instead}"[:SHOWN])
        else:
            self.more += 1


def _simple(value: Any) -> Any:
    """Values of the standard library without parts; None for others."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return _marked("datetime", value.isoformat())
        key = getattr(value.tzinfo, "key", None) or getattr(value.tzinfo, "name", None)
        zone = {"zone": key} if isinstance(key, str) else {}
        return {**_marked("moment", value.astimezone(datetime.timezone.utc).isoformat()), **zone}
    if isinstance(value, datetime.date):
        return _marked("date", value.isoformat())
    if isinstance(value, datetime.timedelta):
        return _marked("timedelta", [value.days, value.seconds, value.microseconds])
    if isinstance(value, decimal.Decimal):
        return _marked("decimal", str(value))
    if isinstance(value, uuid.UUID):
        return _marked("uuid", str(value))
    if isinstance(value, datetime.time):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return _text(os.fsdecode(value))
    return None


def _plain(value: Any) -> Any:
    """Scalars and arrays of numpy, torch and their like as numbers and lists of them; None for others."""
    try:
        if hasattr(value, "detach"):
            value = value.detach()
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            found = value.item()
        elif hasattr(value, "tolist"):
            found = value.tolist()
        elif hasattr(value, "model_dump"):
            found = value.model_dump()
        else:
            return None
    except Exception:  # whatever a foreign class does there
        return None
    return None if type(found) is type(value) else found


def _key(key: Any) -> str:
    return str(key.value if isinstance(key, enum.Enum) else key)


def _text(value: str) -> str:
    """Without halves of surrogate pairs, which no UTF-8 has."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _marked(kind: str, value: Any) -> dict[str, Any]:
    return {MARK: kind, IS: value}


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # of a class of the user's
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return _text(text[:SHOWN])


# --- in Airflow -------------------------------------------------------------------------------------------------------
def carried(value: Any, limit: int) -> Any:
    """An argument as data for JSON, which `run` reads. Raises ValueError: it would not arrive as it is, or has more
    than `limit` parts."""
    try:
        return _Encoder(limit, exact=True).encoded(value, "", DEEPEST)
    except _NotAsItIsError as error:
        raise ValueError(str(error)) from None
    except _TooLargeError:
        raise ValueError(f"it has more than {limit} parts") from None


def taken(found: object) -> tuple[Any, list[str]]:
    """The value that a parsed JSON object has, and notes for the task log. Raises LookupError: there is none.

    Airflow writes no number down that is not finite, and no whole number of more than 64 bits: those are text.
    """
    if not isinstance(found, dict):
        raise LookupError("rank 0 left no JSON object")
    given = found.get("notes")
    notes = [str(note) for note in given[: MOST_NOTES + 1]] if isinstance(given, list) else []
    if "value" not in found:
        raise LookupError("; ".join(notes) or "rank 0 left no value")
    try:
        return _decoded(found["value"], "", notes), notes
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise LookupError(f"rank 0 left a value that cannot be understood: {error!r}") from None


def _decoded(value: Any, where: str, notes: list[str] | None) -> Any:
    """:param notes: None in a rank, where nothing has to be what Airflow can write down"""
    if isinstance(value, list):
        return [_decoded(item, f"{where}[{number}]", notes) for number, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if MARK not in value:
        return {key: _decoded(item, f"{where}[{key!r}]", notes) for key, item in value.items()}
    kind, inner = value[MARK], value[IS]
    try:
        return _unmarked(kind, inner, value.get("zone"), where, notes)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        if notes is None:
            raise
        notes.append(f"{where or 'it'} cannot be understood ({type(error).__name__}): it is text")
        return str(inner)[:SHOWN]


def _unmarked(kind: str, inner: Any, zone: str | None, where: str, notes: list[str] | None) -> Any:
    if kind == "dict":
        return {key: _decoded(item, f"{where}[{key!r}]", notes) for key, item in inner.items()}
    if kind in ("tuple", "set", "frozenset"):
        return _collection(kind, _decoded(inner, where, notes), notes is None)
    if kind in ("int", "float", "decimal"):
        return _number(kind, inner, where, notes)
    if kind == "moment":
        return _moment(inner, zone)
    if kind == "timedelta":
        found = datetime.timedelta(*inner)
        datetime.timedelta(seconds=found.total_seconds())  # as Airflow reads it back
        return found
    return _READ[kind](inner)


_READ: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "uuid": uuid.UUID,
    "path": Path,
}


def _collection(kind: str, items: list[Any], exact: bool) -> Any:
    if kind == "tuple":
        return tuple(items)
    if not exact and not all(item is None or isinstance(item, (str, int, float)) for item in items):
        return items  # Airflow's own form of a set does not come back if it has sets or tuples within
    return set(items) if kind == "set" else frozenset(items)


def _number(kind: str, text: str, where: str, notes: list[str] | None) -> Any:
    if notes is None:
        return {"int": int, "float": float, "decimal": decimal.Decimal}[kind](text)
    if kind == "int":
        whole = int(text)
        fits = -(2**63) <= whole < 2**63
        found: Any = whole if fits else text
    else:
        real = float(text) if kind == "float" else decimal.Decimal(text)
        quiet = isinstance(real, float) or not real.is_snan()
        fits = quiet and math.isfinite(real) and math.isfinite(float(real))
        found = real if fits else text.lower().replace("infinity", "inf")
    if not fits:
        notes.append(
            f"{where or 'it'} is {str(found)[:SHOWN]}, no number that Airflow can write down: it is text"
        )
    return found


def _moment(text: str, zone: str | None) -> datetime.datetime:
    """In UTC where the zone is unknown here, or had no name: Airflow reads no other."""
    found = datetime.datetime.fromisoformat(text)
    if zone:
        try:
            from zoneinfo import ZoneInfo

            return found.astimezone(ZoneInfo(zone))
        except (ImportError, OSError, ValueError, KeyError):  # Python 3.8, or none that this machine knows
            return found
    return found
