"""Exports for frameworks: the pod that makes them, what it answers, and what is refused before anything is created."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kueue_samples import PLATFORM, attempt, cluster, saved, spec

from airflow_provider import cluster as connections
from airflow_provider.verbs import JobVerbs
from kueue_integration import cli
from kueue_integration.cli import checkpoints
from kueue_integration.contract import job_names
from kueue_integration.errors import JobNotFoundError, PlatformError, SpecError, StoreSaidNo
from kueue_integration.jobs import export
from kueue_integration.jobs.export import Stored, Wanted
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import POD, Object
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec import platform_config
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import to_json

CHART = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "singularity-platform", "namespace": "singularity-system"},
    "data": {"platform.json": platform_config.to_json(PLATFORM)},
}
FETCH = {"id": "digits-a1-g1", "step": 61, "folder": export.FETCHED, "bytes": 9}
DONE = {"checkpoint": "00000000-step-61-ab", "step": 61, "tensors": 4, "left_out": ["extra.flag"]}
FILES = Wanted("safetensors", "/shared/out/model.safetensors", "models")


def training(**changes: Any) -> Object:
    """A job of the state engine with a committed checkpoint."""
    claims = tuple({"name": n, "persistentVolumeClaim": {"claimName": n}} for n in ("shared", "torch"))
    given = spec(engine="state", image="mine:2", env={"A": "1"}, **changes)
    made = render(given, replace(PLATFORM, volumes=claims))[-1]
    refs = [replace(saved(), sha256="5" * 64), replace(saved(2, 90), unusable="pack 00ff is missing")]
    made["metadata"]["annotations"] |= {
        job_names.ANN_CHECKPOINTS: to_json(refs), names.ANN_CHECKPOINT: to_json(refs[0]),
        job_names.ANN_HISTORY: to_json([attempt(checkpoint=refs[0].id)]),
    }  # fmt: skip
    return made


def kube_of(store: Any = None, done: Any = None) -> FakeKube:
    """Pods end at once: the containers have said that; None: one that has not started."""
    fake = cluster(CHART, training())
    create = fake.create

    def and_run(obj: Any, dry_run: bool = False) -> Any:
        made = create(obj, dry_run)
        name, failed = obj["metadata"]["name"], store is None or "error" in store or done is None or "error" in done
        for container, said in (("store", store), ("export", done)):
            if said is not None:
                fake.logs["default", name, container] = ["a warning of torch", json.dumps(said)]
        fake.set_status(POD, "default", name, {"phase": "Failed" if failed else "Succeeded"})
        return made

    fake.create = and_run  # type: ignore[method-assign]
    return fake


def test_the_pod_is_as_the_pods_of_the_job_are() -> None:
    job = training()
    found = Stored("default", "digits", "digits-a1-g1", "file:///shared/c", "5" * 64, job)
    made = export.pod(found, FILES, PLATFORM, 60)
    template, pod = job["spec"]["template"]["spec"], made["spec"]
    assert pod["securityContext"] == template["securityContext"] and not pod["automountServiceAccountToken"]
    install, fetch = pod["initContainers"]
    (made_by,) = pod["containers"]
    assert (install["image"], fetch["image"], made_by["image"]) == ("example/agent:1", "example/agent:1", "mine:2")
    question = ["fetch", "default", "digits", "digits-a1-g1", export.FETCHED, "5" * 64]
    assert fetch["command"][2:] == ["proxy.store", "file:///shared/c", *question]
    words = [export.FETCHED, "--format", "safetensors", "--output", FILES.output, "--json", "--only", "models"]
    assert made_by["command"] == ["python3", "-m", "singularity_train.export", *words]
    env = {each["name"]: each["value"] for each in made_by["env"]}
    assert env["PYTHONPATH"] == f"{names.AGENT_DIR}/lib:/opt/torch" and env["A"] == "1" and env["HOME"] == "/tmp"
    assert not [name for name in env if name.startswith("SINGULARITY_")], "it is no rank"
    for container in (install, fetch, made_by):
        context = container["securityContext"]
        assert context["runAsNonRoot"] and context["capabilities"] == {"drop": ["ALL"]}
    mounted = {m["name"] for c in (install, fetch, made_by) for m in c["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]} == {
        "shared", "torch", "singularity-agent", "singularity-images",
    }  # fmt: skip


def test_a_dag_gets_the_newest_checkpoint_that_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = kube_of({"result": FETCH}, {"result": DONE})
    monkeypatch.setattr(connections, "connect", lambda conn_id: (fake, "default"))
    done = JobVerbs().export("digits", FILES.output, "safetensors", only="models")
    assert done == export.Exported("digits-a1-g1", 61, "safetensors", FILES.output, 4, ("extra.flag",))
    assert fake.list(POD, "default") == []
    with pytest.raises(SpecError, match="cannot be restored: pack 00ff is missing"):
        JobVerbs().export("digits", FILES.output, "safetensors", "digits-a2-g1")
    with pytest.raises(JobNotFoundError):
        JobVerbs().export("nobody", FILES.output, "safetensors")


@pytest.mark.parametrize(
    ("store", "done", "error", "words"),
    [
        ({"error": "checkpoint digits-a1-g1 is one of engine 'process'"}, None, StoreSaidNo, "engine 'process'"),
        ({"result": FETCH}, {"error": "output = x: it is there already"}, StoreSaidNo, "it is there already"),
        (None, None, PlatformError, "container store of pod singularity-store-.* did not answer but said: nothing"),
        ({"result": FETCH}, None, PlatformError, "container export of pod .* did not answer"),
    ],
)  # fmt: skip
def test_a_pod_that_fails_says_which_part_did(store: Any, done: Any, error: type[Exception], words: str) -> None:
    fake = kube_of(store, done)
    with pytest.raises(error, match=words):
        export.in_pod(fake, export.stored(fake, "default", "digits"), FILES)
    assert fake.list(POD, "default") == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted("onnx", "/shared/x"), "format = 'onnx': give one of safetensors, dcp"),
        (Wanted("torch", ""), "output = '': give a new path"),
        (Wanted("torch", "x.pt"), "output = 'x.pt': a pod writes it: .* of the job: /shared$"),
        (Wanted("torch", "/opt/torch/x"), "a volume of the job: /shared$"),
        (Wanted("torch", "/shared/../etc/x"), "a volume of the job: /shared$"),
    ],
)
def test_bad_input_makes_no_pod(wanted: Wanted, words: str) -> None:
    fake = kube_of()
    with pytest.raises(SpecError, match=words):
        export.in_pod(fake, export.stored(fake, "default", "digits"), wanted)
    assert ("create", "Pod") not in [(verb, kind) for verb, kind, _ in fake.requests]


def test_here_needs_torch_and_says_so_before_it_fetches(tmp_path: Path) -> None:
    found = Stored("default", "digits", "digits-a1-g1", f"file://{tmp_path}/store")
    wanted = Wanted("torch", str(tmp_path / "out.pt"), python=sys.executable)
    fix = "name a Python that has torch and airflow-provider-singularity"
    if "torch" not in sys.modules:
        with pytest.raises(PlatformError, match=f"No module named 'torch'.*{fix}"):
            export.here(found, wanted)
    with pytest.raises(PlatformError, match="/no/python cannot be run"):
        export.here(found, replace(wanted, python="/no/python"))
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    with pytest.raises(PlatformError, match=r"has not ended within 0\.2 s"):
        export.here(found, replace(wanted, python=str(slow)), timeout_s=0.2)
    (tmp_path / "out.pt").touch()
    with pytest.raises(SpecError, match="it is there already"):
        export.here(found, wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.pt", "slow"]


def test_the_command_uses_a_pod_where_only_nodes_reach_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = kube_of({"result": FETCH}, {"result": DONE})
    monkeypatch.setattr(checkpoints, "open_cluster", lambda kubeconfig, context: fake)
    words = ["checkpoints", "export", "digits", "digits-a1-g1", FILES.output, "--format", "safetensors"]
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 0 and done.stdout == f"digits-a1-g1 (step 61): 4 tensors in {FILES.output}\n", done.output
    assert "left out, as safetensors has no place for it: extra.flag" in done.stderr
    here = CliRunner().invoke(cli.main, [*words[:4], "x.safetensors", *words[5:]])
    assert here.exit_code == 2 and "give a path below a volume of the job: /shared" in here.stderr
    gone = CliRunner().invoke(cli.main, [*words[:2], "nobody", *words[3:], "--store", "file:///shared/c"])
    assert gone.exit_code == 2 and "its pods are not known any more" in gone.stderr


def test_options_of_formats_are_refused_for_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "open_cluster", lambda kubeconfig, context: kube_of())
    words = ["checkpoints", "export", "digits", "digits-a1-g1", "x.tar", "--only", "models"]
    refused = CliRunner().invoke(cli.main, words)
    assert refused.exit_code == 2 and "--only = 'models': is for the formats of frameworks" in refused.stderr


def test_the_formats_are_those_of_the_library() -> None:
    text = (Path(__file__).parents[3] / "singularity_train/portable.py").read_text()
    storage = (Path(__file__).parents[3] / "singularity_train/storage/export.py").read_text()
    assert all(f'"{name}": ' in text + storage for name in export.FORMATS)
    assert text.count('"trainer": as_trainer, "lightning": as_lightning') == 1
