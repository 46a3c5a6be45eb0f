"""What the text of /proc/cpuinfo says of a processor, in the words of node feature discovery. Pure."""

from __future__ import annotations

import hashlib

_EXTENSIONS = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA3",
    "avx_vnni": "AVXVNNI",
    "avx512f": "AVX512F",
    "avx512bw": "AVX512BW",
    "avx512cd": "AVX512CD",
    "avx512dq": "AVX512DQ",
    "avx512vl": "AVX512VL",
    "avx512_vnni": "AVX512VNNI",
    "avx512_bf16": "AVX512BF16",
    "avx512_fp16": "AVX512FP16",
    "amx_tile": "AMXTILE",
    "amx_int8": "AMXINT8",
    "amx_bf16": "AMXBF16",
}
"""Flag of /proc/cpuinfo -> name by node feature discovery. Libraries choose other code for these flags at their start,
and node feature discovery labels them by default."""
FLAGS = ("flags", "Features")
"""The key of the line with the flags: x86, ARM."""


def flags(cpuinfo: str) -> set[str]:
    """Feature flags of the first processor; none if the text names none."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in FLAGS:
            return set(value.split())
    return set()


def flags_digest(cpuinfo: str) -> str:
    """sha256 of the sorted feature flags of the first processor; "" if the text names none."""
    found = flags(cpuinfo)
    return hashlib.sha256(" ".join(sorted(found)).encode()).hexdigest() if found else ""


def extensions(cpuinfo: str) -> list[str]:
    """The extensions of the first processor that libraries look for, as node feature discovery names them, sorted."""
    found = flags(cpuinfo)
    return sorted(name for flag, name in _EXTENSIONS.items() if flag in found)


def extension(flag: str) -> str:
    """The name that node feature discovery has for a flag of /proc/cpuinfo; "" if libraries do not look for it."""
    return _EXTENSIONS.get(flag, "")
