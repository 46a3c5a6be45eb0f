"""The commands of the verbs: what they print and how they exit."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result
from test_verbs_ask import answer, cluster, running

from kueue_integration import cli
from kueue_integration.cli import verbs as cli_verbs
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB
from kueue_integration.requests import user_requests, verbs

COMMANDS = {
    "resize": ["--workers", "2"], "migrate": ["--flavor", "spot"], "checkpoint": [], "pause": [], "resume": [],
}  # fmt: skip


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    fake = cluster(running())
    monkeypatch.setattr(cli_verbs, "open_cluster", lambda kubeconfig, context: fake)
    return fake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, list(arguments))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_exit_codes(name: str) -> None:
    shown = run(name, "--help").output
    assert (
        f"singularityctl {name} digits" in shown and "Exit codes:" in shown and "refused: nothing was changed" in shown
    )
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(("name", "more"), COMMANDS.items())
def test_asked_for_without_waiting(kube: FakeKube, name: str, more: list[str]) -> None:
    done = run(name, "digits", *more)
    assert (done.exit_code, done.output) == (0, f"{name} of job default/digits: asked for\n")


@pytest.mark.parametrize("name", ["resize", "migrate", "pause"])
@pytest.mark.parametrize("loses", [False, True])
def test_who_wants_to_lose_work_says_so(kube: FakeKube, name: str, loses: bool) -> None:
    assert run(name, "digits", *COMMANDS[name], *(["--lose-work"] if loses else [])).exit_code == 0
    asked = user_requests.asked(kube.get_job("default", "digits"), user_requests.CHANGE)
    assert asked is not None and asked.lose_work is (True if loses else None)


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1)])
def test_waiting_exits_with_how_it_ended(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    real = verbs.look

    def controller(kube: FakeKube, asked: verbs.Result) -> verbs.Result:
        answer(kube, asked, state, "attempt 2 runs")
        return real(kube, asked)

    monkeypatch.setattr(verbs, "look", controller)
    done = run("resize", "digits", "--workers", "2", "--wait")
    assert done.exit_code == code and f"{state}: attempt 2 runs" in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["resize", "digits", "--workers", "8"], 2, "error: workers = 8: is more than its world size"),
        (["migrate", "digits"], 2, "say where to"),
        (["migrate", "digits", "--flavor", "gold"], 2, "it has: ondemand, spot"),
        (["pause", "nobody"], 2, "no training job 'nobody'"),
        (["resume", "digits", "--wait", "--timeout", "0"], 1, "is the controller running"),
    ],
)
def test_refusals_and_timeouts(kube: FakeKube, arguments: list[str], code: int, text: str) -> None:
    done = run(*arguments)
    assert done.exit_code == code and text in done.output


def test_a_job_that_is_gone_while_waiting(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    real = verbs.look

    def deleted(kube: FakeKube, asked: verbs.Result) -> verbs.Result:
        kube.delete(JOB, "default", "digits")
        return real(kube, asked)

    monkeypatch.setattr(verbs, "look", deleted)
    done = run("pause", "digits", "--wait")
    assert done.exit_code == 1 and "pause gone: the job does not exist any more" in done.output
