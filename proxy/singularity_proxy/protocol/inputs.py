"""What a job reads: folders at URLs of its owner, in each pod below `$INPUTS` before the ranks start."""

from __future__ import annotations

import re
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9][-_A-Za-z0-9]{0,62}")
"""Of an input, and of its folder below `$INPUTS`."""
MOST: Final = 20
"""Inputs of a job."""
