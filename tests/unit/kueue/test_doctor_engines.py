"""`doctor` names the engine of each job and why, and what `auto` gives in the namespace."""

from __future__ import annotations

from typing import Any

import pytest
from kueue_samples import PLATFORM, cluster, spec

from kueue_integration import doctor
from kueue_integration.contract import job_names
from kueue_integration.doctor import engines, security
from kueue_integration.doctor.jobs import running
from kueue_integration.errors import Forbidden
from kueue_integration.jobs import lifecycle
from kueue_integration.jobs.preflight import POD_SECURITY
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, JOB, NAMESPACE, Kind

NS = "default"
LIBRARY = {"train.py": "import torch\nfrom lib import loop\n", "lib/loop.py": "from singularity_train import attach\n"}


def engine_lines(kube: FakeKube) -> dict[str, str]:
    found = [check for check in running(kube, NS, 0.0, PLATFORM) if check.name.startswith("engine of ")]
    assert all(check.status == doctor.OK for check in found)
    return {check.name: check.message for check in found}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"files": LIBRARY}, "'state': lib/loop.py imports singularity_train"),
        ({}, "'process': no shipped file imports singularity_train"),
        ({"files": {}}, "'process': no shipped file imports singularity_train"),
        ({"files": LIBRARY, "engine": "state"}, "'state': lib/loop.py imports singularity_train"),
        (
            {"files": LIBRARY, "engine": "process"},
            "'process': the job asks for it; 'auto' is 'state', as lib/loop.py imports singularity_train",
        ),
        (
            {"engine": "state"},
            "'state': the job asks for it; 'auto' is 'process', as no shipped file imports singularity_train",
        ),
        (
            {"files": LIBRARY, "engine": "both"},
            "'both': the job asks for it; 'auto' is 'state', as lib/loop.py imports singularity_train",
        ),
    ],
)
@pytest.mark.parametrize("runs", [True, False])
def test_each_job_has_its_engine_and_the_reason(options: dict[str, Any], said: str, runs: bool) -> None:
    kube = cluster()
    lifecycle.submit(kube, spec(**options), PLATFORM)
    kube.patch(JOB, NS, "digits", {"spec": {"suspend": not runs}})
    assert engine_lines(kube) == {"engine of digits": said}


def test_files_that_cannot_be_read_and_words_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = cluster()
    for name in ("one", "other"):
        lifecycle.submit(kube, spec(name=name, files=LIBRARY, identity=None), PLATFORM)
    kube.patch(JOB, NS, "one", {"metadata": {"annotations": {job_names.ANN_ENGINE: "what\n" * 50}}})
    kube.delete(CONFIG_MAP, NS, "other-files")
    find = kube.find

    def refused(kind: Kind, namespace: str | None, name: str) -> Any:
        if name == "one-files":
            raise Forbidden("configmaps are not yours", 403, "Forbidden")
        return find(kind, namespace, name)

    monkeypatch.setattr(kube, "find", refused)
    said = engine_lines(kube)
    assert said["engine of one"].startswith("'what\\nwhat") and len(said["engine of one"]) < 130
    assert said["engine of other"] == "'state': its files are not looked at"


def test_of_many_jobs_only_some_have_their_files_read(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = cluster()
    lifecycle.submit(kube, spec(files=LIBRARY), PLATFORM)
    monkeypatch.setattr(engines, "MOST_READ", 0)
    kube.requests.clear()
    assert engine_lines(kube) == {"engine of digits": "'state': its files are not looked at"}
    assert not [kind for _, kind, _ in kube.requests if kind == "ConfigMap"]


@pytest.mark.parametrize(
    ("level", "said"),
    [
        (None, "else 'process', which needs torch 2.6 or newer in the image, if any"),
        ("privileged", "else 'process', which needs torch 2.6 or newer in the image, if any"),
        ("baseline", "any other job would get 'process', and is refused here"),
        ("restricted", "any other job would get 'process', and is refused here"),
    ],
)
def test_what_auto_gives_in_the_namespace(level: str | None, said: str) -> None:
    kube = cluster()
    kube.patch(NAMESPACE, None, NS, {"metadata": {"labels": {POD_SECURITY: level}}})
    (found,) = [check for check in security.pod_security(kube, NS) if check.name == "engine auto"]
    start = "namespace default: 'state' where a shipped file imports singularity_train; "
    assert (found.status, found.message) == (doctor.OK, start + said)
