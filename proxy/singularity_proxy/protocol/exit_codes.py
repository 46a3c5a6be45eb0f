"""The exit codes of a training container: the cause, the result for the Job, and the text for the user. One table.

It is the source of the pod failure policy (`failure_rules` of `kueue_integration`). Launcher and sidecar end with its
codes, and `status` explains them. The reference page of exit codes is generated from the same table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Action = Literal["Complete", "Ignore", "Count", "FailJob"]
"""What the Job does with a pod that ended so. Ignore: the attempt is over, the job is not. Count: the same, and
Kubernetes counts the pod against `backoffLimit`."""
Then = Literal["the job is complete", "the job goes on", "the attempt is lost", "the job has failed"]

FINISHED: Final = 0
COMMAND: Final = 2
PROTOCOL: Final = 71
LOST: Final = 81
NOT_RESTORED: Final = 82
KILLED: Final = 137
STOPPED: Final = 143


@dataclass(frozen=True)
class Row:
    """`code` None: every code that no other row has."""

    code: int | None
    happened: str
    action: Action
    then: Then
    reads: str
    """The text if the container left no message of its own; "": none, the cause is in another place."""
    ours: bool = True
    """The launcher ends with it by its own decision. A program may end with it too."""


TABLE: Final = (
    Row(FINISHED, "every rank of the job has ended with 0", "Complete", "the job is complete", ""),
    Row(
        STOPPED,
        "stopped on request: after a checkpoint, by SIGTERM, or together with an attempt that another pod has lost",
        "Ignore", "the job goes on", "",
    ),
    Row(
        LOST,
        "this pod cannot go on for a reason outside of it that passes: the store, the controller, the sidecar or a pod "
        "that was to be met was away, a file of a volume that a rank had open is not there, a restore stood still, a "
        "pod had no room to restore ranks in",
        "Ignore", "the attempt is lost", "what it needed was away for too long; the next attempt tries again",
    ),
    Row(
        NOT_RESTORED,
        "the checkpoint was not restored: it is damaged in the store, or does not fit this pod (another image, another "
        "machine, a port in use)",
        "Ignore", "the attempt is lost", "its checkpoint was not restored; the pod's log says why",
    ),
    Row(
        KILLED,
        "killed (SIGKILL): by the kernel for memory, by the kubelet after the grace period, by hand",
        "Count", "the attempt is lost", "it was killed (SIGKILL)", ours=False,
    ),
    Row(
        PROTOCOL,
        "launcher and sidecar were given something that cannot work: a store without permission, a capability missing",
        "FailJob", "the job has failed", "the platform's part of the pod cannot work; the pod's log says why",
    ),
    Row(
        COMMAND,
        "the command cannot work here: `accelerate launch`, `python -I`, a working directory that does not exist",
        "FailJob", "the job has failed", "its command cannot work; the pod's log says why",
    ),
    Row(
        None,
        "the program ended with an error of its own",
        "FailJob", "the job has failed", "the program ended with an error; its last words are in the log", ours=False,
    ),
)  # fmt: skip
_BY_CODE: Final = {row.code: row for row in TABLE}
IGNORED: Final = tuple(sorted(row.code for row in TABLE if row.action == "Ignore" and row.code is not None))
COUNTED: Final = tuple(sorted(row.code for row in TABLE if row.action == "Count" and row.code is not None))
RESERVED: Final = frozenset(row.code for row in TABLE if row.ours and row.code not in (None, FINISHED, COMMAND))
"""Codes with a meaning for the platform: a job cannot choose another reaction to them."""


def of(code: int) -> Row:
    """The row of the exit code of a training container."""
    return _BY_CODE.get(code) or _BY_CODE[None]


def of_program(code: int) -> int:
    """The container's exit code when its program has ended with `code` by itself.

    A program that ends with a code that the Job ignores has failed like any other: the Job must not start it for ever.
    """
    return 1 if code in IGNORED else code


_FAILED = re.compile(r"\bfailed with exit code (\d+)\b")
"""In the message of a Job's condition Failed with reason PodFailurePolicy."""


def failed_with(message: str) -> int | None:
    """The exit code that failed a Job, out of its condition's message; None when something else did."""
    found = _FAILED.search(message)
    return int(found.group(1)) if found else None


def explained(message: str) -> str:
    """The message of a Job's condition Failed, with what its exit code means."""
    code = failed_with(message)
    return message if code is None else f"{of(code).reads}. Kubernetes: {message}"


def markdown() -> str:
    """The table for people."""
    lines = [
        "| code | what happened | the Job's pod failure policy | so | what is read without words of the pod's own |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in TABLE:
        code = "any other" if row.code is None else str(row.code)
        lines.append(f"| {code} | {row.happened} | {row.action} | {row.then} | {row.reads or '-'} |")
    return "\n".join(lines)
