"""JobSets and TrainJobs beside Jobs: what they are called, how they are found, what the commands do with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from adoption_cases import changed, jobset, plain, trainjob
from click.testing import CliRunner
from kueue_samples import PLATFORM, cluster

from kueue_integration import cli
from kueue_integration.adoption import trainjob as rules_of_trainjob
from kueue_integration.adoption.jobset import adopted_jobset
from kueue_integration.adoption.patch import adopted
from kueue_integration.adoption.trainjob import adopted_trainjob
from kueue_integration.cli.tables import WIDTH
from kueue_integration.contract import job_names, kinds
from kueue_integration.contract.record_types import Placement
from kueue_integration.controller import apply, reshape
from kueue_integration.controller.actions import GiveUp
from kueue_integration.controller.metrics import Metrics
from kueue_integration.controller.snapshot import Job, Workload
from kueue_integration.errors import Conflict, Forbidden, JobNotFoundError, NotFound, RequestRefusedError, SpecError
from kueue_integration.job import states
from kueue_integration.jobs import lifecycle, status
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOBSET, TRAINJOB, Object, annotation, label
from kueue_integration.requests import user_requests, verbs
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import to_json

KEYS = ["mine", "mine.jobset", "mine.trainjob"]
LONG = "a-name-of-the-greatest-length-that-is-allowed-here"


def every_kind(name: str = "mine") -> list[Object]:
    return [
        adopted(plain(name), PLATFORM),
        adopted_jobset(jobset(name), PLATFORM),
        adopted_trainjob(trainjob(name), PLATFORM),
    ]


# --- a TrainJob and its runtime ---------------------------------------------------------------------------------------
def test_a_trainjob_starts_the_users_program_behind_the_launcher() -> None:
    made = adopted_trainjob(trainjob(), PLATFORM)
    trainer = made["spec"]["trainer"]
    assert trainer["command"] == ["/singularity/agent/launcher/start", "python3"]
    assert trainer["args"] == trainjob()["spec"]["trainer"]["args"] and trainer["numNodes"] == 2
    env = {entry["name"]: entry["value"] for entry in trainer["env"]}
    assert env["PYTHONPATH"] == "/singularity/agent/lib:/src/lib:/opt/torch" and env["OMP_NUM_THREADS"] == "2"
    assert (env[names.ENV_JOB], env[names.ENV_WORLD_SIZE], env[names.ENV_GRACE]) == ("mine.trainjob", "4", "90")
    assert names.ENV_WORKDIR not in env  # the runtime's
    assert made["spec"]["suspend"] is True and "numProcPerNode" not in trainer
    assert (
        annotation(made, job_names.ANN_HOLD) == job_names.HOLD_ARMED
        and annotation(made, job_names.ANN_WORLD_SIZE) == "4"
    )
    theirs, ours = made["spec"]["runtimePatches"]
    assert theirs == trainjob()["spec"]["runtimePatches"][0] and ours["manager"] == rules_of_trainjob.MANAGER
    (patched,) = ours["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = patched["template"]["spec"]["template"]
    assert pod["metadata"]["labels"][job_names.LABEL_JOB] == "mine.trainjob"
    (sidecar,) = pod["spec"]["initContainers"]
    assert sidecar["name"] == job_names.CONTAINER_SIDECAR
    assert {e["name"]: e["value"] for e in sidecar["env"]}[names.ENV_JOB] == "mine.trainjob"
    json.dumps(made)


def test_the_runtime_has_every_part_that_a_job_has_and_nothing_of_a_job() -> None:
    made = rules_of_trainjob.runtime(PLATFORM)
    (replicated,) = made["spec"]["template"]["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    theirs = adopted(plain(), PLATFORM)["spec"]
    assert job["podReplacementPolicy"] == theirs["podReplacementPolicy"]
    assert [r["action"] for r in job["podFailurePolicy"]["rules"]] == ["Ignore", "Ignore", "FailJob"]
    assert job["podFailurePolicy"]["rules"][2]["onExitCodes"]["containerName"] == "node"
    assert [c["name"] for c in pod["initContainers"]] == ["install-agent", "device-proxy"]
    assert [c["name"] for c in pod["containers"]] == ["node"]
    given = {e["name"] for c in (*pod["initContainers"], *pod["containers"]) for e in c.get("env", ())}
    assert names.ENV_ATTEMPT in given and not given & {names.ENV_JOB, names.ENV_STORE, names.ENV_WORLD_SIZE}
    ours = {v["name"] for v in theirs["template"]["spec"]["volumes"]} - {"dshm", "src"}
    assert {v["name"] for v in pod["volumes"]} >= ours


@pytest.mark.parametrize(
    ("field", "path", "value"),
    [
        ("spec.runtimeRef", "spec.runtimeRef.name", "torch-distributed"),
        ("spec.runtimeRef", "spec.runtimeRef.kind", "TrainingRuntime"),
        ("spec.initializer", "spec.initializer", {"dataset": {"storageUri": "hf://x"}}),
        ("spec.trainer.numNodes", "spec.trainer.numNodes", 0),
        ("spec.trainer.numProcPerNode", "spec.trainer.numProcPerNode", "auto"),
        ("spec.managedBy", "spec.managedBy", "kueue.x-k8s.io/multikueue"),
        ("spec.runtimePatches", "spec.runtimePatches.0.manager", rules_of_trainjob.MANAGER),
        ("metadata.annotations[kueue.x-k8s.io/job-min-parallelism]",
         "metadata.annotations.kueue~x-k8s~io/job-min-parallelism", "1"),
    ],
)  # fmt: skip
def test_what_a_trainjob_cannot_have_is_named(field: str, path: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        adopted_trainjob(changed(path, value, trainjob()), PLATFORM)
    assert {name for name, _, _ in caught.value.problems} == {field}


def test_runtime_patches_of_the_owner_may_not_take_our_places() -> None:
    for kind, entry in (
        ("initContainers", {"name": "device-proxy", "env": []}),
        ("initContainers", {"name": "fetch"}),
        ("containers", {"name": "beside"}),
    ):
        job = trainjob()
        replicated = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
        replicated["template"]["spec"]["template"]["spec"][kind] = [entry]
        with pytest.raises(SpecError) as caught:
            adopted_trainjob(job, PLATFORM)
        assert [name for name, _, _ in caught.value.problems] == ["spec.runtimePatches"], entry


def test_the_program_of_a_trainjob_keeps_its_user() -> None:
    job = trainjob()
    replicated = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    patch = replicated["template"]["spec"]["template"]["spec"]
    patch["securityContext"] = {"fsGroup": 6}
    patch["containers"][0]["securityContext"] = {"runAsUser": 1000, "runAsGroup": 5, "runAsNonRoot": True}
    made = adopted_trainjob(job, PLATFORM)
    env = {entry["name"]: entry.get("value") for entry in made["spec"]["trainer"]["env"]}
    assert env[names.ENV_RUN_AS] == "1000:5:6"
    ours = made["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    pod = ours["template"]["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"fsGroup": 6}
    assert all("securityContext" not in container for container in pod["containers"]), "the launcher is root's"


# --- seen as Jobs -----------------------------------------------------------------------------------------------------
def test_all_kinds_are_seen_as_jobs() -> None:
    for made, key in zip(every_kind(), KEYS, strict=True):
        seen = kinds.as_job(made)
        assert kinds.job_key(seen) == key and seen["kind"] == made["kind"]
        assert kinds.kind_and_name(key)[1] == "mine" and kinds.owner_key(made["kind"], "mine") == key
        assert seen["spec"]["parallelism"] == 2 and states.suspended(seen)
        assert seen["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 90


def test_counts_of_jobs_become_counts_of_pods() -> None:
    _, of_jobset, of_trainjob = every_kind()
    counts = [{"name": "node", "active": 1, "ready": 1, "succeeded": 0, "failed": 0, "suspended": 0}]
    for made, name in ((of_jobset, "replicatedJobsStatus"), (of_trainjob, "jobsStatus")):
        status_of = kinds.as_job({**made, "status": {name: counts}})["status"]
        assert (status_of["active"], status_of["ready"]) == (1, 2)
        assert kinds.as_job(made)["status"]["ready"] == 0


def test_pods_know_their_job_by_labels() -> None:
    jobset_label = {kinds.JOBSET_NAME_LABEL: "mine", kinds.JOB_NAME_LABEL: "mine-workers-0"}
    for labels, key in (
        ({kinds.JOB_NAME_LABEL: "mine", job_names.LABEL_JOB: "other"}, "mine"),
        ({**jobset_label, job_names.LABEL_JOB: "mine.jobset"}, "mine.jobset"),
        ({**jobset_label, job_names.LABEL_JOB: "mine.trainjob"}, "mine.trainjob"),
        ({**jobset_label, job_names.LABEL_JOB: "other.trainjob"}, "mine.jobset"),
        ({}, None),
    ):
        assert kinds.key_of_pod({"metadata": {"labels": labels}}) == key
    assert kinds.pod_labels("mine.trainjob") == kinds.pod_labels("mine.jobset") == {kinds.JOBSET_NAME_LABEL: "mine"}


def test_a_name_finds_every_kind_and_a_key_just_its_own() -> None:
    kube = cluster(*every_kind())
    assert [kinds.job_key(job) for job in kinds.list_managed(kube, "default")] == KEYS
    assert [kinds.job_key(kinds.named(kube, "default", key) or {}) for key in KEYS] == KEYS
    kube.delete(kinds.JOB, "default", "mine")
    found = kinds.named(kube, "default", "mine")
    assert found is not None and kinds.job_key(found) == "mine.jobset"
    assert kinds.named(kube, "default", "nobody") is None


def test_unmanaged_jobs_and_jobsets_are_not_found() -> None:
    kube = cluster(plain(), jobset())
    assert kinds.named(kube, "default", "mine") is None and kinds.list_managed(kube, "default") == []


def test_kinds_that_are_not_served_or_not_for_this_user_are_none() -> None:
    kube = cluster(every_kind()[0])
    kube.fail_next("list", JOBSET, NotFound("no such kind", 404, "NotFound"))
    kube.fail_next("list", TRAINJOB, Forbidden("may not list", 403, "Forbidden"))
    assert [kinds.job_key(job) for job in kinds.list_managed(kube, "default")] == ["mine"]
    kube.fail_next("get", JOBSET, Forbidden("may not get", 403, "Forbidden"))
    assert kinds.named(kube, "default", "nobody") is None


# --- the controller ---------------------------------------------------------------------------------------------------
def child(name: str) -> Object:
    """The Job that the JobSet controller makes for the workers of JobSet `name`."""
    made = plain(f"{name}-workers-0")
    made["metadata"]["labels"] = {kinds.JOBSET_NAME_LABEL: name}
    return made


@pytest.mark.parametrize("key", KEYS)
def test_a_job_of_any_kind_is_failed_when_its_budget_is_used_up(key: str) -> None:
    kube = cluster(*every_kind(), child("mine"), child("other"))
    told = GiveUp(annotations={job_names.ANN_BROKEN: "said"}, message="over")
    found = kinds.find(kube, "default", key)
    assert found is not None
    apply.perform(kube, told, found, None, "fence", Metrics(), 0.0)
    kind, name = kinds.kind_and_name(key)
    assert annotation(kube.get(kind, "default", name), job_names.ANN_BROKEN) == "said"
    ended = {j["metadata"]["name"] for j in kube.list(kinds.JOB) if j["spec"].get("activeDeadlineSeconds") == 1}
    assert ended == {"mine" if kind is kinds.JOB else "mine-workers-0"}
    with pytest.raises(Conflict):  # decided on what is not there any more
        apply.perform(kube, told, found, None, "fence", Metrics(), 0.0)


# --- commands ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def ctl(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeKube, Any]:
    kube = cluster(*every_kind(), *every_kind(LONG[:49]))
    for module in ("status", "logs", "delete", "verbs", "common"):
        monkeypatch.setattr(f"kueue_integration.cli.{module}.open_cluster", lambda *_: kube)
    return kube, lambda *words: CliRunner().invoke(cli.main, words)


def test_status_lists_all_kinds_within_100_columns(ctl: tuple[FakeKube, Any]) -> None:
    done = ctl[1]("status")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line.split()[0] for line in lines[1:] if line.startswith("mine")] == KEYS
    assert len(lines) == 7 and max(map(len, lines)) <= WIDTH
    for key in KEYS:
        one = ctl[1]("status", key)
        assert one.exit_code == 0 and f"default/{key}" in one.output and max(map(len, one.output.splitlines())) <= WIDTH
        assert json.loads(ctl[1]("status", key, "-o", "json").output)["name"] == key


def test_completion_offers_what_the_commands_take(ctl: tuple[FakeKube, Any]) -> None:
    from kueue_integration.cli.common import complete_jobs

    context = type("Context", (), {"params": {}})()
    assert [item.value for item in complete_jobs(context, None, "mine")] == KEYS  # type: ignore[arg-type]


def test_logs_come_from_the_container_that_trains(ctl: tuple[FakeKube, Any]) -> None:
    kube, run = ctl
    for key, container in zip(KEYS, ("train", "train", "node"), strict=True):
        pod = f"{key.replace('.', '-')}-0"
        meta = {"name": pod, "namespace": "default", "labels": {job_names.LABEL_JOB: key}, "creationTimestamp": "2026"}
        kube.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta})
        kube.logs["default", pod, container] = [f"[rank 0] step 1 of {key}"]
        done = run("logs", key)
        assert done.exit_code == 0 and f"step 1 of {key}" in done.output, done.output


@pytest.mark.parametrize("key", KEYS)
def test_delete_removes_only_the_one_that_was_named(ctl: tuple[FakeKube, Any], key: str) -> None:
    kube, run = ctl
    done = run("delete", key, "--wait")
    assert done.exit_code == 0, done.output
    assert [k for k in map(kinds.job_key, kinds.list_managed(kube, "default")) if k.startswith("mine")] == [
        k for k in KEYS if k != key
    ]


def test_a_jobset_of_somebody_else_is_not_deleted() -> None:
    kube = cluster(jobset())
    with pytest.raises(JobNotFoundError, match=r"JobSet 'mine\.jobset'"):
        lifecycle.delete(kube, "default", "mine.jobset")
    assert kube.find(JOBSET, "default", "mine") is not None


@pytest.mark.parametrize("key", KEYS[1:])
def test_verbs_write_on_the_object_itself_and_a_resize_is_refused(key: str) -> None:
    kube = cluster(*every_kind())
    asked = verbs.pause(kube, "default", key)
    assert asked.name == key and asked.state == "asked" and verbs.look(kube, asked) == asked
    kind, name = kinds.kind_and_name(key)
    assert annotation(kube.get(kind, "default", name), user_requests.CHANGE.request)
    assert annotation(kube.get(kinds.JOB, "default", name), user_requests.CHANGE.request) is None
    with pytest.raises(RequestRefusedError, match=f"number of pods of a {kind.name} is fixed"):
        verbs.resize(kube, "default", key, 1)
    assert status.describe(kube, "default", key).name == key


def test_a_placement_steers_kueue_and_leaves_the_pods_of_other_kinds_alone() -> None:
    terms = [[{"key": "flavor", "operator": "In", "values": ["spot"]}]]
    where = Placement(flavors=["spot"], terms=[])
    text = json.dumps({**json.loads(to_json(where)), "terms": terms})
    podset = {"name": "main", "count": 2, "template": {"spec": {"containers": []}}}
    workload = {"metadata": {"name": "w", "namespace": "default"}, "spec": {"podSets": [podset]}, "status": {}}
    for made in every_kind():
        job = kinds.as_job({**made, "metadata": {**made["metadata"], "annotations": {job_names.ANN_PLACEMENT: text}}})
        action = reshape.reshape(Job.parse(job), Workload.parse(workload))
        assert type(action).__name__ == ("Reshape" if kinds.is_job(job) else "PatchWorkload")


def test_leaving_a_node_is_refused_where_affinity_cannot_be_changed() -> None:
    from kueue_integration.contract.record_types import JobRequest

    where = Placement(flavors=[], avoid_nodes=["node-1"], terms=[])
    text = json.loads(to_json(where))
    terms = {**text, "terms": [[{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-1"]}]]}
    from singularity_proxy.protocol.messages import from_json

    request = JobRequest("1", "migrate", 0.0, "", placement=from_json(Placement, json.dumps(terms)))
    problems = [user_requests.problem(kinds.as_job(made), request, None) for made in every_kind()]
    assert problems[0] is None
    assert [p[0] for p in problems[1:] if p] == ["away_from_node", "away_from_node"]


def test_labels_say_who_is_managed() -> None:
    assert {label(made, job_names.LABEL_JOB) for made in every_kind()} == set(KEYS)
