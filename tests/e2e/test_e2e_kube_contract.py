"""What the unit tests' in-memory Kubernetes promises, asked of the real API server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from localcluster.demo.stage import CHECKOUT, Stage

CASES = "tests/unit/kueue/test_kube_contract.py"


@pytest.mark.cluster
@pytest.mark.timeout(2400)  # run alone, it starts the cluster
def test_the_real_api_server_passes_the_contract(stage: Stage) -> None:
    # A process of its own: the file's cases are parametrised over both, and belong to the unit tests.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "cluster", CASES],
        cwd=CHECKOUT,
        env={**os.environ, "SINGULARITY_TEST_KUBECONFIG": str(stage.cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout, done.stdout[-2000:]
