"""The way of the pages from an installed chart to weights that the next job reads: each shell block as it stands.

The probe is left out. `test_typed_pages` has what Helm and the API server alone can show.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shell import Shell
from shell_blocks import scripts
from volumes import claimed

from kueue_integration.jobs.status import describe
from kueue_integration.kube.resources import JOB
from localcluster.demo.stage import CHECKOUT, NAMESPACE, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800), pytest.mark.full]
PAGES = CHECKOUT / "docs/administration"


def blocks(page: str, language: str = "sh") -> dict[str, str]:
    return scripts((PAGES / page).read_text(), language)


@pytest.fixture
def shell(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """In the checkout, with a volume for the claim of the page. Nothing is left behind."""
    monkeypatch.chdir(CHECKOUT)
    with claimed(stage) as shell:
        yield shell
        shell.type("kubectl delete job digits read --ignore-not-found")
    shutil.rmtree(CHECKOUT / "build/first", ignore_errors=True)


def test_from_the_install_to_weights_that_the_next_job_reads(
    stage: Stage, shell: Shell, say: Callable[[str], None]
) -> None:
    install, queues = blocks("install.md"), blocks("queues.md", "yaml")
    (objects,) = (text for text in queues.values() if "WorkloadPriorityClass" in text)
    shell.type(f"kubectl apply --dry-run=server -f - <<'EOF'\n{objects}EOF")
    for line in install["Fence the queues"].splitlines():
        assert "training" in shell.type(line.replace("QUEUE", "training"))
    for line in install["Prepare a namespace"].splitlines():
        if "--probe" not in line:
            shell.type(line.replace("NAMESPACE", NAMESPACE), codes=(0, 3) if "doctor" in line else (0,))

    said = {}
    for heading, script in blocks("first-job.md").items():
        said[heading] = shell.type(script)
        say(f"{heading}: {said[heading].strip().splitlines()[-1]}")
        if heading == "Train":
            status = describe(stage.kube, NAMESPACE, "digits")
            assert (status.phase, status.step, status.steps_lost) == ("Succeeded", 200, 0)
    page = (PAGES / "first-job.md").read_text().replace("\n", " ")
    for heading, shown in (("Train", "done after 200 steps"), ("Read the weights in the next job", "read 8 arrays")):
        (promised,) = re.findall(rf"`({shown}[^`]*)`", page)
        assert promised in said[heading]
    assert stage.kube.find(JOB, NAMESPACE, "digits") is None and not Path("build/first").exists()
