"""What a shell sees of singularityctl: completion, widths, formats, exit codes, logs with their gaps."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from kueue_samples import attempt, cluster, job, saved, workload

from kueue_integration import cli
from kueue_integration.cli import common, follow, logs, status, tables
from kueue_integration.contract import job_names
from kueue_integration.errors import SpecError, Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB, POD

RUNS = (("QuotaReserved", "True", "QuotaReserved", ""), ("Admitted", "True", "Admitted", ""))


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    fake = cluster()
    for module in (common, status, logs):
        monkeypatch.setattr(module, "open_cluster", lambda kubeconfig, context: fake)
    monkeypatch.setattr(follow, "_LOOK_S", 0.02)
    return fake


def run(*arguments: str, **env: str) -> Result:
    return CliRunner(env=env).invoke(cli.main, [*arguments], prog_name="singularityctl")


def complete(*words: str) -> list[str]:
    """What the shell's script would be told for the last of `words`."""
    line = " ".join(("singularityctl", *words))
    said = run(_SINGULARITYCTL_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)))
    return [item.partition(",")[2] for item in said.stdout.splitlines() if item]


def pod(name: str, number: int) -> dict[str, Any]:
    meta = {
        "name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {job_names.LABEL_JOB: "digits"},
        "annotations": {job_names.ANN_ATTEMPT: str(number)},
    }  # fmt: skip
    statuses = {"containerStatuses": [{"name": "train", "state": {"running": {}}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": statuses}


def every_command() -> list[tuple[str, click.Command]]:
    with click.Context(cli.main) as ctx:
        found = [(name, cli.main.get_command(ctx, name)) for name in cli.main.list_commands(ctx)]
    flat: list[tuple[str, click.Command]] = []
    for name, command in found:
        assert command is not None
        flat.append((name, command))
        if isinstance(command, click.Group) and name != "local":
            flat += [(f"{name} {sub}", inner) for sub, inner in command.commands.items()]
    return flat


@pytest.mark.parametrize("name", [name for name, _ in every_command() if name not in ("local", "demo")])
def test_every_command_explains_itself_with_an_example_in_100_columns(name: str) -> None:
    shown = run(*name.split(), "--help")
    assert shown.exit_code == 0
    assert "Example" in shown.stdout and f"singularityctl {name}" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= tables.WIDTH


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    script = run("completion", shell)
    assert script.exit_code == 0
    assert "_SINGULARITYCTL_COMPLETE" in script.stdout and "singularityctl" in script.stdout
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script.stdout, text=True, timeout=120).returncode == 0
    assert run("completion", "tcsh").exit_code == 2


def test_completion_of_commands_options_and_jobs(kube: FakeKube) -> None:
    kube.put(job())
    other = job()
    kube.put({**other, "metadata": {**other["metadata"], "name": "digits-2", "uid": "u-2"}})
    kube.put({**other, "metadata": {**other["metadata"], "name": "elsewhere", "namespace": "team", "uid": "u-3"}})
    assert "checkpoints" in complete("check")
    assert "--follow" in complete("logs", "--fo")
    assert complete("status", "dig") == ["digits", "digits-2"]
    assert complete("checkpoints", "verify", "dig") == ["digits", "digits-2"]
    assert complete("logs", "-n", "team", "") == ["elsewhere"]
    kube.fail_next("list", JOB, Unreachable("no answer"))
    assert complete("status", "dig") == []


def test_tables_fit_whatever_is_long(kube: FakeKube) -> None:
    long = job(history=[attempt(flavor="f" * 60, ended_by="Preempted", preempted_by="p" * 200, note="n" * 300)])
    long["metadata"] |= {"name": "n" * 52}
    long["metadata"]["labels"][job_names.KUEUE_QUEUE_LABEL] = "q" * 63
    kube.put(long)
    kube.put(workload(("QuotaReserved", "False", "Pending", "m" * 500)))
    listed = run("status").stdout
    assert max(map(len, listed.splitlines())) <= tables.WIDTH
    assert "Preempted" in listed and "nnnn" in listed and "qqqq" in listed and "waits for" in listed
    detail = run("status", "n" * 52).stdout
    assert max(map(len, detail.splitlines())) <= tables.WIDTH


def test_a_table_cuts_the_widest_columns_first() -> None:
    shown = tables.table(["A", "B", "C"], [["short", "b" * 90, "c" * 30]], 60).splitlines()[1]
    assert shown == f"short  {'b' * 25}…  {'c' * 24}…"
    assert tables.table(["A", "B", "C"], [["short", "b" * 90, "c" * 9]], 60).splitlines()[1].endswith("b…  ccccccccc")
    assert tables.table(["A", "B"], [["x", None]]) == "A  B\nx  -"
    many = tables.table(["H"] * 20, [["v" * 20] * 20], 100)
    assert max(map(len, many.splitlines())) <= 100


def test_formats_of_status_say_the_same(kube: FakeKube) -> None:
    kube.put(job(history=[attempt(first_step=0, first_step_at=101.0)], checkpoint=saved()))
    kube.put(workload(*RUNS))
    as_json = json.loads(run("status", "digits", "-o", "json").stdout)
    assert yaml.safe_load(run("status", "digits", "-o", "yaml").stdout) == as_json
    assert (
        yaml.safe_load(run("status", "-o", "yaml").stdout)
        == [as_json]
        == json.loads(run("status", "-o", "json").stdout)
    )
    wide = run("status", "-o", "wide").stdout
    assert "CHECKPOINT" in wide and "digits-a1-g1" in wide and "job-digits-1a2b3" in wide


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0), (["status"], 0), (["status", "nobody"], 2), (["status", "digits", "-o", "xml"], 2),
        (["logs", "digits", "--since", "soon"], 2), (["logs", "digits", "--rank", "1", "--all-ranks"], 2),
        (["logs", "digits", "--tail", "-1"], 2), (["nonsense"], 2), (["status", "--kubeconfig", "/nowhere"], 0),
    ],
)  # fmt: skip
def test_exit_codes(kube: FakeKube, arguments: list[str], code: int) -> None:
    kube.put(job())
    assert run(*arguments).exit_code == code


def test_no_cluster_exits_3() -> None:
    refused = run("status", "--kubeconfig", "/nowhere/kubeconfig")
    assert refused.exit_code == 3 and "no cluster to talk to" in refused.stderr


def test_logs_of_ranks_only_and_what_is_gone(kube: FakeKube) -> None:
    past = [attempt(1, ended_by="Preempted"), attempt(2, ended_by="Preempted"), attempt(3)]
    kube.put(job(history=past))
    kube.put(pod("digits-0-c", 3))
    kube.logs["default", "digits-0-c", "train"] = ["launcher up", "[rank 0] a", "[rank 1] b", "[rank 0] c"]
    shown = run("logs", "digits", "--all-ranks")
    assert shown.stdout.splitlines() == ["[rank 0] a", "[rank 1] b", "[rank 0] c"]
    assert shown.stderr == "singularityctl: lines of attempts 1-2 are not shown: the pods are gone\n"
    assert run("logs", "digits", "--tail", "1").stdout == "[rank 0] c\n"


def test_follow_tells_of_attempts_that_it_never_saw(kube: FakeKube) -> None:
    kube.put(job(history=[attempt(1, ended_by="Preempted"), attempt(2)]))
    kube.put(pod("digits-0-b", 2))
    kube.logs["default", "digits-0-b", "train"] = ["[rank 0] two"]
    kube.logs["default", "digits-0-d", "train"] = ["[rank 0] four"]

    def read(namespace: str, name: str, *rest: Any, **more: Any) -> Any:
        if name == "digits-0-b":  # while it is read, attempt 3 comes and goes, and attempt 4 ends the job
            kube.delete(POD, "default", "digits-0-b")
            kube.put(pod("digits-0-d", 4))
            past = [attempt(n, ended_by="Preempted") for n in (1, 2, 3)]
            kube.put(job(("Complete", "True"), history=[*past, attempt(4, ended_by="Finished")]))
        return iter(kube.logs[namespace, name, "train"])

    kube.pod_logs = read  # type: ignore[method-assign,assignment]
    shown = run("logs", "digits", "-f")
    assert shown.stdout.splitlines() == ["[rank 0] two", "[rank 0] four"]
    assert "attempt 1 may be missing: it had ended before" in shown.stderr
    assert "attempt 3 may be missing: its pods came and went" in shown.stderr
    assert "attempt 2" not in shown.stderr and "attempt 4" not in shown.stderr


def test_follow_opens_a_broken_stream_again_and_says_so(kube: FakeKube) -> None:
    kube.put(job(("Complete", "True"), history=[attempt(1, ended_by="Finished")]))
    kube.put(pod("digits-0-a", 1))
    asked: list[float | None] = []

    def read(*rest: Any, since_s: float | None = None, **more: Any) -> Any:
        asked.append(since_s)
        yield f"[rank 0] {len(asked)}"
        if len(asked) == 1:
            raise Unreachable("the stream broke off")

    kube.pod_logs = read  # type: ignore[method-assign,assignment]
    shown = run("logs", "digits", "-f", "--since", "10m")
    assert shown.stdout.splitlines() == ["[rank 0] 1", "[rank 0] 2"]
    assert "may be missing or repeated" in shown.stderr
    assert asked[0] == 600.0 and asked[1] is not None and asked[1] >= 1.0


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1.5m", 90), ("7", 7)])
def test_durations(text: str, seconds: float) -> None:
    assert logs.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "soon", "-5s", "5y"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(SpecError, match="is not a time span"):
        logs.duration(text)
