"""`singularityctl top` at a shell: width, formats, watching, errors and their exit codes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import pytest
import yaml
from click.testing import CliRunner, Result
from module_clock import set_clock
from overview_scene import cluster_queue, local_queue, planner_event, record, training, workload

from kueue_integration import cli
from kueue_integration.cli import formats, top, top_text
from kueue_integration.contract import job_names
from kueue_integration.errors import Forbidden, KubeError, NotFound, Unreachable
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CLUSTER_QUEUE, LOCAL_QUEUE, Object
from kueue_integration.overview.look import look
from kueue_integration.overview.report import Overview, overview
from kueue_integration.spec.platform_config import PlatformConfig, to_json

CPU = ("ondemand", "cpu")
LONG = "a-name-that-is-as-long-as-names-of-kubernetes-may-be-and-that-no-table-has-room-for"
NEEDS = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor ondemand, 1 more needed"


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    now = time.time()
    runs = record(admitted_at=now - 100, running_at=now - 60, first_step_at=now - 50, first_step=0, last_step=9)
    fake = FakeKube(
        cluster_queue("a", {CPU: "2", ("ondemand", "memory"): "64Gi"}, "c"), local_queue("training", "a"),
        training("digits", [runs]), workload("digits", holds=("a", {CPU: "1500m"}), since=now - 100),
        workload("later", since=now - 30, why=("WaitingForQuota", NEEDS)),
    )  # fmt: skip
    monkeypatch.setattr(top, "open_cluster", lambda kubeconfig, context: fake)
    return fake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["top", *arguments], prog_name="singularityctl")


def row(shown: str, *begin: str) -> list[str]:
    """Words of the line that begins with these."""
    lines = [line.split() for line in shown.splitlines()]
    return next(words for words in lines if words[: len(begin)] == list(begin))


def test_the_tables(kube: FakeKube) -> None:
    shown = run()
    assert shown.exit_code == 0
    assert row(shown.stdout, "cohort", "c", "ondemand", "cpu")[4:] == ["2", "0", "1500m", "500m", "500m", "1500m", "0"]
    assert row(shown.stdout, "a", "ondemand", "memory")[3:5] == ["64Gi", "0"]
    assert row(shown.stdout, "digits", "Job", "default", "a")[4:8] == ["10", "1", "ondemand:", "1500m"]
    assert "needs 1 cpu more in flavor ondemand" in shown.stdout and "WaitingForQuota" in shown.stdout
    assert row(shown.stdout, "default") == ["default", "1", "1", "ondemand:", "1500m", "cpu"]
    assert row(shown.stdout, "all")[1] == "50.0%" and row(shown.stdout, "namespace", "default")[2] == "50.0%"
    assert "1 ClusterQueue, 1 cohort; 1 hold quota, 1 wait; goodput 50%" in shown.stdout


def planned(job: str, ago: float, reason: str, message: str) -> Object:
    return planner_event(job, time.time() - ago, message, reason=reason)


def test_what_the_planner_did_and_proposes_is_shown_newest_first(kube: FakeKube) -> None:
    assert "PLANNER" not in run().stdout
    kube.put(planned("digits", 300, job_names.EVENT_PLANNER_DONE, "its turn is over"))
    kube.put(planned("digits", 60, job_names.EVENT_PLANNER_PROPOSAL, "another reason"))
    kube.put(planned("elsewhere", 1, job_names.EVENT_PLANNER_DONE, "a third one"))
    foreign = planned("digits", 1, "Created", "pod made")
    foreign["metadata"].update(name="foreign", labels={})
    kube.put(foreign)
    shown = run().stdout
    lines = [line for line in shown[shown.index("PLANNER") :].splitlines()[1:] if line]
    assert [line.split()[0] for line in lines[:3]] == ["elsewhere", "digits", "digits"]
    assert "dry run" in lines[1] and "another reason" in lines[1] and "done" in lines[2]
    assert "pod made" not in shown
    steps = json.loads(run("-o", "json", "--queue", "a").stdout)["planner"]
    assert [(s["job"], s["policy"], s["action"], s["done"]) for s in steps] == [
        ("digits", "timeSharing", "pause", False), ("digits", "timeSharing", "pause", True),
    ]  # fmt: skip
    whole = yaml.safe_load(run("-o", "yaml").stdout)
    assert (whole["apiVersion"], whole["kind"]) == (formats.API_VERSION, "Overview")
    assert run("-o", "jsonpath={.planner[*].action}", "--queue", "a").stdout == "pause pause\n"


def test_cost_and_promised_device_time_have_lines_where_there_is_a_price_and_a_promise(kube: FakeKube) -> None:
    shown = run().stdout
    assert "COST" not in shown and "DEVICE TIME OF" not in shown
    now = time.time()
    promised = PlatformConfig("agent", "https://controller", "ca", tiers={"high": 0.5})
    meta = {"name": job_names.PLATFORM_CONFIGMAP, "namespace": job_names.SYSTEM_NAMESPACE}
    kube.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"platform.json": to_json(promised)}})
    paid = record(admitted_at=now - 7200, first_step_at=now - 7100, first_step=0, last_step=99, released_at=now - 3600,
                  price=3.0)  # fmt: skip
    job = training("digits", [paid])
    job["metadata"]["labels"][job_names.KUEUE_PRIORITY_LABEL] = "high"
    kube.put(job)
    shown = run().stdout
    costs = shown[shown.index("COST") :]
    assert row(costs, "all")[1:] == ["3", "0.03", "100"] and row(costs, "queue", "a")[2:] == ["3", "0.03", "100"]
    assert row(costs, "namespace", "default")[2] == "3"
    assert row(shown[shown.index("DEVICE TIME OF") :], "default", "training")[2] == "1"


def test_no_line_is_wider_than_120_columns_and_no_text_moves_the_cursor(kube: FakeKube) -> None:
    kube.put(cluster_queue(LONG, {("a-flavor-with-quite-a-long-name", "nvidia.com/gpu"): "1024"}, LONG))
    held = {("a-flavor-with-quite-a-long-name", "nvidia.com/gpu"): "1024"}
    kube.put(workload(LONG, namespace=LONG, holds=(LONG, held), pods=1024, priority=2**31 - 1))
    kube.put(workload(f"{LONG}-2", namespace=LONG, why=("Pending", "\x1b[2Jhow\nlong" * 50)))
    kube.put(training(LONG, annotations={job_names.ANN_HISTORY: "\x1b[31m" * 20}))
    shown = run().stdout
    assert max(map(len, shown.splitlines())) <= top_text.WIDTH == 120
    assert "\x1b" not in shown and f"annotation {job_names.ANN_HISTORY}" not in shown
    assert "1 cannot be read:" in shown and job_names.ANN_HISTORY in shown


def test_long_tables_are_cut_and_say_so(kube: FakeKube) -> None:
    for number in range(30):
        kube.put(workload(f"w{number}"))
    shown = run("--rows", "3").stdout
    assert "(and 28 more: --rows, or -o json)" in shown
    assert len(json.loads(run("-o", "json").stdout)["waiting"]) == 31


def test_an_empty_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "open_cluster", lambda kubeconfig, context: FakeKube())
    shown = run()
    assert shown.exit_code == 0 and "0 ClusterQueues, 0 cohorts; 0 hold quota, 0 wait" in shown.stdout
    assert "QUOTA" not in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--queue", "x"), 2, "queue = 'x': there is no ClusterQueue and no LocalQueue of this name"),
        (("--watch", "0.1"), 2, "0.1 is not in the range x>=1"), (("--rows", "0"), 2, "0 is not in the range"),
        (("-o", "xml"), 2, "'xml' is not one of"),
    ],
)  # fmt: skip
def test_bad_input(kube: FakeKube, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = run(*arguments)
    assert done.exit_code == code and words in done.stderr


def test_no_kueue_and_no_answer_are_errors_of_the_cluster(kube: FakeKube) -> None:
    kube.fail_next("list", CLUSTER_QUEUE, NotFound("no such resource", 404))
    done = run()
    assert done.exit_code == 3 and "Kueue is not here" in done.stderr and done.stdout == ""
    kube.fail_next("list", CLUSTER_QUEUE, Unreachable("connection refused"))
    done = run()
    assert done.exit_code == 3 and "connection refused" in done.stderr


def test_a_missing_right_is_named_below_the_tables(kube: FakeKube) -> None:
    kube.fail_next("list", CLUSTER_QUEUE, Forbidden("forbidden", 403))
    done = run()
    assert done.exit_code == 0 and "HOLDS QUOTA" in done.stdout
    assert "The right to list clusterqueues.kueue.x-k8s.io cluster-wide is missing" in " ".join(done.stdout.split())


# --- watching -------------------------------------------------------------------------------------------------------
class Pauses:
    """Stands for `time.sleep`: notes the seconds, and Ctrl-C after so many of them."""

    def __init__(self, rounds: int) -> None:
        self.seconds: list[float] = []
        self._rounds = rounds

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self._rounds:
            raise KeyboardInterrupt


def test_watching_without_a_terminal_prints_plain_reports_until_ctrl_c(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses(3)
    set_clock(monkeypatch, top, sleep=pauses)
    done = run("--watch", "2")
    assert done.exit_code == 0 and pauses.seconds == [2.0, 2.0, 2.0]
    assert done.stdout.count("1 hold quota, 1 wait") == 3 and "\x1b" not in done.stdout


def test_watching_in_json_is_a_report_a_line(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(2)
    set_clock(monkeypatch, top, sleep=pauses)
    done = run("--watch", "-o", "json")
    assert pauses.seconds == [top.EVERY_S] * 2
    assert [len(json.loads(line)["holders"]) for line in done.stdout.splitlines()] == [1, 1]


def test_watching_rides_out_an_api_server_that_does_not_answer(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(4)
    set_clock(monkeypatch, top, sleep=pauses)
    for _ in range(2):
        kube.fail_next("list", LOCAL_QUEUE, Unreachable("connection refused"))
    done = run("--watch", "5")
    assert done.exit_code == 0 and pauses.seconds == [5.0, 10.0, 5.0, 5.0]
    assert done.stderr.count("does not answer, trying again in") == 2 and "connection refused" in done.stderr
    assert done.stdout.count("1 hold quota") == 2


def test_a_terminal_is_drawn_anew(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_clock(monkeypatch, top, sleep=Pauses(2))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    cli.main(["top", "-w"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert shown.count(top.CLEAR) == 2 and shown.startswith(top.CLEAR)


def test_failures_in_a_row_lengthen_the_pause_and_one_that_stays_is_raised() -> None:
    waits: list[float] = []

    def failing() -> Iterator[KubeError]:
        yield from [Unreachable("no answer")] * 7
        yield Forbidden("no", 403)

    errors = failing()

    def once() -> Overview:
        raise next(errors)

    with pytest.raises(Forbidden):
        list(top.looks(once, 5.0, waits.append))
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_a_good_look_ends_the_long_pauses() -> None:
    waits: list[float] = []
    told = iter([False, False, True, False, True])
    good = overview(look(FakeKube(), 0.0))

    def once() -> Overview:
        if not next(told):
            raise Unreachable("no answer")
        return good

    with pytest.raises(RuntimeError):  # the generator's own words for the end of `told`
        list(top.looks(once, 5.0, waits.append))
    assert waits == [5.0, 10.0, 5.0, 5.0, 5.0]
