"""Counters and gauges in Prometheus' text format. Small on purpose: the controller has a handful of numbers."""

from __future__ import annotations

import threading

_HELP = {
    "singularity_fence_answers_total": "Attempts that the fence let start.",
    "singularity_checkpoints_requested_total": "Evictions for which a checkpoint was asked for.",
    "singularity_checkpoints_committed_total": "Checkpoints committed.",
    "singularity_checkpoint_failures_total": "Checkpoints that a job said it could not take.",
    "singularity_holds_released_total": "Holds that ended without a checkpoint, by cause.",
    "singularity_readmissions_total": "Evictions that the controller asked for, by cause.",
    "singularity_conflicts_total": "Writes refused because the object had changed.",
    "singularity_errors_total": "Rounds of the worker that ended in an error.",
    "singularity_leader": "1 while this replica acts.",
    "singularity_queue_depth": "Keys that wait for the worker.",
}


class Metrics:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}

    def add(self, name: str, cause: str = "", amount: float = 1.0) -> None:
        """Count. `name` is one of the metrics above."""
        with self._lock:
            key = (name, cause)
            self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, name: str, value: float) -> None:
        with self._lock:
            self._values[name, ""] = value

    def value(self, name: str, cause: str = "") -> float:
        with self._lock:
            return self._values.get((name, cause), 0.0)

    def text(self) -> str:
        """The exposition format, version 0.0.4."""
        with self._lock:
            values = sorted(self._values.items())
        lines: list[str] = []
        for name, help_text in _HELP.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            found = [(cause, v) for (n, cause), v in values if n == name] or [("", 0.0)]
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [f'{name}{{cause="{cause}"}} {v:g}' if cause else f"{name} {v:g}" for cause, v in found]
        return "\n".join(lines) + "\n"
