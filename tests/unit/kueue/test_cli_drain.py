"""`singularityctl drain`: what it prints, which nodes it cordons, and how it exits."""

from __future__ import annotations

from functools import partial

import pytest
from click.testing import CliRunner, Result
from drain_world import World

from kueue_integration import cli
from kueue_integration.cli import drain as command
from kueue_integration.contract import job_names
from kueue_integration.drain import run as loop
from kueue_integration.errors import Forbidden
from kueue_integration.kube.resources import NODE, POD


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(command, "open_cluster", lambda kubeconfig, context: made.kube)
    timed = partial(loop.Drain, clock=lambda: made.now, pause=made.tick)
    monkeypatch.setattr(command, "Drain", timed)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["drain", *arguments])


def cordoned(world: World, name: str = "n1") -> bool:
    return bool(world.kube.get(NODE, None, name)["spec"].get("unschedulable"))


def test_help_has_examples_and_exit_codes() -> None:
    shown = run("--help").output
    assert "singularityctl drain node-7 --dry-run" in shown and "Exit codes:" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_node_is_cordoned_and_emptied(world: World) -> None:
    world.train()
    done = run("n1")
    assert done.exit_code == 0, done.output
    assert "node n1 cordoned" in done.output and cordoned(world) and not cordoned(world, "n2")
    assert "default/digits  is saved while it goes on" in done.output
    assert "JOB             CHECKPOINT    LOST  SECONDS  WHERE" in done.output
    assert "attempt 2 on ondemand (n2)" in done.output
    assert "kubectl drain n1 --ignore-daemonsets --delete-emptydir-data" in done.output.splitlines()[-1]


def test_an_empty_node(world: World) -> None:
    done = run("n1")
    assert (done.exit_code, "no training job had a pod on the nodes" in done.output) == (0, True)
    assert "node n1 was cordoned already" in run("n1").output


def test_no_cordon(world: World) -> None:
    done = run("n1", "--no-cordon")
    assert "it may take new pods, also those of moved jobs" in done.output and not cordoned(world)


def test_what_is_left_is_told_with_a_fix_and_exits_with_1(world: World) -> None:
    world.train("moves")
    world.train("stays", **{job_names.ANN_HOLD: "off"})
    done = run("n1")
    assert done.exit_code == 1
    last = done.output.splitlines()[-3:]
    assert last[0].startswith("left: default/stays: its hold is off") and last[1].startswith("      fix: kubectl annot")
    assert last[2] == "1 of 2 jobs are left"
    assert "attempt 2 on ondemand (n2)" in done.output


def test_a_dry_run_changes_nothing(world: World) -> None:
    assert "no training job has a pod on the nodes" in run("n1", "--dry-run").output
    world.train()
    done = run("n1", "--dry-run")
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "nothing was changed: this was a dry run")
    assert "default/digits  1     n1" in done.output and world.written() == [] and not cordoned(world)
    world.train("stays", **{job_names.ANN_HOLD: "off"})
    done = run("n1", "--dry-run")
    assert done.exit_code == 1 and "left: default/stays: its hold is off" in done.output


@pytest.mark.parametrize("arguments", [("gone",), ("n1", "gone"), ("gone", "--dry-run")])
def test_a_node_that_is_not_there(world: World, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2 and "node = 'gone': is not a node of this cluster" in done.output
    assert world.written() == []


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_without_the_right_nothing_is_changed(world: World, verb: str) -> None:
    world.train()
    world.kube.fail_next(verb, NODE, Forbidden("nodes is forbidden", 403))
    done = run("n1")
    assert done.exit_code == 3 and "get, list and patch on nodes, which an administrator has" in done.output
    assert not cordoned(world) and [r for r in world.written() if r[1] == "Job"] == []


def test_pods_may_not_be_listed(world: World) -> None:
    world.kube.fail_next("list", POD, Forbidden("no", 403))
    done = run("n1", "--dry-run")
    assert done.exit_code == 3 and "name one with -n" in done.output


def test_another_namespace_is_left_alone(world: World) -> None:
    world.train()
    done = run("n1", "-n", "research")
    assert done.exit_code == 0 and "no training job had a pod" in done.output


def test_an_interrupt_still_tells_how_far_it_is(world: World) -> None:
    world.train()

    def interrupt() -> None:
        raise KeyboardInterrupt

    world.events[2] = interrupt
    done = run("n1")
    assert done.exit_code == 1 and "interrupted: what was asked for goes on" in done.output
    assert "left: default/digits: the drain ended before" in done.output


@pytest.mark.parametrize("arguments", [(), ("n1", "--at-once", "0"), ("n1", "--timeout", "0")])
def test_bad_input(world: World, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2
    assert world.written() == []
