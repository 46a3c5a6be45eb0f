"""Rows of the state engine: a namespace that enforces Pod Security `restricted`, and jobs in it without a privilege.

rows = restricted(stage, "frameworks", say, {"ondemand": "100m", "spot": "50m"})
job = train(rows, monkeypatch, "name", SCRIPT, workers=2, min_workers=1, pace=0.5)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rows import Rows, Training

from localcluster.addons import restricted as namespaces
from localcluster.demo.stage import Stage


def restricted(stage: Stage, namespace: str, say: Callable[[str], None], quota: Mapping[str, str]) -> Rows:
    """A namespace with the queue `q`."""
    made = Rows(stage, namespace, say)
    namespaces.make(stage.kubectl, namespace, stage.platform.volumes)
    made.queue("q", quota)
    return made


def train(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, name: str, script: Path, args: Sequence[str] = (), **spec: Any
) -> Training:
    """A job with `engine="state"`; `spec` as of `Rows.train`."""
    volumes = namespaces.claimed(rows.namespace, rows.stage.platform.volumes)
    with monkeypatch.context() as patch:
        patch.setattr(rows.stage, "_platform", replace(rows.stage.platform, volumes=volumes))
        files = {script.name: script.read_text()}
        return rows.train(name, "q", script=script.name, files=files, args=args, engine="state", **spec)
