"""A script with persistent loader workers moves twice: the bits of a run that stays, and images of what is its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rows import TIMEOUT_S, Rows, Training
from shell import Shell

from kueue_integration.requests import verbs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400), pytest.mark.full]
SCRIPT = Path(__file__).parent / "scripts" / "train_loader.py"
NAMESPACE = "loaders"
PHASES = {"barrier", "freeze", "dump", "release", "pods", "fetch", "restore"}
"""The first step can be heard of before the ranks run, and takes no time then."""


def train(rows: Rows, name: str) -> Training:
    files = {SCRIPT.name: SCRIPT.read_text()}
    return rows.train(name, "q", workers=2, script=SCRIPT.name, files=files)


def test_loader_workers_move_bit_identically(rows: Rows) -> None:
    rows.queue("q", {"ondemand": "200m", "spot": "100m"})
    stays, moves = train(rows, "stays"), train(rows, "moves")
    for flavor in ("spot", "ondemand"):
        moves.until_steps(20)
        asked = verbs.migrate(rows.kube, NAMESPACE, "moves", flavor=flavor)
        assert verbs.wait(rows.kube, asked, TIMEOUT_S).state == "done"
    moves.until_steps(20)
    status = moves.finish()
    stays.until_steps(status.step + 2)
    stays.finish()
    assert [a.flavor for a in status.attempts] == ["ondemand", "spot", "ondemand"]
    assert status.steps_lost == 0
    for rank in (0, 1):
        there, here = moves.lines(rank), stays.lines(rank)
        assert [step for step, _ in there] == list(range(len(there))), "a step was lost, or made twice"
        assert there == here[: len(there)]
    shell = Shell(rows.stage.cluster)
    rows.say(shell.run("trace", "moves", "-n", NAMESPACE, "--all"))
    for move in json.loads(shell.run("trace", "moves", "-n", NAMESPACE, "--all", "-o", "json")):
        assert {span["phase"] for span in move["spans"]} >= PHASES, "each part of a move is measured where it happens"
