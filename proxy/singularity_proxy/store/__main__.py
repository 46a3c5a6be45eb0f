"""`python -m singularity_proxy.store URL ls|show|gc ...`: ask a store from another program, for example in a pod.

Prints one JSON object on the last line of standard output. Exit codes: 0 with `{"result": ...}`, 1 with `{"error":
"sentence"}`. The arguments are those of `admin.answer`. Lines before it may have the form `{"progress": [bytes done,
bytes in all]}`. For people: `singularityctl checkpoints`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

from .admin import answer

PROGRESS_EVERY_S: Final = 1.0


def main(argv: list[str]) -> int:
    """Answer, and the exit code."""
    usage = {"error": "no store URL; " + (__doc__ or "").splitlines()[0]}
    said = answer(argv[0], argv[1:], _Teller().tell) if argv and "://" in argv[0] else usage
    print(json.dumps(said, separators=(",", ":")), flush=True)
    return 1 if "error" in said else 0


class _Teller:
    """`{"progress": [bytes done, bytes in all]}` on a line of its own, now and then."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._at >= PROGRESS_EVERY_S:
            self._at = now
            print(json.dumps({"progress": [done, total]}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
