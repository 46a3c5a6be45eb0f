"""The commands of `singularityctl`: what they print, and with which exit code they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from kueue_samples import PLATFORM, attempt, cluster, job, saved, workload

from kueue_integration import cli
from kueue_integration.cli import common, delete, logs, status, submit, tables
from kueue_integration.contract import job_names
from kueue_integration.errors import Unreachable
from kueue_integration.jobs.status import summarise
from kueue_integration.kube import credentials
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, JOB, SERVICE
from kueue_integration.spec import platform_config
from singularity_proxy.protocol import names

CHART = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "singularity-platform", "namespace": "singularity-system"},
    "data": {"platform.json": platform_config.to_json(PLATFORM)},
}
GOOD = ["submit", "--name", "digits", "--queue", "training", "--workers", "4", "--min-workers", "2", "--cpu", "250m"]
COMMAND = ["--", "python3", "train.py", "--steps", "9"]


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    fake = cluster(CHART)
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")
    for module in (common, submit, status, delete, logs):
        monkeypatch.setattr(module, "open_cluster", lambda kubeconfig, context: fake)
    return fake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, list(arguments))


def test_help_of_every_command_has_its_exit_codes_or_an_example() -> None:
    assert run("--help").exit_code == 0
    for name in ("submit", "status", "logs", "render", "delete"):
        shown = run(name, "--help")
        assert shown.exit_code == 0 and "Example" in shown.output, name
        assert max(map(len, shown.output.splitlines())) <= 105


def test_submit_creates_the_job(kube: FakeKube) -> None:
    done = run(*GOOD, "--env", "A=b=c", "--gpus", "1", "--priority-class", "low", "--budget", "30", *COMMAND)
    assert done.exit_code == 0, done.output
    size = "4 workers (at least 2), 4 ranks, engine process"
    assert done.output == f"job default/digits submitted to queue training: {size}\n"
    made = kube.get_job("default", "digits")
    assert made["metadata"]["annotations"][job_names.ANN_BUDGET] == "30"
    (train,) = made["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in train["env"]}
    assert json.loads(env[names.ENV_COMMAND]) == ["python3", "train.py", "--steps", "9"] and env["A"] == "b=c"
    assert train["resources"]["requests"] == {"cpu": "250m", "nvidia.com/gpu": "1"}


def test_submit_json(kube: FakeKube) -> None:
    done = run(*GOOD, "--identity", "me", "-o", "json", *COMMAND)
    assert json.loads(done.output)["adopted"] is False
    assert json.loads(run(*GOOD, "--identity", "me", "-o", "json", *COMMAND).output)["adopted"] is True


def test_no_hold(kube: FakeKube) -> None:
    run(*GOOD, "--no-hold", "--grace", "40", *COMMAND)
    made = kube.get_job("default", "digits")
    assert job_names.ANN_HOLD not in made["metadata"]["annotations"]
    assert made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 40


def test_what_the_pods_and_the_end_of_an_attempt_may_be_is_an_option_too(kube: FakeKube, tmp_path: Path) -> None:
    piece = tmp_path / "spot.yaml"
    piece.write_text("spec:\n  tolerations: [{key: spot, operator: Exists}]\n")
    options = ["--pod-override", str(piece), "--label", "team=vision"]
    options += ["--infrastructure-retries", "3", "--resume-on-exit-code", "75", "--resume-on-exit-code", "76"]
    done = run(*GOOD, *options, *COMMAND)
    assert done.exit_code == 0, done.output
    made = kube.get_job("default", "digits")
    assert made["metadata"]["labels"]["team"] == "vision"
    assert {"key": "spot", "operator": "Exists"} in made["spec"]["template"]["spec"]["tolerations"]
    assert made["metadata"]["annotations"][job_names.ANN_INFRASTRUCTURE_RETRIES] == "3"
    rules = made["spec"]["podFailurePolicy"]["rules"]
    codes = [rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule]
    assert any({75, 76} <= set(found) for found in codes)


def test_place_and_devices_are_options_too(kube: FakeKube) -> None:
    options = ["--resource", "nvidia.com/mig-1g.10gb=1", "--device-class", "gpu.example.com=2", "--device-class", "nic"]
    options += ["--claim-template", "big", "--topology", "required=example.com/rack", "--node-selector", "disk=fast"]
    options += ["--toleration", "spot=true:NoSchedule", "--toleration", "gpu"]
    done = shown(*options)
    (train,) = done["spec"]["containers"]
    assert train["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}
    assert [c["resourceClaimTemplateName"] for c in done["spec"]["resourceClaims"]] == [
        "digits-claim-0", "digits-claim-1", "big",
    ]  # fmt: skip
    assert done["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] == "example.com/rack"
    assert done["spec"]["nodeSelector"] == {"disk": "fast"}
    assert done["spec"]["tolerations"] == [
        {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists"},
    ]
    notes = shown("--topology", "unconstrained")["metadata"]["annotations"]
    assert "kueue.x-k8s.io/podset-unconstrained-topology" in notes


def shown(*options: str) -> Any:
    """The pod template that `render` prints."""
    done = run("render", *GOOD[1:], *options, *COMMAND)
    assert done.exit_code == 0, done.output
    return next(o for o in yaml.safe_load_all(done.output) if o["kind"] == "Job")["spec"]["template"]


def test_workdir_ships_text_files(kube: FakeKube, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('é')\n")
    (tmp_path / "pkg" / "__pycache__").mkdir(parents=True)
    (tmp_path / "pkg" / "a.py").write_text("")
    (tmp_path / "pkg" / "__pycache__" / "a.pyc").write_bytes(b"\xff")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"\xff")
    assert run(*GOOD, "--workdir", str(tmp_path), *COMMAND).exit_code == 0
    assert sorted(kube.get(CONFIG_MAP, "default", "digits-files")["data"].values()) == ["", "print('é')\n"]


def test_workdir_with_what_cannot_be_shipped(kube: FakeKube, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\xff\xfe")
    refused = run(*GOOD, "--workdir", str(tmp_path), *COMMAND)
    assert refused.exit_code == 2 and "workdir = 'weights.bin': is not UTF-8 text" in refused.output
    (tmp_path / "weights.bin").write_bytes(b"a" * 900_001)
    refused = run(*GOOD, "--workdir", str(tmp_path), *COMMAND)
    assert refused.exit_code == 2 and "900000 bytes" in refused.output
    assert kube.find(JOB, "default", "digits") is None


def test_bad_input_is_listed_one_per_line_before_a_cluster_is_asked() -> None:
    refused = run("submit", "--name", "A", "--workers", "0")
    assert refused.exit_code == 2
    assert [line.split(" ")[1] for line in refused.output.splitlines()] == ["name", "queue", "command", "workers"]
    assert all(line.startswith("error: ") for line in refused.output.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--queue", "nope"], "queue = 'nope': is not a LocalQueue"),
        (["--min-workers", "5"], "min_workers = 5"),
        (["--world-size", "6"], "world_size = 6"),
        (["--env", "A"], "env = 'A': must be NAME=VALUE"),
        (["--label", "team"], "label = 'team': must be NAME=VALUE"),
        (["--resource", "nvidia.com/gpu"], "resource = 'nvidia.com/gpu': must be NAME=VALUE"),
        (["--topology", "rack"], "topology = 'rack': must be required=LABEL"),
        (["--topology", "wanted=rack"], "topology = {'wanted': 'rack'}: must have one entry"),
        (["--node-selector", "disk"], "node_selector = 'disk': must be LABEL=VALUE"),
        (["--toleration", "a:b"], "tolerations[0].effect = 'b'"),
        (["--device-class", "gpu=many"], "device_class = 'gpu=many': must be CLASS or CLASS=COUNT"),
        (["--claim-template", "No"], "resource_claims[0].template = 'No'"),
        (["--resume-on-exit-code", "0"], "resume_on_exit_codes"),
        (["--pod-override", __file__], "is not YAML"),
        (["--pod-override", "/proc/sys/kernel/ostype"], "must be a piece of a Pod"),
        (["--store", "ftp://x"], "store = 'ftp://x'"),
        (["--engine", "magic"], "engine = 'magic'"),
    ],
)
def test_bad_input_exits_2_and_creates_nothing(kube: FakeKube, arguments: list[str], words: str) -> None:
    refused = run(*GOOD, *arguments, *COMMAND)
    assert refused.exit_code == 2 and words in refused.output
    assert kube.find(JOB, "default", "digits") is None


def test_a_name_that_is_taken_exits_2(kube: FakeKube) -> None:
    run(*GOOD, *COMMAND)
    again = run(*GOOD, *COMMAND)
    assert again.exit_code == 2 and "exists already" in again.output


def test_platform_problems_exit_3(kube: FakeKube) -> None:
    kube.delete(CONFIG_MAP, "singularity-system", "singularity-platform")
    refused = run(*GOOD, *COMMAND)
    assert refused.exit_code == 3 and "chart is not installed" in refused.output
    kube.fail_next("get", JOB, Unreachable("no answer"))
    assert run("status", "digits").exit_code == 3


def test_dry_run_creates_nothing(kube: FakeKube) -> None:
    done = run(*GOOD, "--dry-run", *COMMAND)
    assert done.exit_code == 0 and "nothing was created\nengine process: no shipped file imports" in done.output
    assert kube.find(JOB, "default", "digits") is None


@pytest.mark.parametrize(("end", "code"), [("Complete", 0), ("Failed", 1)])
def test_wait_exits_as_the_job_ended(kube: FakeKube, monkeypatch: pytest.MonkeyPatch, end: str, code: int) -> None:
    create = kube.create

    def and_end(obj: Any, dry_run: bool = False) -> Any:
        made = create(obj, dry_run)
        if obj["kind"] == "Service":  # the last but one thing a submit does
            kube.set_status(JOB, "default", "digits", {"conditions": [{"type": end, "status": "True", "message": "m"}]})
        return made

    monkeypatch.setattr(kube, "create", and_end)
    done = run(*GOOD, "--wait", "--timeout", "20", *COMMAND)
    assert done.exit_code == code, done.output


def test_wait_gives_up(kube: FakeKube) -> None:
    done = run(*GOOD, "--wait", "--timeout", "0", *COMMAND)
    assert done.exit_code == 1 and "still Submitted" in done.output


def test_render_is_what_submit_creates(kube: FakeKube, tmp_path: Path) -> None:
    shown = list(yaml.safe_load_all(run("render", *GOOD[1:], *COMMAND).output))
    offline = tmp_path / "platform.json"
    offline.write_text(platform_config.to_json(PLATFORM))
    assert list(yaml.safe_load_all(run("render", "--platform", str(offline), *GOOD[1:], *COMMAND).output)) == shown
    run(*GOOD, *COMMAND)
    made = kube.get_job("default", "digits")
    assert shown[-1]["spec"] == made["spec"] and shown[-1]["metadata"]["annotations"] == made["metadata"]["annotations"]
    assert shown[0]["spec"] == kube.get(SERVICE, "default", "digits")["spec"]


def story() -> tuple[dict[str, Any], dict[str, Any]]:
    past = [
        attempt(1, first_step=0, first_step_at=103.0, last_step=60, released_at=160.0,
                ended_by="Preempted", preempted_by="job-big-" + "x" * 40,
                checkpoint="digits-a1-g1", note="no checkpoint within 30 s"),
        attempt(2, flavor="spot", pods=2, first_step=61, first_step_at=201.0),
    ]  # fmt: skip
    reserved = (("QuotaReserved", "True", "QuotaReserved", ""), ("Admitted", "True", "Admitted", ""))
    return job(history=past, checkpoint=saved()), workload(*reserved)


def test_status_of_one_job(kube: FakeKube) -> None:
    for obj in story():
        kube.put(obj)
    shown = run("status", "digits")
    assert shown.exit_code == 0
    for words in (
        "Running",
        "4 workers (at least 2), 4 ranks",
        "digits-a1-g1 at step 61",
        "0-60",
        "no checkpoint within",
    ):
        assert words in shown.output
    assert json.loads(run("status", "digits", "-o", "json").output)["attempts"][1]["flavor"] == "spot"
    assert "x" * 40 in run("status", "digits", "-o", "wide").output


CLEAR, CLIPBOARD, BACK = "\x1b[2J", "\x1b]52;c;ZXZpbA==\x07", "\r\x08"


def test_texts_of_others_do_not_reach_the_terminal_as_they_are(kube: FakeKube) -> None:
    """A pod's words become a note of an attempt: an escape in them cleared the screen and set the clipboard."""
    evil = f"no{CLEAR}{CLIPBOARD}{BACK} checkpoint"
    its_job, its_workload = story()
    past = [attempt(1, first_step=0, last_step=60, ended_by="Preempted", preempted_by=f"job-{evil}", note=evil)]
    its_job["metadata"]["annotations"] |= job(history=past)["metadata"]["annotations"]
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": evil}
    its_workload["status"]["conditions"] = [{**evicted, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    for obj in (its_job, its_workload):
        kube.put(obj)
    for words in (["status"], ["status", "digits"], ["status", "digits", "-o", "wide"], ["status", "-o", "yaml"]):
        shown = run(*words)
        assert shown.exit_code == 0 and shown.output.replace("\n", "").isprintable(), words
    assert "checkpoint" in run("status", "digits").output
    refused = run("delete", CLEAR)
    assert refused.exit_code == 2 and refused.output.replace("\n", "").isprintable()


def test_tables_fit(kube: FakeKube) -> None:
    its_job, its_workload = story()
    for obj in (its_job, its_workload):
        kube.put(obj)
    long = {**its_job, "metadata": {**its_job["metadata"], "name": "n" * 52, "uid": "u-2"}}
    kube.put(long)
    for shown in (run("status"), run("status", "digits")):
        assert max(map(len, shown.output.splitlines())) <= tables.WIDTH
    assert "n" * 52 in run("status", "-o", "wide").output
    assert len(json.loads(run("status", "-o", "json").output)) == 2


def test_status_of_nothing(kube: FakeKube) -> None:
    assert run("status").output == "no training jobs in namespace default\n"
    missing = run("status", "nobody")
    assert missing.exit_code == 2 and "no training job 'nobody'" in missing.output


def elsewhere(namespace: str, name: str) -> dict[str, Any]:
    its_job, _ = story()
    return {**its_job, "metadata": {**its_job["metadata"], "name": name, "uid": f"u-{name}", "namespace": namespace}}


def test_status_of_all_namespaces(kube: FakeKube) -> None:
    for made in (*story(), elsewhere("team", "bert"), elsewhere("alpha", "zeta")):
        kube.put(made)
    for place in (("default", "digits"), ("team", "bert"), ("team", "other")):
        labels = {job_names.LABEL_MANAGED: "true", job_names.LABEL_JOB: place[1]}
        meta = {"name": f"{place[1]}-0", "namespace": place[0], "uid": f"p-{place}", "labels": labels}
        kube.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"phase": "Running"}})
    head, *lines = run("status", "-A").output.splitlines()
    assert head.split()[:2] == ["NAMESPACE", "NAME"]
    assert [line.split()[:2] for line in lines] == [["alpha", "zeta"], ["default", "digits"], ["team", "bert"]]
    assert "NAMESPACE" not in run("status").output
    shown = json.loads(run("status", "-A", "-o", "json").output)
    assert [one["namespace"] for one in shown] == ["alpha", "default", "team"]
    refused = run("status", "digits", "-A")
    assert refused.exit_code == 2 and "leave NAME out" in refused.output


def test_the_namespace_is_the_contexts(kube: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = [
        {"name": "mine", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        {"name": "bare", "context": {"cluster": "c", "user": "u"}},
    ]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({
        "contexts": contexts, "current-context": "mine", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://x"}}],
    }))  # fmt: skip
    kube.put(elsewhere("team", "bert"))
    assert "bert" in run("status", "--kubeconfig", str(path)).output
    assert "bert" in run("status", "bert", "--kubeconfig", str(path)).output
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert "bert" in run("status").output and "bert" in run("status", "--context", "mine").output
    assert run("status", "--context", "bare").output == "no training jobs in namespace default\n"
    assert run("status", "-n", "none").output == "no training jobs in namespace none\n"
    path.write_text("no kubeconfig")
    assert run("status").output == "no training jobs in namespace default\n"


def test_in_a_pod_the_namespace_is_the_pods(kube: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setattr(credentials, "IN_POD", tmp_path)
    assert credentials.namespace_of() == "default"
    (tmp_path / "namespace").write_text("team\n")
    assert credentials.namespace_of() == "team"


def test_status_watch_ends_with_the_job(kube: FakeKube) -> None:
    its_job, its_workload = story()
    its_job["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
    kube.put(its_job)
    kube.put(its_workload)
    assert "Succeeded" in run("status", "digits", "-w").output


def pod(name: str, uid: str, started: bool = True) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "uid": uid, "labels": {job_names.LABEL_JOB: "digits"}}
    state = {"running": {}} if started else {"waiting": {"reason": "PodInitializing"}}
    statuses = {"containerStatuses": [{"name": "train", "state": state}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": statuses}


def test_logs_of_all_pods_and_of_one_rank(kube: FakeKube) -> None:
    kube.put(story()[0])
    for number, lines in enumerate((["launcher up", "[rank 0] step 1"], ["[rank 1] step 1", "[rank 10] x"])):
        kube.put(pod(f"digits-{number}", f"p{number}"))
        kube.logs["default", f"digits-{number}", "train"] = lines
    kube.put(pod("digits-2", "p2", started=False))
    assert run("logs", "digits").stdout.splitlines() == [
        "launcher up",
        "[rank 0] step 1",
        "[rank 1] step 1",
        "[rank 10] x",
    ]
    assert run("logs", "digits", "--rank", "1").stdout == "[rank 1] step 1\n"
    assert run("logs", "nobody").exit_code == 2


def test_logs_follow_goes_on_until_the_job_has_ended(kube: FakeKube) -> None:
    its_job = story()[0]
    kube.put(its_job)
    kube.put(pod("digits-0-old", "p0"))
    kube.logs["default", "digits-0-old", "train"] = ["[rank 0] step 1"]

    def second_attempt(namespace: str, name: str, *rest: Any, **more: Any) -> Any:
        if name == "digits-0-old":  # while it is read, the pod is replaced and the job ends
            kube.put(pod("digits-0-new", "p1"))
            kube.logs["default", "digits-0-new", "train"] = ["[rank 0] step 2"]
            kube.set_status(JOB, "default", "digits", {"conditions": [{"type": "Complete", "status": "True"}]})
        return iter(kube.logs[namespace, name, "train"])

    kube.pod_logs = second_attempt  # type: ignore[method-assign,assignment]
    assert run("logs", "digits", "--follow").stdout.splitlines() == ["[rank 0] step 1", "[rank 0] step 2"]


def test_delete(kube: FakeKube) -> None:
    run(*GOOD, *COMMAND)
    assert run("delete", "digits", "--wait").output == "job default/digits deleted\n"
    assert kube.find(JOB, "default", "digits") is None and kube.find(SERVICE, "default", "digits") is None
    assert run("delete", "digits").exit_code == 2


def test_durations_and_steps() -> None:
    assert tables.steps(attempt()) == "-" == tables.steps(attempt(first_step=0, ended_by="Finished"))
    assert tables.steps(attempt(first_step=3, first_step_at=101.0)) == "3-"
    assert tables.steps(attempt(first_step=3, last_step=9, first_step_at=101.0, ended_by="Preempted")) == "3-9"


def test_an_attempt_without_steps_shows_none() -> None:
    """A shell loop, or any program that moves before its first step."""
    assert tables.steps(attempt(first_step=0, running_at=101.0)) == "-"
    assert tables.steps(attempt(first_step=0, last_step=-1, running_at=101.0, ended_by="Migrated")) == "-"
    assert tables.steps(attempt(first_step=8, last_step=7, running_at=101.0)) == "-"


def test_how_long_an_attempt_had_its_quota() -> None:
    assert tables.seconds(attempt(released_at=112.25)) == "12.2 s" and tables.seconds(attempt()) is None
    assert "Attempt" not in tables.detail(summarise(job(suspend=True), None, []))


def test_submit_with_periodic_checkpoints(kube: FakeKube) -> None:
    assert run(*GOOD, "--checkpoint-every", "500 steps", *COMMAND).exit_code == 0
    (job,) = kube.list(JOB, "default")
    assert job["metadata"]["annotations"][job_names.ANN_CHECKPOINT_EVERY] == "500 steps"
    refused = run(*GOOD, "--checkpoint-every", "daily", *COMMAND)
    assert (refused.exit_code, "checkpoint_every = 'daily': is not an interval" in refused.output) == (2, True)
