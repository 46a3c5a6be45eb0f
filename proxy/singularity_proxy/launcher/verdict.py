"""When the launcher ends, and with which exit code: pure functions over the ranks' exit codes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..protocol import exit_codes

FAIL_GRACE_S = 5.0
"""Seconds from the first failure of a rank to SIGTERM for the others, and from there to SIGKILL."""
TERM_MARGIN_S = 2.0
"""The launcher ends this long before the kubelet would kill it."""


def exit_code(
    codes: Mapping[int, int], ranks: int, lost: Collection[int] = (), stopped: Collection[int] = ()
) -> int | None:
    """None while a rank lives; else the first failure's code, in the order of `codes`, or 0.

    :param lost: ranks that failed because a rank of another pod was gone. If nothing worse happened here, the pod ends
        as if on request: the result of the lost pod decides about the Job.
    :param stopped: ranks that were stopped here after the first failure
    """
    if len(codes) < ranks:
        return None
    own = next((c for rank, c in codes.items() if c and rank not in lost and rank not in stopped), None)
    if own is not None:
        return exit_codes.of_program(own)
    return exit_codes.STOPPED if any(codes.values()) else 0


def stop_signal(failed_for_s: float | None, sent_term: bool) -> str | None:
    """`TERM`, `KILL` or nothing for the ranks left, `failed_for_s` after the first failure (None: none failed)."""
    if failed_for_s is None:
        return None
    if failed_for_s >= 2 * FAIL_GRACE_S:
        return "KILL"
    if failed_for_s >= FAIL_GRACE_S and not sent_term:
        return "TERM"
    return None
