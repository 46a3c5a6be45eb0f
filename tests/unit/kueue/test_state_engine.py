"""Jobs of the state engine: pods that Pod Security `restricted` admits, worlds that follow the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import controller_scene as scene
import pytest
from controller_scene import T0
from kueue_samples import PLATFORM, cluster, spec

from kueue_integration.contract import job_names
from kueue_integration.contract.record_types import JobRequest
from kueue_integration.controller.actions import AnswerReady
from kueue_integration.controller.sidecar_api import reports
from kueue_integration.controller.sidecar_api.reports import RefusedError
from kueue_integration.errors import RequestRefusedError, SpecError
from kueue_integration.jobs import lifecycle
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.resources import JOB
from kueue_integration.manifests.job_manifests import render
from kueue_integration.manifests.pod import NOBODY
from kueue_integration.requests import verbs
from kueue_integration.spec import engine
from kueue_integration.spec.validate import validate
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CommitRequest, from_json

ELASTIC = {job_names.ANN_ENGINE: "state", job_names.ANN_RANKS_PER_WORKER: "2", job_names.ANN_WORLD_SIZE: "8"}


def template(**changes: Any) -> Any:
    *_, job = render(spec(engine="state", world_size=8, **changes), PLATFORM)
    return job["spec"]["template"]


def containers_of(pod: Any) -> list[Any]:
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


def env(container: Any) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container.get("env", ())}


def test_every_container_keeps_what_restricted_asks_for() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    pod = template()
    for container in containers_of(pod):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["runAsNonRoot"] is True
        assert context["capabilities"] == {"drop": ["ALL"]} and context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"runAsUser", "privileged", "procMount", "appArmorProfile"} & set(context)
    whole = pod["spec"]["securityContext"]
    assert (whole["runAsUser"], whole["fsGroup"], whole["runAsNonRoot"]) == (NOBODY, NOBODY, True)
    ours = [volume for volume in pod["spec"]["volumes"] if volume["name"].startswith("singularity-")]
    assert {kind for volume in ours for kind in volume} == {"name", "emptyDir", "projected", "configMap"}


def test_all_parts_of_the_pod_know_the_engine_and_the_ranks_of_a_worker() -> None:
    pod = template()
    assert [env(container).get(names.ENV_ENGINE) for container in containers_of(pod)] == ["state"] * 3
    assert [env(container).get(names.ENV_RANKS_PER_WORKER) for container in containers_of(pod)] == [None, "2", "2"]
    *_, job = render(spec(engine="state", world_size=8), PLATFORM)
    assert {key: job["metadata"]["annotations"][key] for key in ELASTIC} == ELASTIC
    *_, other = render(spec(), PLATFORM)
    assert not {job_names.ANN_ENGINE, job_names.ANN_RANKS_PER_WORKER} & set(other["metadata"]["annotations"])
    assert names.ENV_ENGINE not in str(other) and "securityContext" not in other["spec"]["template"]["spec"]


def test_pods_of_engine_both_are_those_of_the_process_engine_and_know_it() -> None:
    *_, job = render(spec(engine="both"), PLATFORM)
    *_, plain = render(spec(engine="process"), PLATFORM)
    containers = containers_of(job["spec"]["template"])
    assert [env(container).get(names.ENV_ENGINE) for container in containers] == [None, "both", "both"]
    assert job["metadata"]["annotations"][job_names.ANN_ENGINE] == "both"
    assert job_names.ANN_RANKS_PER_WORKER not in job["metadata"]["annotations"], "the number of ranks stays"
    contexts = [container["securityContext"] for container in containers]
    assert contexts == [container["securityContext"] for container in containers_of(plain["spec"]["template"])]


def test_the_user_of_the_job_is_that_of_the_whole_pod() -> None:
    own = {"spec": {
        "securityContext": {"runAsUser": 1000, "fsGroup": 2000},
        "containers": [{"name": "train", "securityContext": {"runAsGroup": 3000}}],
    }}  # fmt: skip
    pod = template(pod_override=own)
    found = pod["spec"]["securityContext"]
    assert (found["runAsUser"], found["runAsGroup"], found["fsGroup"]) == (1000, 3000, 2000)
    assert found["seccompProfile"] == {"type": "RuntimeDefault"} and found["runAsNonRoot"] is True
    assert names.ENV_RUN_AS not in env(containers_of(pod)[-1]), "nobody in the pod may become another user"


@pytest.mark.parametrize("where", ["pod", "container"])
@pytest.mark.parametrize(("field", "value"), [("runAsUser", 0), ("runAsNonRoot", False)])
def test_root_is_refused(where: str, field: str, value: object) -> None:
    context = {"securityContext": {field: value}}
    body = context if where == "pod" else {"containers": [{"name": "train", **context}]}
    with pytest.raises(SpecError, match=rf"\.{field} = {value}: pods of engine 'state' run without root"):
        validate(spec(engine="state", pod_override={"spec": body}), PLATFORM)


@pytest.mark.parametrize(
    ("asked", "text", "choice"),
    [
        ("auto", "import torch\nimport singularity_train as st\n", ("state", "train.py imports singularity_train")),
        ("auto", "def f():\n    from singularity_train import attach\n", ("state", "train.py imports")),
        ("auto", "# import singularity_train\nx = 'singularity_train'\n", ("process", "no shipped file imports")),
        ("auto", "import singularity_trainer\n", ("process", "no shipped file imports singularity_train")),
        ("process", "import singularity_train\n", ("process", "the job asks for it")),
        ("state", "print()\n", ("state", "the job asks for it")),
        ("both", "import singularity_train\n", ("both", "the job asks for it")),
    ],
)
def test_the_engine_of_a_job_and_why(asked: str, text: str, choice: tuple[str, str]) -> None:
    made = spec(engine=asked, files={"train.py": text, "other.py": ""})
    found = engine.chosen(made)
    assert found.name == choice[0] and found.why.startswith(choice[1])
    assert made.elastic == (found.name == "state")


USES = "import singularity_train\n"
FOLDER = {
    "plain.py": "from lib import (\n    data,\n)\nimport torch\n",
    "state.py": USES,
    "other.py": "import wrapped\n",
    "broken.py": "import (\n",
    "wrapped.py": "from pkg.deep import attach\n",
    "pkg/__init__.py": "",
    "pkg/deep.py": USES,
    "lib/__init__.py": "",
    "lib/data.py": "",
    "run.sh": "exec torchrun --nproc-per-node 2 ./state.py\n",
}


@pytest.mark.parametrize(
    ("command", "name", "why"),
    [
        (
            "python3 plain.py --steps 9",
            "process",
            "pkg/deep.py imports singularity_train, but the command does not run it",
        ),
        ("python3 broken.py", "process", "pkg/deep.py imports singularity_train, but the command does not run it"),
        ("python3 state.py", "state", "state.py imports singularity_train"),
        ("torchrun ./state.py", "state", "state.py imports singularity_train"),
        ("python3 other.py", "state", "pkg/deep.py imports singularity_train"),
        ("python3 -m pkg.deep", "state", "pkg/deep.py imports singularity_train"),
        ("bash run.sh", "state", "state.py imports singularity_train"),
        ("python3 restate.py", "state", "pkg/deep.py imports singularity_train"),
    ],
)
def test_a_script_that_is_shipped_but_not_run_decides_nothing(command: str, name: str, why: str) -> None:
    """`--workdir` ships a folder: a plain script got the state engine for its neighbour's import, and saved nothing."""
    found = engine.chosen(spec(engine="auto", files=FOLDER, command=command.split()))
    assert (found.name, found.why) == (name, why)


def test_an_attempt_has_as_many_ranks_as_its_workers_have() -> None:
    job = scene.job(annotations={job_names.ANN_HOLD: "armed", **ELASTIC})
    action = scene.decide(job, scene.workload(count=3, wanted=4), [], T0 + 12).action
    assert isinstance(action, AnswerReady)
    (record,) = scene.stored(action.job_annotations)
    assert (record.pods, record.ranks) == (3, 6)


def test_status_shows_the_ranks_that_run() -> None:
    whole = {**ELASTIC, job_names.ANN_WORKERS: "4", job_names.ANN_ATTEMPT: "1"}
    assert summarise(scene.job(annotations=whole), None, ()).world_size == 8
    history = scene.history(scene.record(1, pods=3, ranks=6, first_step=0))
    assert summarise(scene.job(annotations={**whole, **history}, suspend=False), None, ()).world_size == 6


def test_a_checkpoint_has_the_ranks_of_its_attempt() -> None:
    history = scene.history(scene.record(1, pods=3, ranks=6, first_step=0))
    job = scene.job(annotations={**ELASTIC, **history, job_names.ANN_ATTEMPT: "1"}, suspend=False)

    def commit(ranks: int) -> Any:
        ref = replace(scene.checkpoint(), world_size=ranks, engine="state")
        return reports.commit(job, CommitRequest(scene.NS, "train", 1, ref, 0.0, ref.step - 1), T0 + 50)

    assert names.ANN_CHECKPOINT in commit(6)
    with pytest.raises(RefusedError, match="world_size: 8, the Job's is 6"):
        commit(8)


def test_it_is_resized_to_any_number_of_workers() -> None:
    kube = cluster()
    lifecycle.submit(kube, spec(engine="state", world_size=8), PLATFORM)
    verbs.resize(kube, "default", "digits", 3)
    asked = kube.get(JOB, "default", "digits")["metadata"]["annotations"][job_names.ANN_REQUEST]
    assert from_json(JobRequest, asked).workers == 3, "8 ranks cannot be divided among 3"
    with pytest.raises(RequestRefusedError, match="workers = 512: is more than 511, which is not supported"):
        verbs.resize(kube, "default", "digits", 512)
