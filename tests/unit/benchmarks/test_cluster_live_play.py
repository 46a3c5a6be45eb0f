"""What stands for the leader pods: it trains and leaves by the laws, and says so to a controller."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from test_cluster_live import JOB, pod, workload

from benchmarks.cluster.live.attempts import Attempt
from benchmarks.cluster.live.leader import PATIENCE_S, Leader
from benchmarks.cluster.live.player import Player
from benchmarks.cluster.model import HELD, Job
from benchmarks.events import changes
from kueue_integration.errors import Invalid
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import POD, WORKLOAD
from singularity_proxy.errors import ControllerError, StaleAttemptError
from singularity_proxy.protocol.messages import (
    CheckpointFailure,
    CheckpointRef,
    Command,
    CommitRequest,
    HelloReply,
    Progress,
)

FAST = replace(HELD, come_s=0.05, come_s_per_gb=0.0, start_s=0.05, leave_s=0.05, leave_s_per_gb=0.0, evict_s=0.02)
SHORT = replace(JOB, arrival_s=0.0, work_s=0.3)
ATTEMPT = Attempt(7, 2, "tenant-1", "job-7", "job-7-0-2", "uid", "10.0.0.0", tuple(f"job-7-{n}-2" for n in range(8)))
STOP = Command(1, "checkpoint", "Preempted", 60.0)
LIMIT_S = 30.0


def reference(step: int) -> CheckpointRef:
    return CheckpointRef("c1", 1_000_001, 1, step, 32, "store", 1, 1, 0.0, "0" * 64)


class FakeLine:
    """A controller that gives `commands` once training is reported, or before."""

    def __init__(self, *commands: Command, start: CheckpointRef | None = None, at_once: bool = False) -> None:
        self.reply = HelloReply("key", "10.0.0.0", start)
        self._commands, self._trains = [*commands], asyncio.Event()
        if at_once:
            self._trains.set()
        self.reports: list[Progress] = []
        self.commits: list[CommitRequest] = []
        self.failures: list[CheckpointFailure] = []
        self.deadlines: list[float] = []
        self.stale = asyncio.Event()

    async def hello(self, deadline: float, restarted: bool = False) -> HelloReply:
        self.deadlines.append(deadline - time.monotonic())
        return self.reply

    async def next_command(self, after: int) -> Command | None:
        await self._trains.wait()
        if self._commands:
            return self._commands.pop(0)
        await self.stale.wait()
        raise StaleAttemptError("attempt 2 is not current")

    async def progress(self, progress: Progress) -> None:
        self.reports.append(progress)
        if progress.phase == "running":
            self._trains.set()

    async def commit(self, request: CommitRequest, deadline: float) -> None:
        self.deadlines.append(deadline - time.monotonic())
        self.commits.append(request)
        if not request.goes_on:
            self.stale.set()

    async def failure(self, failure: CheckpointFailure, deadline: float) -> None:
        self.deadlines.append(deadline - time.monotonic())
        self.failures.append(failure)
        self.stale.set()


def leader(line: FakeLine, job: Job = SHORT) -> Leader:
    """Its clock, as that of a replay, is not the one that deadlines are of."""
    began = time.monotonic()
    return Leader(ATTEMPT, job, FAST, line, 1000.0, "store", lambda: time.monotonic() - began)


async def done(made: Leader) -> bool:
    return await asyncio.wait_for(made.run(), LIMIT_S)


async def test_an_attempt_comes_trains_and_finishes() -> None:
    line = FakeLine()
    made = leader(line)
    assert await done(made)
    told = made.told
    assert told.trains_at is not None and told.finished_at is not None
    assert told.trains_at - told.hello_at >= told.coming_s == FAST.start_s
    assert told.finished_at - told.trains_at >= SHORT.work_s and told.done_s == SHORT.work_s
    assert [line.reports[0].phase, line.reports[-1].phase] == ["starting", "finished"]
    assert line.reports[-1].step == 300 and line.reports[-1].first_step == 0
    assert line.reports[-1].reading is not None and (line.reports[-1].reading.total or 0) > 300


async def test_what_is_saved_is_where_the_next_attempt_begins() -> None:
    line = FakeLine(STOP)
    made = leader(line, replace(SHORT, work_s=600.0))
    assert not await done(made)
    (commit,) = line.commits
    assert commit.checkpoint.step == commit.last_step + 1 == int(made.told.done_s * 1000 + 1e-6)
    assert commit.checkpoint.world_size == JOB.most and commit.checkpoint.generation // 1_000_000 == 2
    assert made.told.saved_at is not None and made.told.leaving_s == FAST.leave_s
    assert all(PATIENCE_S - 5 < left <= PATIENCE_S for left in line.deadlines) and len(line.deadlines) == 2
    again = FakeLine(start=reference(250))
    last = leader(again)
    assert await done(last) and last.told.began_s == 0.25
    assert again.reports[0].phase == "restoring" and again.reports[-1].first_step == 250


async def test_who_is_saved_first_stays_stopped_and_ends_with_that_checkpoint() -> None:
    line = FakeLine(replace(STOP, seq=1, then="stay", stay_s=20.0), replace(STOP, seq=2))
    assert not await done(leader(line, replace(SHORT, work_s=600.0)))
    stays, ends = line.commits
    assert (stays.goes_on, stays.stays, ends.goes_on) == (True, True, False) and stays.checkpoint == ends.checkpoint


async def test_who_is_saved_first_goes_on_when_nobody_ends_it() -> None:
    line = FakeLine(replace(STOP, then="stay", stay_s=0.1))
    made = leader(line)
    assert await done(made) and made.told.done_s == SHORT.work_s
    assert [commit.stays for commit in line.commits] == [True]


async def test_who_has_to_leave_before_it_trains_saves_nothing() -> None:
    line = FakeLine(STOP, at_once=True)
    made = leader(line)
    assert not await done(made)
    assert not line.commits and line.failures[0].message == "the ranks had not started"
    assert made.told.trains_at is None and made.told.leaving_s == FAST.evict_s
    assert all(PATIENCE_S - 5 < left <= PATIENCE_S for left in line.deadlines) and len(line.deadlines) == 2


async def test_a_save_in_between_stops_nobody() -> None:
    line = FakeLine(replace(STOP, then="continue"))
    assert await done(leader(line))
    assert [commit.goes_on for commit in line.commits] == [True]


async def test_an_attempt_that_is_not_current_is_over() -> None:
    line = FakeLine(at_once=True)
    line.stale.set()
    made = leader(line, replace(SHORT, work_s=600.0))
    assert not await done(made) and made.told.finished_at is None


async def test_a_controller_that_takes_no_commit_is_told() -> None:
    class Deaf(FakeLine):
        async def commit(self, request: CommitRequest, deadline: float) -> None:
            raise ControllerError("controller answered /v1/commit with 400")

    with pytest.raises(ControllerError, match="with 400"):
        await done(leader(Deaf(STOP), replace(SHORT, work_s=600.0)))


# --- the player ---------------------------------------------------------------------------------------------------
@contextmanager
def job_controller(kube: FakeKube) -> Iterator[Callable[[Job], None]]:
    """Makes the pods of a Job, which run at once, and finishes its Workload when all pods have succeeded."""
    stop = threading.Event()

    def submit(job: Job) -> None:
        for index in range(2):
            kube.put({"apiVersion": "v1", "kind": "Pod", **named(pod(index), job)})
        made = named(workload("QuotaReserved"), job)
        made["metadata"] |= {"name": f"job-{job.id}", "namespace": "tenant-1"}
        made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": f"job-{job.id}"}]
        kube.put({"apiVersion": WORKLOAD.api_version, "kind": "Workload", **made})

    def serve() -> None:
        ended: dict[str, set[str]] = {}
        for seen in changes(kube, POD, None, stop):
            name, job = seen["metadata"]["name"], seen["metadata"]["labels"]["singularity.dev/job"]
            if seen["status"]["phase"] == "Succeeded":
                ended.setdefault(job, set()).add(name)
                if len(ended[job]) == 2:
                    kube.set_status(WORKLOAD, "tenant-1", job, workload("Finished")["status"])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield submit
    finally:
        stop.set()


def named(obj: dict[str, Any], job: Job) -> dict[str, Any]:
    meta = obj["metadata"]
    name = f"job-{job.id}"
    if "name" in meta:
        meta["name"] = meta["uid"] = meta["name"].replace("job-7", name)
        meta["labels"] = {"singularity.dev/job": name}
    return obj


@asynccontextmanager
async def fake_line(attempt: Attempt) -> AsyncIterator[FakeLine]:
    yield FakeLine()


def test_all_jobs_of_a_plan_are_played_to_their_ends() -> None:
    kube, jobs = FakeKube(), [replace(SHORT, id=n, arrival_s=0.1 * n, workers=2) for n in range(3)]
    with job_controller(kube) as submit, Player(kube, jobs, FAST, submit, fake_line, 1000.0, "store") as player:
        assert player.over.wait(LIMIT_S)
    assert player.trouble == "" and sorted(player.stays.finished_at) == [0, 1, 2]
    assert all(one.finished_at is not None for one in player.told) and len(player.told) == 3
    assert {one["status"]["phase"] for one in kube.list(POD)} == {"Succeeded"}


def test_a_job_that_cannot_be_submitted_ends_the_replay() -> None:
    def submit(job: Job) -> None:
        raise Invalid("no such field", 422)

    with Player(FakeKube(), [SHORT], FAST, submit, fake_line, 1000.0, "store") as player:
        assert player.over.wait(LIMIT_S)
    assert player.trouble == "Invalid: no such field"


def test_a_leader_that_fails_while_its_pod_runs_ends_the_replay() -> None:
    @asynccontextmanager
    async def broken(attempt: Attempt) -> AsyncIterator[FakeLine]:
        raise ControllerError("it cannot be reached")
        yield FakeLine()

    kube = FakeKube()
    with job_controller(kube) as submit, Player(kube, [SHORT], FAST, submit, broken, 1000.0, "store") as player:
        assert player.over.wait(LIMIT_S)
    assert player.trouble == "job-7, attempt 1: ControllerError: it cannot be reached"


def test_an_attempt_that_the_controller_has_given_up_ends_no_replay() -> None:
    began = threading.Event()

    @asynccontextmanager
    async def stale(attempt: Attempt) -> AsyncIterator[FakeLine]:
        began.set()
        raise StaleAttemptError("attempt 1 is not current")
        yield FakeLine()

    kube = FakeKube()
    with job_controller(kube) as submit, Player(kube, [SHORT], FAST, submit, stale, 1000.0, "store") as player:
        assert began.wait(LIMIT_S)
        await_it(lambda: player.running() == 0)
    assert player.trouble == ""


def test_a_leader_whose_pod_goes_is_gone() -> None:
    kube, line = FakeKube(), list[FakeLine]()

    @asynccontextmanager
    async def kept(attempt: Attempt) -> AsyncIterator[FakeLine]:
        line.append(FakeLine())
        yield line[0]

    long = replace(SHORT, work_s=600.0)
    with job_controller(kube) as submit, Player(kube, [long], FAST, submit, kept, 1000.0, "store") as player:
        await_it(lambda: bool(line and line[0].reports))
        kube.patch(POD, "tenant-1", "job-7-1-1", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        await_it(lambda: player.running() == 0)
    assert player.trouble == "" and not player.over.is_set()


def await_it(condition: Callable[[], bool]) -> None:
    end = threading.Event()
    for _ in range(int(LIMIT_S / 0.02)):
        if condition():
            return
        end.wait(0.02)
    pytest.fail("it has not come to be")
