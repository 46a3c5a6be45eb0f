"""The table of what may happen to a task: one Job at a time, none left behind, no success that is none.

`docs/operator.md` has the same table in words. All rows of a session are played on one cluster and one Airflow, at the
same time unless they take a part of it away.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from task_rows import TIMEOUT_S, Jobs, Play, Seen, alive

from localcluster.demo.follow import managed_jobs
from localcluster.demo.stage import NAMESPACE, Stage
from localcluster.demo.story import remove
from localcluster.demo.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.full, pytest.mark.timeout(3600)]
AT_ONCE = 6
"""Rows in work at a time: Airflow's workers, and the processors of a small machine."""


@dataclass(frozen=True)
class Row:
    """`act` triggers the Dag `fault_<name>` and does what is done to it; the rest is what must have come of it."""

    name: str
    act: Callable[[Play], None]
    state: str | None = "success"
    """None: Airflow knows nothing of it any more."""
    tries: int = 1
    made: int = 1
    """Jobs that were ever created for it, never two of them alive at once."""
    reads: tuple[tuple[int, str], ...] = ()
    """(try, words in the log that the user sees); try 0: in any, where the trigger or the next try may come first."""
    takes: str = ""
    """A part of Airflow that it takes away: only rows that do the same are played at that time."""

    @property
    def dag_id(self) -> str:
        return f"fault_{self.name}"


def drain_worker(play: Play) -> None:
    play.trigger()
    _, worker = play.paused()
    play.kill([worker], signal.SIGTERM)


def kill_process(play: Play) -> None:
    """Of the task alone, as the kernel does when memory is short: its supervisor lives and reports it."""
    play.trigger()
    task, _ = play.paused()
    play.kill([task])


def lose_worker(play: Play) -> None:
    """With its supervisor: nobody reports anything, the scheduler misses the heartbeats."""
    play.trigger()
    task, worker = play.paused()
    play.kill([worker, task])


def mark_while_submitting(state: str) -> Callable[[Play], None]:
    def act(play: Play) -> None:
        play.trigger()
        play.paused()
        play.mark(state)
        play.go()

    return act


def clear_while_submitting(play: Play) -> None:
    play.trigger()
    play.paused()
    play.clear()
    play.go()


def delete_dag(play: Play) -> None:
    play.trigger()
    play.until_deferred()
    play.delete_dag()


def submit_in_outage(play: Play) -> None:
    mend = play.unreachable_cluster("outage")
    play.trigger()
    play.until_state("up_for_reschedule")
    mend()


def only_trigger(play: Play) -> None:
    play.trigger()


def lose_triggerer(play: Play) -> None:
    play.trigger()
    play.until_deferred()
    play.restart("triggerer")


def lose_scheduler(play: Play) -> None:
    """With LocalExecutor the workers go with it."""
    play.trigger()
    play.until_deferred()
    play.restart("scheduler")


def fail_without_triggerer(play: Play) -> None:
    play.trigger()
    play.until_deferred()
    play.restart("triggerer", meanwhile=lambda: play.mark("failed"))


def clear(play: Play) -> None:
    play.trigger()
    play.until_deferred()
    play.clear()


def clear_after_end(play: Play) -> None:
    play.trigger()
    play.until_ended()
    play.clear()
    wait_for(lambda: play.states() != {"success"}, "the cleared task", TIMEOUT_S)


def mark(state: str) -> Callable[[Play], None]:
    def act(play: Play) -> None:
        play.trigger()
        play.until_deferred()
        play.mark(state)

    return act


def fail_run(play: Play) -> None:
    play.trigger()
    play.until_deferred()
    play.mark_run("failed")


def backfill(play: Play) -> None:
    play.switch_on()
    days = {"from_date": "2026-01-02T00:00:00Z", "to_date": "2026-01-03T00:00:00Z"}
    play.call("POST", "backfills", {"dag_id": play.dag_id, "max_active_runs": 2, **days})
    play.runs_made(2)


def catch_up(play: Play) -> None:
    play.switch_on()
    play.runs_made(2)


def through_pool(play: Play) -> None:
    """One slot, two tasks; the slot is kept while a task is deferred."""
    pool = {"name": "one_training", "slots": 1, "description": "", "include_deferred": True}
    play.call("POST", "pools", pool)
    play.trigger()


# The longest first: they end while the others are played.
ROWS = [
    Row("worker_lost", lose_worker, tries=2, reads=((2, ": adopted"),)),
    Row("worker_lost_no_retry", lose_worker, "failed"),
    Row("timeout_submitting", only_trigger, "failed", reads=((1, "AirflowTaskTimeout"),)),
    Row("timeout", only_trigger, "failed", reads=((1, "ran out of time: execution_timeout has passed"),)),
    Row("worker_sigterm", drain_worker, reads=((1, "The worker is being stopped"),)),
    Row("process_killed", kill_process, tries=2, reads=((2, ": adopted"),)),
    Row("api_outage", submit_in_outage, reads=((1, "The Kubernetes API does not answer, trying again in 30 s"),)),
    Row("cleared_submitting", clear_while_submitting, tries=2, made=2, reads=((1, "by a user (state restarting)"),)),
    Row("failed_submitting", mark_while_submitting("failed"), "failed", reads=((1, "by a user (state failed)"),)),
    Row("succeeded_submitting", mark_while_submitting("success"), reads=((1, "by a user (state success)"),)),
    Row("marked_failed", mark("failed"), "failed", reads=((1, "The task was marked failed by a user: Job"),)),
    Row("marked_success", mark("success"), reads=((1, "The task was marked success by a user: Job"),)),
    Row("dag_deleted", delete_dag, state=None, tries=0),
    Row("run_marked_failed", fail_run, "failed", reads=((1, "The task was marked failed by a user: Job"),)),
    Row("cleared", clear, tries=2, made=2, reads=((0, "The task was cleared"),)),
    Row(
        "retried",
        only_trigger,
        tries=2,
        made=2,
        reads=((1, "failed with exit code 3"), (1, "first run of the program"), (2, "of an earlier try failed")),
    ),
    Row("resumed", only_trigger, reads=((1, "first run of the program"), (1, "second run of the program"))),
    Row("skipped", only_trigger, "skipped", reads=((1, "Skipping task"),)),
    Row("cleared_after_end", clear_after_end, tries=2, made=2, reads=((2, "The task was cleared: Job"),)),
    Row("backfill", backfill, made=2),
    Row("catchup", catch_up, made=2),
    Row("pool", through_pool, made=2),
    Row("triggerer_lost", lose_triggerer, takes="triggerer", reads=((1, "succeeded: finished"),)),
    Row("scheduler_lost", lose_scheduler, takes="scheduler", reads=((1, "succeeded: finished"),)),
    Row("failed_without_triggerer", fail_without_triggerer, "failed", takes="triggerer"),
]
SEVERAL_RUNS = {"backfill", "catchup"}
"""Rows with two Dag runs: two tasks, whose Jobs may live side by side."""


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, stage: Stage, say: Callable[[str], None]) -> dict[str, Seen | Exception]:
    """What became of every row that this session asks for."""
    wanted = [
        item.callspec.params["row"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_row"
    ]
    jobs = Jobs(stage.kube)
    found: dict[str, Seen | Exception] = {}
    said = threading.Lock()

    def play(row: Row) -> Seen | Exception:
        playing = Play(stage, row.dag_id)
        outcome: Seen | Exception
        try:
            row.act(playing)
            playing.until_ended()
            # A trigger that is told of the end later than the run, and what is done about Jobs that are left behind.
            wait_for(lambda: not alive(stage.kube, row.dag_id), f"no Job of {row.dag_id} alive", 180)
            outcome = look(playing)
        except Exception as error:  # the row's own test reports it
            outcome = error
        with said:
            say(f"{row.name}: {outcome.states if isinstance(outcome, Seen) else repr(outcome)[:300]}")
        return outcome

    def look(playing: Play) -> Seen:
        tasks = playing.tasks()
        tries = max((task["try_number"] for task in tasks), default=0)
        logs = {number: playing.log(number) for number in range(1, tries + 1)}
        left = wait_for(lambda: alive(stage.kube, playing.dag_id), "the list of the Jobs", TIMEOUT_S)
        return Seen({task["state"] for task in tasks}, tries, 0, 0, left, logs)

    try:
        for part in ("", "triggerer", "scheduler"):
            rows = [row for row in wanted if row.takes == part]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                found |= zip([row.name for row in rows], pool.map(play, rows), strict=True)
    finally:
        jobs.stop()
        left = wait_for(lambda: managed_jobs(stage.kube, NAMESPACE), "the list of the Jobs", TIMEOUT_S)
        for name in left.values():
            remove(stage.kube, NAMESPACE, name)
    for row in wanted:
        became = found[row.name]
        if isinstance(became, Seen):
            found[row.name] = became.counted(len(jobs.made(row.dag_id)), jobs.most_alive(row.dag_id))
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row, seen: dict[str, Seen | Exception]) -> None:
    became = seen[row.name]
    if isinstance(became, Exception):
        raise became
    assert became.states == ({row.state} if row.state else set()), became.logs
    assert became.tries == row.tries
    assert became.made == row.made, "Jobs that were ever created"
    assert became.at_once <= (2 if row.name in SEVERAL_RUNS else 1), "Jobs alive at one moment"
    assert became.alive == []
    for number, words in row.reads:
        assert any(words in text for one, text in became.logs.items() if number in (0, one)), became.logs
