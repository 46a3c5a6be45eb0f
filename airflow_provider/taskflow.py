"""A Python function as a training script: the file that the ranks run, and its return value on the way back. Pure.

Arguments travel as JSON in a file beside the script. The return value of rank 0 comes back in its output, as lines that
begin with MARKER. It is the only way out of a pod that needs neither credentials nor a volume. Lines are short, so that
no log reader cuts them, and carry their number, so that a missing one is noticed.
"""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kueue_integration.errors import SpecError
from proxy.protocol import decode

SCRIPT = "training_task.py"
ARGUMENTS = "training_task.json"
MARKER = "::singularity-return"
PIECE = 4000
MAX_RETURN_BYTES = 48_000
"""Of JSON. An XCom is for results, not for models; and pods' logs are rotated by the kubelet."""

MAX_PIECES = MAX_RETURN_BYTES * 4 // 3 // PIECE + 1

_SCRIPT = '''\
"""Made from the function {name} of an Airflow Dag; every rank runs it."""
{source}

if __name__ == "__main__":
    import base64
    import json
    import os

    with open({arguments!r}, encoding="utf-8") as _file:
        _given = json.load(_file)
    _result = {name}(*_given["args"], **_given["kwargs"])
    if os.environ.get("RANK", "0") == "0":
        _text = json.dumps(_result).encode()
        if len(_text) > {limit}:
            raise SystemExit(f"{name} returned {{len(_text)}} bytes of JSON, more than {limit}: write it to a file and return its path")
        _text = base64.b64encode(_text).decode()
        _pieces = [_text[_i : _i + {piece}] for _i in range(0, len(_text), {piece})]
        for _number, _piece in enumerate(_pieces, 1):
            print("{marker}", f"{{_number}}/{{len(_pieces)}}", _piece, flush=True)
'''  # noqa: E501


def files(name: str, source: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, str]:
    """The two files of the job. Raises SpecError when an argument is not JSON."""
    for field, value in [*((f"op_args[{i}]", v) for i, v in enumerate(args)), *kwargs.items()]:
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            fix = f"cannot be sent to the ranks as JSON ({error}); give a path instead"
            raise SpecError([(field, value, fix)]) from None
    script = _SCRIPT.format(
        name=name,
        source=textwrap.dedent(source).rstrip(),
        arguments=ARGUMENTS,
        limit=MAX_RETURN_BYTES,
        piece=PIECE,
        marker=MARKER,
    )
    return {SCRIPT: script, ARGUMENTS: json.dumps({"args": list(args), "kwargs": dict(kwargs)})}


def returned(lines: Iterable[str]) -> Any:
    """The value in rank 0's output. Raises LookupError when it is not there, or not whole."""
    pieces: dict[int, str] = {}
    total = 0
    for line in lines:
        _, found, rest = line.partition(f"{MARKER} ")
        words = rest.split()
        first, _, last = words[0].partition("/") if words else ("", "", "")
        number, count = decode.whole(first, 1, MAX_PIECES), decode.whole(last, 1, MAX_PIECES)
        if not found or len(words) != 2 or not isinstance(number, int) or not isinstance(count, int):
            continue  # the program prints what it likes
        if number == 1:
            pieces = {}
        pieces[number], total = words[1], count
    if not total:
        raise LookupError("rank 0 printed no return value")
    missing = [n for n in range(1, total + 1) if n not in pieces]
    if missing:
        raise LookupError(f"piece {missing[0]} of {total} of the return value is missing from rank 0's output")
    try:
        text = base64.b64decode("".join(pieces[n] for n in range(1, total + 1)), validate=True)
    except ValueError as error:
        raise LookupError(f"the return value in rank 0's output is not base64: {error}") from None
    value = decode.json_value(text)
    if isinstance(value, decode.Unreadable):
        raise LookupError(f"the return value in rank 0's output is {value.why}")
    return value
