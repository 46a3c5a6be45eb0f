"""What must be the same in all attempts of a job for its losses to have the same bits, and what tells if they are not.

The words of the job decide which numbers are added: another value is an error. The machine decides how a kernel adds.
Another one lets the training go on, where it was. But the verdict is `reordered` from then on, with the reason.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch

from .errors import ContractError

ISA_VARIABLES = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
"""Each changes the bits of common models on the same processor."""


class Verdict(str, Enum):
    """How the losses of a job are related to those of a run that was never stopped, moved or resized."""

    EXACT = "exact"
    """The same bits, and something has proved it: `prove` does, for the steps that it has run. A job never says so."""
    UNCHECKED = "unchecked"
    """Nothing is known that would change a bit. State that the library does not see may be lost all the same."""
    REORDERED = "reordered"
    """The same sums, added in another order or by other kernels: they differ in their last bits."""
    DIFFERENT = "different"
    """Other sums."""


SEVERITY = tuple(Verdict)


class Reason(NamedTuple):
    """Why a verdict is what it is."""

    verdict: Verdict
    text: str


def verdict(reasons: Sequence[Reason]) -> Verdict:
    """The gravest of `reasons`."""
    return max((each.verdict for each in reasons), key=SEVERITY.index, default=Verdict.UNCHECKED)


def stored(reasons: Sequence[Reason]) -> dict[str, Any]:
    """As `meta` of a checkpoint has them: the sentences, and the verdict of each."""
    return {"inexact": [each.text for each in reasons], "verdicts": [each.verdict.value for each in reasons]}


def recalled(meta: Mapping[str, Any]) -> list[Reason]:
    """The reasons that `stored` has written, or a version that knew one verdict."""
    texts = list(meta.get("inexact", []))
    verdicts = [Verdict(each) for each in meta.get("verdicts", [Verdict.REORDERED] * len(texts))]
    return [Reason(*pair) for pair in zip(verdicts, texts, strict=True)]


def unique(reasons: Sequence[Reason]) -> list[Reason]:
    return list(dict.fromkeys(reasons))


@dataclass(frozen=True)
class Words:
    """What the script says.

    :param virtual_ranks: None: the framework's own all-reduce
    :param batch_size: samples of one micro-batch
    :param buffers: rule for buffers
    """

    virtual_ranks: int | None
    batch_size: int
    seed: int
    shuffle: bool
    buffers: str


@dataclass(frozen=True)
class Machine:
    """What a rank runs on.

    :param threads: of torch within one operation
    :param isa: processor architecture and the instructions that torch uses
    :param device: model of the GPU, or "cpu"
    """

    torch: str
    threads: int
    isa: str
    device: str


def machine(device: Any) -> Machine:
    """This rank's, with its present number of threads."""
    limits = [f"{name}={os.environ[name]}" for name in ISA_VARIABLES if name in os.environ]
    isa = " ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *limits])
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return Machine(str(torch.__version__), torch.get_num_threads(), isa, name)


def to_json(words: Words, mine: Machine) -> dict[str, Any]:
    return {"words": asdict(words), "machine": asdict(mine)}


def compare(saved: Mapping[str, Any], words: Words) -> None:
    """Compare with the words that a checkpoint was made under.

    The micro-batch and the seed decide with virtual ranks only; without them the framework may cut the data anew.

    :raises ContractError: names the first that differs, and what it was
    """
    strict = words.virtual_ranks is not None or saved["words"]["virtual_ranks"] is not None
    for name, value in asdict(words).items():
        before = saved["words"].get(name)
        if before != value and (strict or name in ("seed", "shuffle")):
            raise ContractError(
                f"{name} = {value!r}: the checkpoint was made with {before!r}, and another value changes what is "
                f"trained. Give {name}={before!r}, or another folder to begin anew."
            )


def differences(saved: Mapping[str, Any], mine: Machine, whose: str) -> list[Reason]:
    """In what this machine differs from `whose`."""
    return [
        Reason(Verdict.REORDERED, f"{name} is {value!r} here and {saved.get(name)!r} {whose}")
        for name, value in asdict(mine).items()
        if saved.get(name) != value
    ]


def known(words: Words, mine: Machine, others: Sequence[Machine]) -> list[Reason]:
    """Why bits differ in this attempt, apart from what came before."""
    if words.virtual_ranks is None:
        text = "virtual_ranks is None: the framework adds gradients in an order that depends on the workers"
        return [Reason(Verdict.REORDERED, text)]
    reasons = []
    if mine.device not in ("cpu",) and not torch.are_deterministic_algorithms_enabled():
        text = "kernels of the GPU may add in any order: call torch.use_deterministic_algorithms(True)"
        reasons.append(Reason(Verdict.REORDERED, text))
    for rank, other in enumerate(others):
        found = differences(asdict(other), mine, f"on rank {rank}")
        if found:
            return reasons + found
    return reasons


def resized(words: Words, workers: int, before: int | None) -> list[Reason]:
    """What another number of workers changes. `before`: of the checkpoint; None: it does not say."""
    if words.virtual_ranks is not None or before in (None, workers):
        return []
    text = f"workers are {workers} and were {before}: without virtual_ranks a step reads one batch of each worker"
    return [Reason(Verdict.DIFFERENT, text)]
