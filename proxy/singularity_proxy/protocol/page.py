"""Layout of the barrier page: one file of `PAGE_SIZE` bytes in `RUN_DIR`, mapped by the sidecar and by every rank.

All words are native-endian signed 64-bit. Word index = byte offset / 8.

    header   0 MAGIC   1 VERSION   2 WORLD   3 REQUEST   4 STOP_AT   5 ACQUIRED   6 BACKGROUND   7 reserved
    rank r   8 + 8*r:  +0 COUNT   +1 BLOCKED   +2 STATE   +3 PID   +4 REFUSED   +5 APART   +6..7 reserved

Writers: the sidecar owns the header. Rank r owns its eight words (one cache line: no false sharing), except that the
sidecar clears them when it creates the page, and that others write STATE_ENDED: the launcher once the rank's processes
are gone, the sidecar for ranks of other pods. Every rank of the *world* has a slot in every pod's page.

REQUEST   generation of the stop that is asked for, 0 when none. Generations only grow over the whole life of a job
          (attempt * GENERATIONS_PER_ATTEMPT + sequence), so that a restored rank knows an old one from a new one.
STOP_AT   a rank blocks at a boundary while COUNT >= STOP_AT and ACQUIRED < REQUEST
ACQUIRED  generation whose barrier every rank has reached; ranks blocked for it freeze
BACKGROUND  the newest generation whose ranks go on as soon as their state is copied; written before ACQUIRED. Ranks of
          the state engine read it
COUNT     step boundaries passed since the start of the *job* (kept over restores)
BLOCKED   generation for which the rank waits at a boundary, 0 while it runs
STATE     one of the STATE_ values
PID       pid of the rank as it sees itself
REFUSED   newest generation that the rank cannot be saved for, because the agent in it has failed; `names.REFUSED_FILE`
          says why. ALWAYS: none from now on
APART     not 0: its agent can go on without ranks that have ended (those of earlier versions, in old checkpoints, wait)

The ratchet that uses these words is in `protocol.ratchet`; it is the one proven in the project's prototypes.
"""

from __future__ import annotations

from typing import Final

PAGE_SIZE: Final = 65536
MAGIC: Final = 0x53474C5250414745
VERSION: Final = 2
HEADER_WORDS: Final = 8
RANK_WORDS: Final = 8
MAX_WORLD: Final = PAGE_SIZE // 8 // RANK_WORDS - 1
GENERATIONS_PER_ATTEMPT: Final = 1_000_000

W_MAGIC, W_VERSION, W_WORLD, W_REQUEST, W_STOP_AT, W_ACQUIRED, W_BACKGROUND = range(7)
R_COUNT, R_BLOCKED, R_STATE, R_PID, R_REFUSED, R_APART = range(6)
ALWAYS: Final = 1 << 62

STATE_ABSENT: Final = 0
STATE_RUNNING: Final = 1
STATE_FROZEN: Final = 2
STATE_FINISHED: Final = 3
"""The script's interpreter is shutting down, or the rank has failed: it stops at no boundary any more."""
STATE_ALONE: Final = 4
"""Counts its steps, but has no other rank to talk to: may be stopped anywhere."""
STATE_ENDED: Final = 5
"""Its processes have ended, with 0: it is saved as ended, and nobody waits for it."""
OVER: Final = (STATE_FINISHED, STATE_ENDED)
FREE: Final = (STATE_ABSENT, STATE_ALONE)
"""States of a rank that nobody waits for. Absent is one that has no agent, or has not met the others yet."""


def rank_word(rank: int, word: int) -> int:
    """Index of word `word` (R_COUNT, ...) of rank `rank`."""
    return HEADER_WORDS + RANK_WORDS * rank + word


def generation(attempt: int, sequence: int) -> int:
    """Generation of the `sequence`-th stop (1, 2, ...) of `attempt` (1, 2, ...)."""
    return attempt * GENERATIONS_PER_ATTEMPT + sequence
