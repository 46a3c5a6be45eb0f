"""Values that must not stand in a Job travel in its own Secret: variables, words of the command, files."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kueue_samples import PLATFORM, cluster, spec
from test_cli_time_travel import NS, kube, made, refs, run, store, with_store

from kueue_integration import cli
from kueue_integration.contract import job_names
from kueue_integration.errors import ConflictError, Forbidden, SpecError
from kueue_integration.jobs import backup, lifecycle, start_point, told
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import ADMISSION_CHECK, CLUSTER_QUEUE, JOB, SECRET, Object
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec.secret_text import SecretText, has_secrets, marked
from kueue_integration.spec.train_spec import TrainSpec
from kueue_integration.spec.validate import validate
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import CheckpointRef
from singularity_proxy.store import Store

__all__ = ["kube", "made", "refs", "store"]
WORD = 'hunter2"\\\u00e9 $(HOME)'
COMMAND = ["python3", "train.py", "--token", WORD, "--note", "$(HOME) $x"]


def hidden(word: str = WORD, **changes: Any) -> TrainSpec:
    """A spec with `word` wherever it can be."""
    variable = [{"name": "OTHER", "value": f"x{word}"}, {"name": "PLAIN", "value": "p"}]
    values = {
        "env": {"KEY": word, "A": "b"}, "command": [*COMMAND[:3], word, *COMMAND[4:]],
        "files": {"train.py": "print()", "a/args.json": f"[{word}]"},
        "pod_override": {"spec": {"containers": [{"name": "train", "env": variable}]}},
    }  # fmt: skip
    return marked(spec(**(values | changes)), lambda text: word in text)


def objects(wanted: TrainSpec) -> dict[str, Object]:
    return {obj["kind"]: obj for obj in render(wanted, PLATFORM)}


def started(pod: Object, secrets: dict[str, Object], files: dict[str, Object]) -> tuple[dict[str, str], dict[str, str]]:
    """Environment and files of the training container, as the kubelet makes them."""
    env: dict[str, str] = {}
    for entry in pod["containers"][0]["env"]:
        ref = (entry.get("valueFrom") or {}).get("secretKeyRef")
        if ref is not None:
            env[entry["name"]] = base64.b64decode(secrets[ref["name"]]["data"][ref["key"]]).decode()
        elif "value" in entry:
            env[entry["name"]] = re.sub(
                r"\$(?:\$|\((\w+)\))",
                lambda found: env.get(found[1], found[0]) if found[1] else "$",
                entry["value"],
            )
    (source,) = (v for v in pod["volumes"] if v["name"] == "singularity-source")
    texts = {}
    for part in (source.get("projected") or {"sources": [source]})["sources"]:
        for item in (part.get("secret") or part.get("configMap"))["items"]:
            if "secret" in part:
                text = base64.b64decode(secrets[part["secret"]["name"]]["data"][item["key"]]).decode()
            else:
                text = files[part["configMap"]["name"]]["data"][item["key"]]
            texts[item["path"]] = text
    return env, texts


def test_the_pod_gets_what_was_meant_and_the_job_names_it_only() -> None:
    made = objects(hidden())
    assert list(made) == ["ConfigMap", "Secret", "Service", "Job"]
    for kind in ("ConfigMap", "Job", "Service"):
        assert "hunter2" not in json.dumps(made[kind])
    pod, secret, files = made["Job"]["spec"]["template"]["spec"], made["Secret"], made["ConfigMap"]
    assert secret["immutable"] and secret["metadata"]["labels"] == made["Service"]["metadata"]["labels"]
    env, texts = started(pod, {"digits-secrets": secret}, {"digits-files": files})
    assert json.loads(env[names.ENV_COMMAND]) == COMMAND
    assert (env["KEY"], env["A"], env["OTHER"], env["PLAIN"]) == (WORD, "b", f"x{WORD}", "p")
    assert texts == {"train.py": "print()", "a/args.json": f"[{WORD}]"}


@pytest.mark.parametrize("files", [{}, {"a.txt": WORD}])
def test_without_a_plain_file_there_is_no_config_map(files: dict[str, str]) -> None:
    made = objects(hidden(files=files))
    assert "ConfigMap" not in made and made["Secret"]["data"]


def test_a_job_without_secret_values_is_as_before() -> None:
    plain = marked(spec(), lambda text: False)
    assert render(plain, PLATFORM) == render(spec(), PLATFORM) and not has_secrets(plain)
    assert "Secret" not in objects(spec())


def test_no_message_shows_the_value() -> None:
    wrong = replace(spec(), env={"SINGULARITY_X": SecretText("hunter2"), "B\0": SecretText("hunter2")})
    with pytest.raises(SpecError) as refused:
        validate(wrong)
    assert "hunter2" not in "".join(f"{value!r}" for _, value, _ in refused.value.problems)
    assert "hunter2" not in repr(wrong) and "hunter2" not in str(refused.value)


# --- submit -----------------------------------------------------------------------------------------------------------
def test_the_job_owns_it_and_one_that_is_adopted_gets_what_a_dead_submitter_left_undone() -> None:
    there = cluster()
    done = lifecycle.submit(there, hidden(), PLATFORM)
    secret = there.get(SECRET, "default", "digits-secrets")
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", done.uid)
    there.delete(SECRET, "default", "digits-secrets")
    assert lifecycle.submit(there, hidden(), PLATFORM).adopted
    # What a Job began with stays, as its Service and files do.
    assert lifecycle.submit(there, hidden("another"), PLATFORM).adopted
    assert there.get(SECRET, "default", "digits-secrets")["data"] == secret["data"]


def test_nothing_is_left_where_no_secret_may_be_made() -> None:
    there = cluster()
    there.fail_next("create", SECRET, Forbidden("secrets is forbidden: cannot create resource", 403, "Forbidden"))
    with pytest.raises(Forbidden, match="secrets is forbidden"):
        lifecycle.submit(there, hidden(), PLATFORM)
    assert there.list(JOB) == []


def test_a_secret_of_somebody_else_is_no_part_of_the_job() -> None:
    meta = {"name": "digits-secrets", "namespace": "default"}
    there = cluster({"apiVersion": "v1", "kind": "Secret", "metadata": meta})
    with pytest.raises(ConflictError, match=r"Secret 'digits-secrets' .* is not ours"):
        lifecycle.submit(there, hidden(), PLATFORM)
    assert there.list(JOB) == []


def test_a_queue_of_multikueue_refuses_it_with_what_to_do() -> None:
    there = cluster()
    check = there.get(ADMISSION_CHECK, None, job_names.ADMISSION_CHECK_NAME)
    there.put({**check, "metadata": {"name": "mk"}, "spec": {"controllerName": job_names.MULTIKUEUE_CONTROLLER}})
    checks = {"admissionChecksStrategy": {"admissionChecks": [{"name": "mk"}]}}
    there.patch(CLUSTER_QUEUE, None, "training", {"spec": checks})
    with pytest.raises(SpecError, match="gets no Secret of the job: name a Secret that is there"):
        lifecycle.submit(there, hidden(), PLATFORM)
    lifecycle.submit(there, spec(), PLATFORM)


# --- what comes after -------------------------------------------------------------------------------------------------
def test_a_fork_has_a_secret_of_its_own(kube: FakeKube, store: Store, refs: list[CheckpointRef]) -> None:
    notes = kube.get_job(NS, "digits")["metadata"]["annotations"]
    kube.delete(JOB, NS, "digits")
    lifecycle.submit(kube, hidden(), with_store(store))
    kept = {name: notes[name] for name in (job_names.ANN_CHECKPOINTS, names.ANN_CHECKPOINT)}
    kube.patch(JOB, NS, "digits", {"metadata": {"annotations": kept}})
    done = run("fork", "digits", "--name", "twin")
    assert done.exit_code == 0, done.output
    twin = kube.get_job(NS, "twin")
    assert "digits-secrets" not in json.dumps(twin) and "twin-secrets" in json.dumps(twin)
    before, after = (kube.get(SECRET, NS, f"{name}-secrets") for name in ("digits", "twin"))
    assert after["data"] == before["data"] and after["metadata"]["ownerReferences"][0]["uid"] == twin["metadata"]["uid"]
    assert told.files(kube, twin) == {"train.py": "print()", "a/args.json": f"[{WORD}]"}


def test_another_value_is_no_other_program() -> None:
    """A token that was changed must not keep a training from going on; what a file says is compared."""
    there = cluster()
    lifecycle.submit(there, hidden("one", files={}), PLATFORM)
    job = there.get_job("default", "digits")
    for other in (hidden("two", files={}, name="next"), hidden("one", files={}, name="next")):
        assert start_point._unread(there, job, other, PLATFORM) == ""
    assert start_point._unread(there, job, hidden("two", files={"a": "b"}, name="next"), PLATFORM) == "file a"
    shorter = hidden("two", files={}, name="next", command=["python3", "two"])
    assert start_point._unread(there, job, shorter, PLATFORM) == "command"


def test_a_backup_has_it() -> None:
    there = cluster()
    lifecycle.submit(there, hidden(), PLATFORM)
    saved, left = backup.taken(there, "default")
    assert left == []
    (item,) = saved["items"]
    assert sorted(child["kind"] for child in item["children"]) == ["ConfigMap", "Secret", "Service"]
    fresh = cluster()
    backup.restore(fresh, backup.read(json.dumps(saved)), {})
    made = fresh.get(SECRET, "default", "digits-secrets")
    assert made["data"] == there.get(SECRET, "default", "digits-secrets")["data"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == fresh.get_job("default", "digits")["metadata"]["uid"]


# --- the shell --------------------------------------------------------------------------------------------------------
def test_a_shell_gives_a_value_or_names_its_own_variable(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    options = ("--name", "shell", "--queue", "training", "--secret-env", "MY_TOKEN", "--secret-env", "B=hunter3")
    done = CliRunner().invoke(cli.main, ["submit", *options, "--", "python3", "x.py"])
    assert done.exit_code == 0, done.output
    assert "hunter" not in json.dumps(kube.get_job("default", "shell")) + done.output
    data = kube.get(SECRET, NS, "shell-secrets")["data"]
    found = {key: base64.b64decode(text).decode() for key, text in data.items()}
    assert found == {"train.MY_TOKEN": "hunter2", "train.B": "hunter3"}
    wrong = CliRunner().invoke(cli.main, ["submit", *options, "--secret-env", "NOT_THERE", "--", "python3", "x.py"])
    assert wrong.exit_code != 0 and "is not a variable of yours" in " ".join(wrong.output.split())


def test_what_is_rendered_is_whole_yaml() -> None:
    assert yaml.safe_load_all(yaml.safe_dump_all(render(hidden(), PLATFORM)))
