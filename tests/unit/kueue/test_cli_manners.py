"""What whoever knows kubectl expects of `singularityctl`: several names, labels, outputs, options in any place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from kueue_samples import cluster
from test_verbs_ask import running

from kueue_integration import cli
from kueue_integration.cli import common, delete, formats, status, verbs, version
from kueue_integration.contract import job_names
from kueue_integration.errors import Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB
from kueue_integration.requests import user_requests
from singularity_proxy.protocol import VERSION


def named(name: str, namespace: str = "default", ended: bool = False, **labels: str) -> dict[str, Any]:
    made = running()[0] if isinstance(running(), tuple) else running()
    meta = {**made["metadata"], "name": name, "namespace": namespace, "uid": f"u-{namespace}-{name}"}
    meta["labels"] = {**meta["labels"], job_names.LABEL_JOB: name, **labels}
    state = {"conditions": [{"type": "Complete", "status": "True"}]} if ended else made["status"]
    return {**made, "metadata": meta, "status": state}


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    jobs = (named("a", team="x"), named("b", team="x"), named("c"), named("d", ended=True, team="x"))
    fake = cluster(*jobs, named("e", "far", team="x"))
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")
    for module in (common, status, delete, verbs, version):
        monkeypatch.setattr(module, "open_cluster", lambda kubeconfig, context: fake)
    return fake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, list(arguments))


def asked(kube: FakeKube) -> set[str]:
    """Who has a request to pause."""
    found = ((j["metadata"]["name"], user_requests.asked(j, user_requests.CHANGE)) for j in kube.list(JOB))
    return {name for name, request in found if request is not None and request.op == "pause"}


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["a", "b", "a"], {"a", "b"}),
        (["-l", "team=x"], {"a", "b"}),  # d has ended
        (["-l", "team=x", "-A"], {"a", "b", "e"}),
        (["-n", "far", "e"], {"e"}),
    ],
)
def test_a_verb_takes_several_names_or_labels(kube: FakeKube, arguments: list[str], wanted: set[str]) -> None:
    done = run("pause", *arguments)
    assert done.exit_code == 0, done.output
    assert asked(kube) == wanted


def test_one_that_is_refused_keeps_no_other_from_it(kube: FakeKube) -> None:
    done = run("pause", "nobody", "a")
    assert done.exit_code == 2 and asked(kube) == {"a"}
    assert "error: default/nobody: no training job 'nobody'" in done.output


@pytest.mark.parametrize("arguments", [[], ["a", "-l", "team=x"], ["a", "-A"], ["-A"]])
def test_who_is_meant_must_be_said_once(kube: FakeKube, arguments: list[str]) -> None:
    for command in ("pause", "delete"):
        done = run(command, *arguments)
        assert done.exit_code == 2 and "Usage:" in done.output
    assert asked(kube) == set() and len(kube.list(JOB)) == 5


def test_labels_that_no_job_has_are_told(kube: FakeKube) -> None:
    done = run("pause", "-l", "team=y")
    assert done.exit_code == 0 and "no training job with labels team=y" in done.output


def test_delete_takes_those_that_have_ended_too(kube: FakeKube) -> None:
    done = run("delete", "-l", "team=x")
    assert done.exit_code == 0, done.output
    assert [j["metadata"]["name"] for j in kube.list(JOB)] == ["c", "e"]


def test_status_of_some(kube: FakeKube) -> None:
    assert [line.split()[0] for line in run("status", "c", "a").output.splitlines()] == ["NAME", "c", "a"]
    assert run("status", "-l", "team=x", "-o", "name").output.split() == ["a", "b", "d"]
    assert run("status", "-A", "-o", "name").output.split() == [
        "default/a",
        "default/b",
        "default/c",
        "default/d",
        "far/e",
    ]
    assert run("status", "a", "nobody").exit_code == 2


def test_json_and_yaml_say_how_to_read_them(kube: FakeKube) -> None:
    one = json.loads(run("status", "a", "-o", "json").output)
    assert (one["apiVersion"], one["kind"], one["name"]) == (formats.API_VERSION, "JobStatus", "a")
    listed = yaml.safe_load(run("status", "a", "b", "-o", "yaml").output)
    assert [(each["kind"], each["name"]) for each in listed] == [("JobStatus", "a"), ("JobStatus", "b")]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["a", "-o", "jsonpath={.name}"], "a\n"),
        (["a", "-o", 'jsonpath={.namespace}/{.name}{"\\n"}{.workers}'], "default/a\n4\n"),
        (["a", "c", "-o", "jsonpath={.items[*].name}"], "a c\n"),
        (["a", "c", "-o", "jsonpath={.items[1].name}"], "c\n"),
        (["a", "-o", "jsonpath={['name']}{.nothing.there}"], "a\n"),
    ],
)
def test_jsonpath(kube: FakeKube, arguments: list[str], shown: str) -> None:
    done = run("status", *arguments)
    assert (done.exit_code, done.output) == (0, shown)


@pytest.mark.parametrize("output", ["jsonpath={range .items}", "jsonpath={..name}", "xml"])
def test_an_output_that_is_not_known(kube: FakeKube, output: str) -> None:
    done = run("status", "-o", output)
    assert done.exit_code == 2 and ("not supported" in done.output or "is not one of table, wide" in done.output)


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its name."""
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        yield " ".join((*above, name)), found
        if isinstance(found, click.Group):
            yield from commands(found, *above, name)


def test_every_command_that_prints_data_takes_the_same_outputs() -> None:
    """`submit` prints one line: it has nothing for a template."""
    options = {name: p for name, c in commands(cli.main) for p in c.params if "-o" in p.opts and name != "submit"}
    assert set(options) >= {"status", "top", "report", "trace", "doctor", "version", "checkpoints ls"}
    for name, option in options.items():
        assert isinstance(option.type, formats.Output), name
        assert {"json", "yaml"} <= set(option.type.words), name


@pytest.mark.parametrize(
    "arguments",
    [
        ["-nfar", "status", "e", "-o", "name"],
        ["-n", "far", "status", "e", "-o", "name"], ["--namespace=far", "status", "e", "-o", "name"],
        ["status", "-n", "far", "e", "-o", "name"], ["status", "e", "-o", "name", "-n", "far"],
        ["--kubeconfig", "/nowhere/kubeconfig", "-n", "far", "status", "-o", "name", "e"],
    ],
)  # fmt: skip
def test_options_stand_where_one_likes(kube: FakeKube, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.output) == (0, "e\n")


def test_options_before_the_verb_reach_a_verb_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = cli._options_last(["-n", "far", "checkpoints", "ls", "e"])
    assert moved == ["checkpoints", "ls", "-n", "far", "e"]
    assert cli._options_last(["--help"]) == ["--help"] and cli._options_last(["-n", "far"]) == ["-n", "far"]
    assert cli._options_last(["submit", "--", "-n", "1"]) == ["submit", "--", "-n", "1"]


def test_a_list_is_watched_until_those_that_are_named_have_ended(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(kube: FakeKube, namespace: str | None) -> None:
        kube.set_status(JOB, "default", "a", {"conditions": [{"type": "Complete", "status": "True"}]})

    monkeypatch.setattr(status.library, "until_any_change", ends)
    done = run("status", "a", "d", "-w")
    assert done.exit_code == 0
    assert [line.split()[1] for line in done.output.splitlines() if line.startswith("a ")] == ["Submitted", "Succeeded"]


def deployment(namespace: str, name: str, image: str, **labels: str) -> dict[str, Any]:
    meta = {"namespace": namespace, "name": name, "labels": {key.replace("_", "/"): v for key, v in labels.items()}}
    containers = {"spec": {"template": {"spec": {"containers": [{"image": image}]}}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, **containers}


def test_version_of_both_sides(kube: FakeKube) -> None:
    said = {"app.kubernetes.io_version": "0.1.7"}
    kube.put(deployment(job_names.SYSTEM_NAMESPACE, job_names.CONTROLLER_NAME, "r/c:dev", **said))
    kube.put(deployment(*version.KUEUE, "registry.example:5000/kueue:v0.19.2@sha256:abc"))
    kube.paths["/version"] = {"gitVersion": "v1.36.0"}
    found = json.loads(run("version", "-o", "json").output)["versions"]
    assert found == {"client": VERSION, "controller": "0.1.7", "kueue": "v0.19.2", "kubernetes": "v1.36.0"}
    assert run("version", "--client").output.split() == ["Client:", VERSION]


def test_without_a_cluster_the_version_of_the_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(kubeconfig: str | None, context: str | None) -> FakeKube:
        raise Unreachable("no answer")

    monkeypatch.setattr(version, "open_cluster", away)
    done = run("version")
    assert done.exit_code == 1 and VERSION in done.output and "no version of the cluster: no answer" in done.output


def test_kubectl_finds_its_plugin() -> None:
    scripts = {point.name: point.value for point in entry_points(group="console_scripts")}
    assert scripts.get("kubectl-singularity", scripts["singularityctl"]) == scripts["singularityctl"]
