"""Kubernetes resource quantities ("250m", "2Gi", "1e3") as exact numbers."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE])?")
LONGEST = 64
MAX_EXPONENT = 30
"""The API server keeps no number beyond 2**63; a thousand million digits take all memory."""
BYTES = ("memory", "ephemeral-storage", "storage")
"""Resources that are counted in bytes."""
_SUFFIX = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip


def parse(text: object) -> Fraction:
    """The number that a quantity stands for. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text)) if len(str(text)) <= LONGEST else None
    if found is None:
        raise ValueError(f"{str(text)[:LONGEST]!r} is not a Kubernetes quantity")
    number, suffix = Fraction(found.group(1)), found.group(2) or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        exponent = int(suffix[1:])
        if abs(exponent) > MAX_EXPONENT:
            raise ValueError(f"{text!r}: its exponent is beyond {MAX_EXPONENT}")
        return number * Fraction(10) ** exponent
    return number * _SUFFIX.get(suffix, Fraction(1))


def text(amount: Fraction) -> str:
    """The quantity that stands for `amount`, rounded up to the next nano: `4`, `250m`, `17179869184`."""
    for suffix in ("", "m", "u"):
        count = amount / _SUFFIX.get(suffix, Fraction(1))
        if count.denominator == 1:
            return f"{count}{suffix}"
    return f"{math.ceil(amount / _SUFFIX['n'])}n"


def rounded(amount: Fraction, resource: str) -> str:
    """For people: bytes with a binary suffix and one digit after the point, and everything else as in `text`."""
    if resource in BYTES or resource.startswith("hugepages-"):
        for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
            if abs(amount) >= _SUFFIX[suffix]:
                return f"{float(amount / _SUFFIX[suffix]):.1f}".removesuffix(".0") + suffix
    return text(amount)
