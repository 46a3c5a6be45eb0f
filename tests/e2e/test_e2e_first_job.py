"""The way of the pages from an installed chart to weights that the next job reads: each shell block as it stands.

Images, `helm install` and the probe are left out: the local cluster has the chart, installed from the same checkout.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shell import Shell
from volumes import claimed

from kueue_integration.jobs.status import describe
from kueue_integration.kube.resources import JOB
from localcluster.demo.stage import CHECKOUT, NAMESPACE, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800), pytest.mark.full]
PAGES = CHECKOUT / "docs/administration"


def blocks(page: str, language: str = "sh") -> dict[str, str]:
    """Heading of the page -> its blocks in a language, as one script each."""
    found: dict[str, str] = {}
    for part in (PAGES / page).read_text().split("\n## ")[1:]:
        scripts = re.findall(rf"^```{language}\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
        found[part.splitlines()[0]] = "\n".join(scripts)
    return {heading: script for heading, script in found.items() if script}


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
