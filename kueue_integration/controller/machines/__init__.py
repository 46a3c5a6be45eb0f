"""What is known of the machines of a ResourceFlavor, and what reads it (`nodes`). Only a restore asks for it.

Nothing here decides whether a machine will do: `checkpoint_fit` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Labels = Mapping[str, str]


@dataclass(frozen=True)
class FlavorMachines:
    """A ResourceFlavor's nodeLabels, and the labels of the nodes that have them."""

    labels: Labels
    nodes: Mapping[str, Labels]
    """Node name -> labels."""


MachinesOf = Callable[[str], "FlavorMachines | None"]
"""By flavor; None: not known."""


def unknown(flavor: str) -> FlavorMachines | None:
    return None
