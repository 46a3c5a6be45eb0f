"""Untrusted text -> a typed value, or `Unreadable` with the reason. Nothing here raises.

An attacker or a broken program can write annotations, labels, messages, manifests and XComs. Each of them is read with
these functions only. Size and depth are bounded before the parser sees the text. Every number is finite and in a range,
every string can be encoded, and no key of an object comes twice.

Two releases read each other: a field that this one does not know is ignored, and a `Record` keeps it for whoever writes
the record again (`fields_of`). What people write by hand is read with `strict`: there an unknown field is a slip.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

T = TypeVar("T")

MAX_BYTES: Final = 256 * 1024
"""Limit of one text: the API server allows no more for all annotations of an object together."""
MAX_DEPTH: Final = 32
"""Of brackets within brackets. Our own messages have six."""
MAX_SERVED: Final = 200
"""The same for what an API server sends: a pod template has twenty."""
MAX_WHOLE: Final = 2**53 - 1
"""Every JSON parser reads whole numbers up to this limit exactly."""
MAX_NUMBER: Final = 1e15
"""Of a float without a range of its own: times a thousand, it is still a whole number of a sane size."""
MAX_TIME: Final = 32_503_680_000.0
"""Unix seconds of the year 3000: every library can write it down."""
MAX_SECONDS: Final = 3.2e9
"""Of a duration: a hundred years."""
_SHOWN: Final = 60
"""Characters of a bad value that a reason quotes."""


@dataclass(frozen=True)
class Unreadable:
    """Why a text is not what it should be: words that follow the name of the field."""

    why: str


@dataclass(frozen=True)
class Within:
    """The range of a number, both ends included: `Annotated[float, Within(0, 1)]` in a message."""

    least: float
    most: float


@dataclass(frozen=True)
class Spelled:
    """A string that matches a pattern as a whole: `Annotated[str, Spelled("[a-z]+", "a word")]` in a message."""

    pattern: str
    what: str


@dataclass(frozen=True)
class Grows:
    """Words of an enumeration to which later releases add: `Annotated[Literal[...], Grows(None)] | None`.

    A word that this release does not know reads as `otherwise`. A `Record` keeps it until the field gets another value.
    """

    otherwise: str | None


@dataclass(frozen=True, slots=True)
class Record:
    """What is read, changed and written again, maybe by an older release than the one that wrote it first."""

    newer: dict[str, Any] = field(default_factory=dict, kw_only=True, repr=False, hash=False)
    """Fields that this release does not know, as they were read, and words of `Grows` likewise. No field of JSON."""


UnixTime = Annotated[float, Within(0, MAX_TIME)]
"""Unix seconds."""
Seconds = Annotated[float, Within(0, MAX_SECONDS)]
"""A duration. Machines send each other durations, because their clocks differ."""
Count = Annotated[int, Within(0, MAX_WHOLE)]
AnyFloat = Annotated[float, Within(-1e300, 1e300)]
"""A number that a user's program has computed."""


class _WrongError(ValueError):
    """Becomes an `Unreadable` before it leaves this module."""


# --- words and numbers ----------------------------------------------------------------------------------------------
def whole(text: object, least: int = 0, most: int = MAX_WHOLE) -> int | Unreadable:
    """A whole number, written with nothing but ASCII digits."""
    if not isinstance(text, str) or not text.isascii() or not text.isdigit():
        return Unreadable("not a whole number")
    if len(text) > len(str(most)) + 10 or not least <= int(text) <= most:
        return Unreadable(f"not a whole number from {least} to {most}")
    return int(text)


def number(text: object, least: float = -MAX_NUMBER, most: float = MAX_NUMBER) -> float | Unreadable:
    """A finite number of any notation that Python knows."""
    try:
        found = float(text) if isinstance(text, str) and len(text) <= _SHOWN else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        return Unreadable("not a number")
    if not least <= found <= most:
        return Unreadable(f"not a number from {least:g} to {most:g}")
    return found


def moment(text: object) -> float | Unreadable:
    """Unix seconds of an RFC 3339 time with its zone, from 1970 to 3000."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00")) if isinstance(text, str) else None
        seconds = found.timestamp() if found is not None and found.tzinfo is not None else math.nan
    except (ValueError, OverflowError):
        return Unreadable("not an RFC 3339 time")
    if math.isnan(seconds):
        return Unreadable("not an RFC 3339 time with a time zone")
    return seconds if 0 <= seconds <= MAX_TIME else Unreadable("a time before 1970 or after 3000")


# --- JSON -----------------------------------------------------------------------------------------------------------
def json_value(text: object, most_bytes: int = MAX_BYTES, halves: bool = False) -> Any:
    """Any JSON value, or Unreadable. Numbers are within MAX_WHOLE and 1e300.

    `halves` allows strings with lone surrogates: Python uses them for file names that are no UTF-8.
    """
    try:
        return _parsed(text, most_bytes, halves)
    except _WrongError as error:
        return Unreadable(str(error))


def message(cls: type[T], text: object, most_bytes: int = MAX_BYTES, halves: bool = False) -> T | Unreadable:
    """A dataclass from JSON text: no field is missing or of another type."""
    data = json_value(text, most_bytes, halves)
    return Unreadable(f"{cls.__name__}: {data.why}") if isinstance(data, Unreadable) else typed(cls, data)


def messages(cls: type[T], text: object, most_bytes: int = MAX_BYTES) -> list[T] | Unreadable:
    """A list of dataclasses from JSON text."""
    data = json_value(text, most_bytes)
    return Unreadable(f"list of {cls.__name__}: {data.why}") if isinstance(data, Unreadable) else listed(cls, data)


def last_message(cls: type[T], text: str, most_bytes: int = MAX_BYTES) -> T | Unreadable | None:
    """The last of a list of dataclasses from JSON text; None if it has none.

    Nobody reads the others: they need not be what they should, and reading them as closely takes most of the time.
    """
    where = f"list of {cls.__name__}"
    if len(text) > most_bytes:
        return Unreadable(f"{where}: longer than {most_bytes} bytes")
    try:
        data = json.loads(text)
        if not isinstance(data, list):
            return Unreadable(f"{where}: expected a JSON list, got {type(data).__name__}")
        return message(cls, json.dumps(data[-1]), most_bytes) if data else None
    except (ValueError, RecursionError, MemoryError) as error:
        return Unreadable(f"{where}: not valid JSON: {_cut(str(error), 200)}")


def listed(cls: type[T], data: object) -> list[T] | Unreadable:
    """A list of dataclasses from a decoded JSON list."""
    where = f"list of {cls.__name__}"
    if not isinstance(data, list):
        return Unreadable(f"{where}: expected a JSON list, got {type(data).__name__}")
    try:
        return [_built(cls, item, cls.__name__) for item in data]
    except _WrongError as error:
        return Unreadable(str(error))


def typed(cls: type[T], data: object, where: str = "", strict: bool = False) -> T | Unreadable:
    """A dataclass from a decoded JSON object; `where` names a nested one by its path.

    `strict` refuses fields that are not known.
    """
    try:
        return _built(cls, data, where or cls.__name__, strict)
    except _WrongError as error:
        return Unreadable(str(error))


def served(data: bytes) -> Any:
    """What an API server has sent. Values nested deeper than MAX_SERVED are None. Raises ValueError: no JSON.

    A user who may patch one object can make it store `metadata.managedFields` of thousands of levels, and each list of
    all objects has them. The parser cannot handle that. So values that are too deep are cut out, and all other objects
    can still be read.
    """
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(_shallow(data))


def _shallow(data: bytes) -> bytes:
    """`data`, JSON text, with `null` in place of what is nested deeper than MAX_SERVED."""
    parts: list[bytes] = []
    depth = kept = start = 0
    for found in _TOKEN.finditer(data):
        first = found.group()[:1]
        if first in b"[{":
            depth += 1
            if depth == MAX_SERVED + 1:
                start = found.start()
        elif first in b"]}":
            if depth == MAX_SERVED + 1:
                parts += [data[kept:start], b"null"]
                kept = found.end()
            depth -= 1
    return b"".join([*parts, data[kept:]])


_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
"""A string, or what is left of the text after a quote: it never fails, so it never looks back."""
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _parsed(text: object, most_bytes: int, halves: bool) -> Any:
    if not isinstance(text, (str, bytes)):
        raise _WrongError(f"not text but {type(text).__name__}")
    if len(text) > most_bytes:
        raise _WrongError(f"longer than {most_bytes} bytes")
    try:
        data = text.encode() if isinstance(text, str) else text
        text = data.decode()
    except UnicodeError:
        raise _WrongError("not valid JSON: not UTF-8") from None
    if len(data) > most_bytes:
        raise _WrongError(f"longer than {most_bytes} bytes")
    if _too_deep(data):
        raise _WrongError(f"not valid JSON: nested deeper than {MAX_DEPTH}")
    try:
        value = _DECODER.decode(text)
    except _WrongError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise _WrongError(f"not valid JSON: {_cut(str(error), 200)}") from None
    # A pair of surrogates is a character; a lone surrogate cannot be encoded.
    if not halves and _HALF.search(text) is not None:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeError:
            raise _WrongError("not valid JSON: half a character") from None
    return value


def _too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", data).translate(None, _NO_BRACKET):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _int(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > MAX_WHOLE:
        raise _WrongError(f"number {_cut(text)} is out of range")
    return int(text)


def _float(text: str) -> float:
    found = float(text)
    if abs(found) > 1e300:
        raise _WrongError(f"number {_cut(text)} is out of range")
    return found


def _constant(text: str) -> float:
    raise _WrongError(f"not valid JSON: {text} is not a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _WrongError(f"not valid JSON: key {_quoted(twice)} comes twice")
    return found


_DECODER = json.JSONDecoder(parse_int=_int, parse_float=_float, parse_constant=_constant, object_pairs_hook=_object)


# --- types ----------------------------------------------------------------------------------------------------------
def _built(cls: type[T], data: object, where: str, strict: bool = False) -> T:
    if not isinstance(data, dict):
        raise _WrongError(f"{where}: expected a JSON object, got {type(data).__name__}")
    shape = _shape(cls)  # type: ignore[arg-type]
    more = {name: value for name, value in data.items() if name not in shape}
    if strict and more:
        raise _WrongError(f"{where}: unknown field {_quoted(min(map(str, more)))}")
    values: dict[str, Any] = {}
    for name, spec in shape.items():
        if name not in data:
            if spec.required:
                raise _WrongError(f"{where}: field {name!r} is missing")
            continue
        value = data[name]
        if spec.grows is not None and isinstance(value, str) and value not in spec.words and not strict:
            more[name], value = value, spec.grows.otherwise
        values[name] = spec.read(f"{where}.{name}", value, strict)
    return cls(**values, newer=more) if more and issubclass(cls, Record) else cls(**values)


def fields_of(message: Any) -> dict[str, Any]:
    """The fields of a message as its JSON has them: without defaults, and with what a newer release has added.

    Values are as they are in the message: a nested message is still one.
    """
    found: dict[str, Any] = {}
    more: dict[str, Any] = message.newer if isinstance(message, Record) else {}
    cls: Any = type(message)
    shape = _shape(cls)
    for name, spec in shape.items():
        value = getattr(message, name)
        if name in more and spec.grows is not None and value == spec.grows.otherwise:
            found[name] = more[name]
        elif spec.required or value != spec.default:
            found[name] = value
    found.update((name, value) for name, value in more.items() if name not in shape)
    return found


def plain(value: Any) -> dict[str, Any]:
    """`value`, a dataclass, as nested dicts with all defaults: what people and their scripts are shown."""
    found: dict[str, Any] = dataclasses.asdict(value, dict_factory=_plain)
    return found


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    newer = found.pop("newer", {})
    return {**found, **newer}


_Reader = Callable[[str, Any, bool], Any]
"""Makes a value of what JSON has at a place; `strict` as in `typed`. Raises _WrongError."""


@dataclass(frozen=True)
class _Field:
    read: _Reader
    required: bool
    default: Any
    grows: Grows | None
    words: tuple[str, ...]


@functools.cache
def _shape(cls: Any) -> dict[str, _Field]:
    """The fields of its JSON. Finding them takes a hundred times as long as reading a message with them."""
    hints = typing.get_type_hints(cls, include_extras=True)
    of_records = {f.name for f in dataclasses.fields(Record)} if issubclass(cls, Record) else set()
    return {f.name: _field(hints[f.name], f) for f in dataclasses.fields(cls) if f.name not in of_records}


def _field(hint: Any, spec: dataclasses.Field[Any]) -> _Field:
    default = spec.default_factory() if spec.default_factory is not dataclasses.MISSING else spec.default
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        if typing.get_origin(option) is Annotated:
            inner, *extra = typing.get_args(option)
            for grows in extra:
                if isinstance(grows, Grows):
                    return _Field(_reader(hint), default is dataclasses.MISSING, default, grows, typing.get_args(inner))
    return _Field(_reader(hint), default is dataclasses.MISSING, default, None, ())


_ANY_INT = Within(-MAX_WHOLE, MAX_WHOLE)
_ANY_FLOAT = Within(-MAX_NUMBER, MAX_NUMBER)


@functools.cache
def _reader(hint: Any) -> _Reader:
    """What reads values of this type. Looking into a type takes longer than reading a value of it."""
    if hint is int:
        return lambda where, value, strict: _number(where, int, value, _ANY_INT)
    if hint is float:
        return lambda where, value, strict: _number(where, float, value, _ANY_FLOAT)
    if hint is str or hint is bool:
        return lambda where, value, strict: _of_type(where, hint, value)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated(args[0], args[1:])
    if origin in (typing.Union, types.UnionType):
        inner = _reader(next(option for option in args if option is not type(None)))
        if type(None) not in args:
            return inner
        return lambda where, value, strict: None if value is None else inner(where, value, strict)
    if origin is Literal:
        return lambda where, value, strict: _one_of(where, value, args)
    if origin is list:
        return _list_reader(_reader(args[0]), _within(args[0]))
    if origin is dict:
        entry = _reader(args[1])
        return lambda where, value, strict: {
            k: entry(f"{where}[{_quoted(k)}]", v, strict) for k, v in _of_type(where, dict, value).items()
        }
    if dataclasses.is_dataclass(hint):
        return lambda where, value, strict: _built(typing.cast(Any, hint), value, where, strict)
    raise AssertionError(f"no way to read {hint}")  # a mistake of ours, whatever the text


def _within(hint: Any) -> Within | None:
    """The bounds of a float; None for all other types."""
    inner, *extra = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if inner is not float:
        return None
    return next((each for each in extra if isinstance(each, Within)), _ANY_FLOAT)


def _list_reader(item: _Reader, bounds: Within | None) -> _Reader:
    """`bounds`: of items that are floats. A curve has many, and looking at each takes ten times as long."""

    def read(where: str, value: Any, strict: bool) -> list[Any]:
        found: list[Any] = _of_type(where, list, value)
        if bounds is not None and found and set(map(type, found)) <= {int, float} and math.isfinite(sum(found)):
            least, most = min(found), max(found)
            if max(bounds.least, -MAX_WHOLE) <= least and most <= min(bounds.most, MAX_WHOLE):
                return [*map(float, found)]
        return [item(f"{where}[{i}]", each, strict) for i, each in enumerate(found)]

    return read


def _annotated(inner: Any, extra: tuple[Any, ...]) -> _Reader:
    if any(isinstance(each, Grows) for each in extra):
        return _reader(inner)
    spelled = next((each for each in extra if isinstance(each, Spelled)), None)
    if spelled is not None:
        return lambda where, value, strict: _spelled(where, value, spelled)
    within = next(each for each in extra if isinstance(each, Within))
    return lambda where, value, strict: _number(where, inner, value, within)


def _one_of(where: str, value: Any, words: tuple[Any, ...]) -> Any:
    if not isinstance(value, str) or value not in words:
        raise _WrongError(f"{where}: {_quoted(value)} is not one of {', '.join(map(repr, words))}")
    return value


_TYPE_WORDS: dict[type[Any], str] = {list: "a list", dict: "an object"}


def _of_type(where: str, cls: type[Any], value: Any) -> Any:
    if not isinstance(value, cls) or (cls is not bool and isinstance(value, bool)):
        raise _WrongError(f"{where}: expected {_TYPE_WORDS.get(cls, cls.__name__)}, got {type(value).__name__}")
    return value


def _spelled(where: str, value: Any, spelled: Spelled) -> Any:
    _of_type(where, str, value)
    if not re.fullmatch(spelled.pattern, value):
        raise _WrongError(f"{where}: {_quoted(value)} is not {spelled.what}")
    return value


def _number(where: str, cls: type[Any], value: Any, within: Within) -> Any:
    if cls is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_WHOLE:
        value = float(value)
    _of_type(where, cls, value)
    if not within.least <= value <= within.most:  # not true of NaN
        raise _WrongError(f"{where}: {_quoted(value)} is not within {within.least:.16g} and {within.most:.16g}")
    return value


def _quoted(value: object) -> str:
    """`value` for people, cut; a whole number of any length."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**_SHOWN:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        return ascii(_cut(value))
    return _cut(ascii(value) if _flat(value) else type(value).__name__)


def _flat(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _cut(text: str, most: int = _SHOWN) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
