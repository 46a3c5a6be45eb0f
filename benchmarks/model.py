"""What a figure is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """:param quick: a tenth of the size, for trying things out
    :param workloads: size of the admission figures; None: what `quick` gives
    :param evictions: likewise of the eviction figures
    :param nodes: fake nodes of both; None: what `quick` gives
    :param size_gb: tensors of the rank of `large_state_gb_s`; None: what `quick` gives
    :param limit_s: longest time of each side of the admission figures, and of each wait of the eviction figures
    """

    quick: bool = False
    workloads: int | None = None
    evictions: int | None = None
    limit_s: float | None = None
    nodes: int | None = None
    size_gb: float | None = None


@dataclass(frozen=True)
class Spec:
    """A figure that can be measured.

    :param aim: `<= 1`, `>= 3`, or empty where only a report is wanted
    :param what: one line: what is compared with what
    """

    key: str
    unit: str
    aim: str
    what: str


@dataclass(frozen=True)
class Measured:
    """:param runs: the raw values, for ratios as pairs [ours, theirs]
    :param baseline: what it is compared with, in words and numbers
    """

    value: float
    runs: Sequence[Any]
    baseline: str = ""


@dataclass(frozen=True)
class Figure:
    """One line of build/bench/figures.json."""

    key: str
    value: float
    unit: str
    aim: str
    baseline: str
    command: str
    runs: Sequence[Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Measure = Callable[[Options, Say], Mapping[str, Measured]]


@dataclass(frozen=True)
class Group:
    """Figures that one run measures together.

    :param measure: returns a `Measured` for each of `specs`, and may return more keys' worth than were asked for
    :param needs: what it needs, in words, for `--list`
    """

    name: str
    needs: str
    specs: Sequence[Spec]
    measure: Measure


def reaches(value: float, aim: str) -> bool | None:
    """Whether `value` reaches `aim`; None where there is no aim.

    :raises ValueError: an aim that is not `<= number` or `>= number`
    """
    if not aim:
        return None
    sign, _, number = aim.partition(" ")
    compare = {"<=": operator.le, ">=": operator.ge}.get(sign)
    if compare is None:
        raise ValueError(f"aim = {aim!r}: write `<= number` or `>= number`")
    return bool(compare(value, float(number)))


def figure(spec: Spec, measured: Measured) -> Figure:
    command = f"make bench ONLY={spec.key}"
    value = float(f"{measured.value:.4g}")
    return Figure(spec.key, value, spec.unit, spec.aim, measured.baseline, command, list(measured.runs))
