"""`fork` with a command of its own: the state engine starts the program anew, the others take none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from kueue_samples import spec
from test_cli_time_travel import NS, held, kube, made, refs, run, store, with_store

from airflow_provider import cluster
from airflow_provider.verbs import JobVerbs
from kueue_integration.contract import branches, job_names
from kueue_integration.errors import SpecError
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, JOB
from kueue_integration.spec import platform_config
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef, Origin, to_json
from singularity_proxy.store import Store

__all__ = ["kube", "made", "refs", "store"]
OTHER = ("python3", "train.py", "--learning-rate", "0.01", "--note", "$(HOME)")


@pytest.fixture
def elastic(kube: FakeKube, store: Store, refs: list[CheckpointRef]) -> FakeKube:
    """The same cluster, in which job digits has the state engine."""
    kube.delete(JOB, NS, "digits")
    lifecycle.submit(kube, spec(engine="state"), with_store(store))
    saved = [replace(ref, engine="state") for ref in refs]
    told = {job_names.ANN_CHECKPOINTS: to_json(saved), names.ANN_CHECKPOINT: to_json(saved[-1])}
    kube.patch(JOB, NS, "digits", {"metadata": {"annotations": told}})
    return kube


def pod_of(kube: FakeKube, name: str) -> dict[str, Any]:
    found: dict[str, Any] = kube.get_job(NS, name)["spec"]["template"]["spec"]
    return found


def command_of(kube: FakeKube, name: str) -> Any:
    (train,) = pod_of(kube, name)["containers"]
    (text,) = (entry["value"] for entry in train["env"] if entry["name"] == names.ENV_COMMAND)
    return json.loads(text)


def test_a_fork_of_the_state_engine_has_other_arguments_and_nothing_else(elastic: FakeKube, store: Store) -> None:
    before = elastic.get_job(NS, "digits")
    assert run("fork", "digits", "--name", "same").exit_code == 0
    done = run("fork", "digits", "--from", "digits-a1-g2", "--name", "twin", "--", *OTHER)
    assert done.exit_code == 0, done.output
    assert elastic.get_job(NS, "digits") == before
    assert command_of(elastic, "same") == command_of(elastic, "digits") == [*spec().command]
    assert command_of(elastic, "twin") == [*OTHER[:-1], "$$(HOME)"], "Kubernetes expands nothing of it"
    assert branches.start_from(elastic.get_job(NS, "twin")) == Origin("digits", "digits-a1-g2")
    assert held(store) == {"digits-a1-g2": ("twin",), "digits-a1-g3": ("same",)}
    # As `submit --start-from` with this command would have made it.
    lifecycle.submit(elastic, spec(name="new", engine="state", command=OTHER, identity=None), with_store(store))
    texts = [json.dumps(pod_of(elastic, name)).replace(f'"{name}', '"NAME') for name in ("twin", "new")]
    assert texts[0] == texts[1]


def test_nothing_is_forked_while_the_guard_of_pods_is_not_in_force(kube: FakeKube, store: Store) -> None:
    platform = replace(with_store(store), guard_problem="no ValidatingAdmissionPolicy singularity-guard-pods")
    told = {"data": {platform_config.CONFIG_KEY: platform_config.to_json(platform)}}
    kube.patch(CONFIG_MAP, job_names.SYSTEM_NAMESPACE, job_names.PLATFORM_CONFIGMAP, told)
    done = run("fork", "digits", "--name", "twin")
    assert done.exit_code != 0 and f"{platform.guard_problem})" in done.output and job_names.UPGRADE in done.output
    assert kube.find(JOB, NS, "twin") is None and held(store) == {}


@pytest.mark.parametrize("engine", [None, "both"])
def test_where_saved_processes_go_on_a_command_is_refused(kube: FakeKube, store: Store, engine: str | None) -> None:
    kube.patch(JOB, NS, "digits", {"metadata": {"annotations": {job_names.ANN_ENGINE: engine}}})
    done = run("fork", "digits", "--name", "twin", "--", *OTHER)
    said = " ".join(done.stderr.split())
    assert done.exit_code == 2 and f"command = {OTHER!r}: the job has engine {engine or 'process'!r}" in said
    assert "go on with the command that they were started with" in said and "with engine 'state'" in said
    assert kube.find(JOB, NS, "twin") is None and held(store) == {}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python3 train.py", "must be a list of words"),
        (["", "x"], "must be a list of texts that starts with a program"),
        (["mpirun", "-n", "2", "train.py"], "each start a world of their own"),
    ],
)
def test_from_python_the_command_is_looked_at_before_anything_is_created(
    elastic: FakeKube, store: Store, monkeypatch: pytest.MonkeyPatch, command: Any, words: str
) -> None:
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (elastic, NS))
    with pytest.raises(SpecError) as caught:
        JobVerbs("prod").fork("digits", new="twin", command=command)
    ((field, value, text),) = caught.value.problems
    assert field == "command" and list(value) == list(command) and words in text
    assert elastic.find(JOB, NS, "twin") is None and held(store) == {}


def test_from_python_a_fork_has_its_own_arguments(elastic: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "connect", lambda conn_id: (elastic, NS))
    made = JobVerbs("prod").fork("digits", new="twin", checkpoint="digits-a1-g1", command=["python3", "-m", "mine"])
    assert (made.name, made.checkpoint, made.step) == ("twin", "digits-a1-g1", 100)
    assert command_of(elastic, "twin") == ["python3", "-m", "mine"]
