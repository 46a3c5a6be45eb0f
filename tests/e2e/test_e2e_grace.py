"""The same story with the hold off: plain Kueue suspends at once, the checkpoint is taken in the pods' grace period."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import JOB, annotation
from localcluster.demo import quickstart, report, story
from localcluster.demo.follow import Follower
from localcluster.demo.model import Outcome
from localcluster.demo.stage import DAGS, NAMESPACE, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400), pytest.mark.full]
STEPS = 300


def test_checkpoint_within_the_grace_period(stage: Stage, digits: str, say: Callable[[str], None]) -> None:
    ctl = Path(sys.executable).with_name("singularityctl")
    command = [
        *(str(ctl), "submit", "--name", "grace", "--queue", "training", "--workers", "4", "--min-workers", "2"),
        *("--world-size", "4", "--cpu", "250m", "--priority-class", "low", "--no-hold", "--grace", "60"),
        *("--workdir", str(DAGS / "scripts"), "--", "python3", "train_digits.py"),
        *("--data", digits, "--output", "/shared/e2e/grace", "--steps", str(STEPS), "--pause", str(quickstart.PAUSE_S)),
    ]
    env = {**os.environ, "KUBECONFIG": str(stage.cluster.kubeconfig)}
    started_at = time.time()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    expect = replace(quickstart.expectation(STEPS), intruder="urgent-grace")
    follower = Follower(stage.kube, NAMESPACE, "grace", say)
    last = story.drive(stage.kube, NAMESPACE, follower, expect, stage.platform.train_image, say)
    record = story.record(follower, started_at, last)
    comparison = quickstart.compare_with_reference(stage, "grace", expect.ranks)
    checks = report.job_checks(expect, Outcome(record, comparison))
    assert [c for c in checks if not c.ok] == []
    assert annotation(stage.kube.get(JOB, NAMESPACE, "grace"), job_names.ANN_HOLD) is None
    for evicted in record.attempts[:-1]:
        assert evicted.checkpoint is not None
        assert evicted.committed_at is not None and evicted.evicted_at is not None
        assert evicted.committed_at - evicted.evicted_at < 60
