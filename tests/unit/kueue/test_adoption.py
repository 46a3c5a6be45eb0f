"""A user's own Job becomes a managed job, or is refused with field and fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from adoption_cases import GOOD, bare, changed, jobset, plain
from click.testing import CliRunner
from kueue_samples import PLATFORM, cluster

from kueue_integration import cli
from kueue_integration.adoption import recreate
from kueue_integration.adoption.jobset import adopted_jobset
from kueue_integration.adoption.patch import GRACE_LEAST, adopted
from kueue_integration.contract import job_names, kinds
from kueue_integration.errors import Conflict, ConflictError, Forbidden, JobNotFoundError, KubeError, SpecError
from kueue_integration.job import states
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, JOB, JOBSET, annotation, label
from kueue_integration.spec import platform_config
from singularity_proxy.protocol import names


@pytest.mark.parametrize("job", GOOD)
def test_the_input_stays_as_it_was_and_good_jobs_pass(job: dict[str, Any]) -> None:
    before = json.dumps(job)
    adopted(job, PLATFORM)
    assert json.dumps(job) == before


def test_the_users_program_runs_behind_the_launcher() -> None:
    made = adopted(plain(), PLATFORM)
    pod = made["spec"]["template"]["spec"]
    (train,) = pod["containers"]
    user = plain()["spec"]["template"]["spec"]["containers"][0]
    assert train["name"] == job_names.CONTAINER_TRAIN
    assert train["command"] == ["/singularity/agent/launcher/start", "python3"]
    for kept in ("args", "image", "resources", "workingDir"):
        assert train[kept] == user[kept]
    env = {entry["name"]: entry.get("value") for entry in train["env"]}
    assert env["PYTHONPATH"] == "/singularity/agent/lib:/src/lib:/opt/torch"
    assert env["OMP_NUM_THREADS"] == "2" and len(train["env"]) == len(env)
    assert (env[names.ENV_JOB], env[names.ENV_WORLD_SIZE], env[names.ENV_WORKDIR]) == ("mine", "2", ".")
    assert [c["name"] for c in pod["initContainers"]] == ["install-agent", "device-proxy", "fetch"]
    paths = [mount["mountPath"] for mount in train["volumeMounts"]]
    assert paths.count("/dev/shm") == 1 and {"/src", "/shared", "/singularity/run"} <= set(paths)
    assert [v["name"] for v in pod["volumes"]].count("shared") == 1


def test_the_job_is_held_fenced_and_elastic() -> None:
    made = adopted(plain(), PLATFORM)
    assert made["spec"]["suspend"] is True and made["spec"]["podReplacementPolicy"] == "Failed"
    assert label(made, job_names.LABEL_MANAGED) == "true" and label(made, "team") == "vision"
    assert made["spec"]["template"]["metadata"]["labels"] == {
        "app": "train",
        job_names.LABEL_MANAGED: "true",
        job_names.LABEL_JOB: "mine",
    }
    assert annotation(made, job_names.ANN_HOLD) == job_names.HOLD_ARMED
    assert (annotation(made, job_names.ANN_WORKERS), annotation(made, job_names.ANN_MIN_WORKERS)) == ("2", "1")
    assert made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == GRACE_LEAST


def test_what_the_user_says_stands() -> None:
    job = changed("metadata.annotations.singularity~dev/checkpoint-budget-seconds", "30")
    job = changed("spec.template.spec.terminationGracePeriodSeconds", 300, job)
    job = changed("metadata.annotations.singularity~dev/world-size", "4", job)
    made = adopted(job, PLATFORM)
    assert annotation(made, job_names.ANN_BUDGET) == "30" and annotation(made, job_names.ANN_WORLD_SIZE) == "4"
    assert made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 300


def test_the_program_keeps_its_user() -> None:
    def made(job: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        pod = adopted(job, PLATFORM)["spec"]["template"]["spec"]
        (train,) = pod["containers"]
        assert (train["securityContext"]["runAsUser"], train["securityContext"]["runAsNonRoot"]) == (0, False)
        return [e["value"] for e in train["env"] if e["name"] == names.ENV_RUN_AS], pod.get("securityContext") or {}

    whole = {"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 5, "runAsNonRoot": True}
    job = changed("spec.template.spec.securityContext", whole)
    assert made(job) == (["1000:1001:5"], whole)
    job = changed("spec.template.spec.containers.0.securityContext", {"runAsUser": 7, "runAsNonRoot": True}, job)
    assert made(job) == (["7:1001:5"], whole)
    assert made(plain()) == ([], {})


def test_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="adopted already"):
        adopted(adopted(plain(), PLATFORM), PLATFORM)


@pytest.mark.parametrize(
    ("path", "value"),
    [("spec.template.spec.containers", []), ("spec.template.spec.containers.0.command", None), ("spec.template", 5),
     ("spec.parallelism", "many"), ("spec.template.spec.volumes", 1), ("spec.template.spec.containers", [1])],
)  # fmt: skip
def test_what_nobody_has_judged_gets_a_sentence_too(path: str, value: Any) -> None:
    with pytest.raises(SpecError):
        recreate.unjudged(changed(path, value), PLATFORM)


# --- JobSet ---------------------------------------------------------------------------------------------------------
def test_a_jobset_gets_the_same_parts_and_another_name() -> None:
    made = adopted_jobset(jobset(), PLATFORM)
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert made["spec"]["suspend"] is True and "suspend" not in job
    assert (
        annotation(made, job_names.ANN_HOLD) == job_names.HOLD_ARMED and annotation(made, job_names.ANN_WORKERS) == "2"
    )
    assert job["template"]["metadata"]["labels"][job_names.LABEL_JOB] == "mine.jobset"
    env = {entry["name"]: entry.get("value") for entry in job["template"]["spec"]["containers"][0]["env"]}
    assert env[names.ENV_JOB] == "mine.jobset" and env[names.ENV_WORLD_SIZE] == "2"
    assert kinds.as_job(made)["spec"]["parallelism"] == 2 and kinds.job_key(made) == "mine.jobset"
    assert not label(made["spec"]["replicatedJobs"][0]["template"], job_names.LABEL_MANAGED)  # the JobSet is managed


@pytest.mark.parametrize(
    ("field", "path", "value"),
    [
        ("spec.replicatedJobs", "spec.replicatedJobs", []),
        ("spec.replicatedJobs[0].replicas", "spec.replicatedJobs.0.replicas", 2),
        ("spec.managedBy", "spec.managedBy", "example.com/x"),
        ("metadata.annotations[kueue.x-k8s.io/job-min-parallelism]",
         "metadata.annotations.kueue~x-k8s~io/job-min-parallelism", "1"),
    ],
)  # fmt: skip
def test_what_a_jobset_cannot_have_is_named(field: str, path: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        adopted_jobset(changed(path, value, jobset()), PLATFORM)
    assert [name for name, _, _ in caught.value.problems] == [field]


def test_a_jobset_is_seen_as_a_job() -> None:
    done = {"type": "Completed", "status": "True", "reason": "AllJobsCompleted"}
    seen = kinds.as_job({**jobset(), "status": {"conditions": [done]}})
    assert states.finished(seen) == {**done, "type": "Complete"} and seen["kind"] == "JobSet"
    assert kinds.kind_and_name("mine.jobset") == (JOBSET, "mine") and kinds.kind_and_name("mine") == (JOB, "mine")


# --- a Job that exists ----------------------------------------------------------------------------------------------
def waiting() -> dict[str, Any]:
    job = plain()
    job["spec"]["suspend"] = True
    return job


@pytest.fixture
def kube() -> FakeKube:
    return cluster(waiting())


def test_recreate_replaces_a_job_that_waits(kube: FakeKube) -> None:
    before = kube.get_job("default", "mine")["metadata"]["uid"]
    made = recreate.recreate(kube, "default", "mine", PLATFORM)
    assert made["metadata"]["uid"] != before and label(made, "team") == "vision"
    assert annotation(kube.get_job("default", "mine"), job_names.ANN_HOLD) == job_names.HOLD_ARMED
    assert kube.find(CONFIG_MAP, "default", "mine-before-adoption") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": {"suspend": False}}, "is running"),
        ({"status": {"startTime": "2026-01-01T00:00:00Z"}}, "has been started before"),
        ({"status": {"failed": 1}}, "has been started before"),
    ],
)
def test_a_job_that_has_started_is_left_alone(change: dict[str, Any], said: str) -> None:
    job = waiting()
    for key, value in change.items():
        job.setdefault(key, {}).update(value)
    kube = cluster(job)
    with pytest.raises(ConflictError, match=said):
        recreate.recreate(kube, "default", "mine", PLATFORM)
    assert "delete" not in {verb for verb, _, _ in kube.requests}


def test_a_job_that_starts_in_between_is_left_alone(kube: FakeKube) -> None:
    kube.fail_next("delete", JOB, Conflict("changed", 409, "Conflict"))
    with pytest.raises(ConflictError, match="left alone"):
        recreate.recreate(kube, "default", "mine", PLATFORM)
    assert not label(kube.get_job("default", "mine"), job_names.LABEL_MANAGED)
    assert kube.find(CONFIG_MAP, "default", "mine-before-adoption") is None


def test_a_bad_job_is_refused_before_anything_is_deleted() -> None:
    kube = cluster(waiting())
    said = "spec.template.spec.hostPID must not be set"
    kube.fail_next("create", JOB, Forbidden(said, 403, "Forbidden", denied=True))
    with pytest.raises(SpecError, match=said):
        recreate.recreate(kube, "default", "mine", PLATFORM)
    assert "delete" not in {verb for verb, _, _ in kube.requests}


def test_a_missing_right_is_no_fault_of_the_job() -> None:
    kube = cluster(waiting())
    kube.fail_next("create", JOB, Forbidden("tenant cannot create resource jobs", 403, "Forbidden"))
    with pytest.raises(Forbidden):
        recreate.recreate(kube, "default", "mine", PLATFORM)


def test_a_failure_after_the_delete_loses_nothing_and_the_same_call_finishes(kube: FakeKube) -> None:
    real, count = kube.create, []

    def create(obj: Any, dry_run: bool = False) -> Any:
        if obj["kind"] == "Job" and not dry_run and not count:
            count.append(1)
            raise KubeError("the API server is away", 503)
        return real(obj, dry_run)

    kube.create = create  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="ConfigMap 'mine-before-adoption'"):
        recreate.recreate(kube, "default", "mine", PLATFORM)
    assert kube.find(JOB, "default", "mine") is None
    made = recreate.recreate(kube, "default", "mine", PLATFORM)
    assert label(made, "team") == "vision" and annotation(made, job_names.ANN_HOLD) == job_names.HOLD_ARMED
    assert kube.find(CONFIG_MAP, "default", "mine-before-adoption") is None


def test_as_written_drops_what_the_server_added() -> None:
    live = waiting()
    tracked = {"controller-uid": "u", "batch.kubernetes.io/job-name": "mine"}
    live["metadata"].update({"uid": "u", "resourceVersion": "7", "managedFields": []})
    live["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}
    live["spec"]["template"]["metadata"]["labels"].update(tracked)
    live["status"] = {"ready": 0}
    assert recreate.as_written(live) == waiting()


def test_no_such_job(kube: FakeKube) -> None:
    with pytest.raises(JobNotFoundError):
        recreate.recreate(kube, "default", "other", PLATFORM)


# --- the command ----------------------------------------------------------------------------------------------------
def run(kube: FakeKube, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    from kueue_integration.cli import adopt

    monkeypatch.setattr(adopt, "open_cluster", lambda kubeconfig, context: kube)
    monkeypatch.setattr(adopt.platform_config, "load", lambda kube: PLATFORM)
    return CliRunner().invoke(cli.main, ["adopt", *arguments])


def test_the_command_prints_and_creates(tmp_path: Path, kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(bare("one")))
    shown = run(kube, monkeypatch, "-f", str(file), "--dry-run")
    assert shown.exit_code == 0 and yaml.safe_load(shown.output) == adopted(bare("one"), PLATFORM)
    assert kube.find(JOB, "default", "one") is None
    platform_file = tmp_path / "platform.json"
    platform_file.write_text(platform_config.to_json(PLATFORM))
    offline = run(kube, monkeypatch, "-f", str(file), "--dry-run", "--platform", str(platform_file))
    assert yaml.safe_load(offline.stdout) == yaml.safe_load(shown.stdout)
    assert "nothing has judged" in offline.stderr and not shown.stderr
    made = run(kube, monkeypatch, "-f", str(file))
    assert made.exit_code == 0 and "default/one adopted and created" in made.output
    again = run(kube, monkeypatch, "-f", str(file))
    assert again.exit_code == 2 and "--recreate" in again.output


def test_the_command_on_an_existing_job(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run(kube, monkeypatch, "mine")
    assert refused.exit_code == 2 and "--recreate" in refused.output
    assert run(kube, monkeypatch, "mine", "--recreate").exit_code == 0


@pytest.mark.parametrize("text", ["a: [", "kind: Pod", "", "a: 1\n---\nb: 2\n", "apiVersion: batch/v1\nkind: Job\n"])
def test_a_file_that_is_no_job(text: str, tmp_path: Path, kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    done = run(kube, monkeypatch, "-f", str(file))
    assert done.exit_code == 2 and "error:" in done.output and "Traceback" not in done.output
