"""Who may die when (architecture 5), on real processes: each process killed, and the wire between the sidecars cut, at
each step of a checkpoint and of the restore.

Outcomes: `committed`: the checkpoint under way is had all the same. `goes on`: it is not, or was already; nobody has
lost anything, the ranks train on and the next one is had. `back`: the attempt is lost, the next one starts from what
was committed before. After each the job comes to its end with every step of every rank done once and in order. No pod
ends with a code for which its Job would be failed: the Job's own pod failure policy is asked about every one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fault_world import CRIU, Attempt, Job, kill
from mesh_world import FakeController

pytestmark = pytest.mark.criu

VICTIMS = ("rank", "launcher", "leader", "follower", "wire")
"""Rank, launcher and follower are of pod 1, the leader is the sidecar of pod 0."""
TABLE = {
    # step: who waits there                                    outcomes, in the order of VICTIMS
    "request": ("back", "back", "committed", "committed", "committed"),  # rank 1 has not come to its boundary
    "acquire": ("back", "back", "committed", "committed", "committed"),  # pod 1 does not know that all have
    "freeze": ("back", "back", "committed", "committed", "committed"),  # rank 1 gives up its communication
    "dump": ("back", "back", "committed", "committed", "committed"),  # CRIU in pod 1
    "stream": ("back", "back", "committed", "committed", "committed"),  # pages, on their way to a sidecar
    "upload": ("committed", "committed", "committed", "committed", "committed"),  # the victim's sidecar, or pod 1's
    "manifest": ("committed", "committed", "committed", "committed", "committed"),  # the leader: written, not committed
    "commit": ("committed", "committed", "committed", "committed", "committed"),  # the controller
    "resume": ("back", "back", "goes on", "goes on", "goes on"),  # rank 1, after a checkpoint on the side
    "fetch": ("", "back", "goes on", "goes on", "goes on"),  # the victim's sidecar, or pod 1's; there is no rank yet
    "restore": ("back", "back", "goes on", "goes on", "goes on"),  # CRIU in pod 1, which is the rank's victim
}
ROWS = [(step, victim, out) for step, all_ in TABLE.items() for victim, out in zip(VICTIMS, all_, strict=True) if out]
QUICK = {
    ("dump", "rank"), ("freeze", "leader"), ("acquire", "wire"), ("upload", "rank"), ("upload", "follower"),
    ("stream", "follower"),
}  # fmt: skip
DEADLINE_S = 90.0
LOST_S = 20.0
"""Time for a checkpoint that cannot be had."""
counted: dict[str, int] = {}


def rows() -> list[object]:
    return [
        pytest.param(*row, marks=[] if row[:2] in QUICK else [pytest.mark.full], id=f"{row[0]}-{row[1]}")
        for row in ROWS
    ]


@pytest.fixture(scope="module", autouse=True)
def outcomes(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\nfaults that fired, by outcome: {dict(sorted(counted.items()))}")


@pytest.fixture
async def job(folder: Path, controller: FakeController, rootfs: Path, criu_bundle: Path) -> AsyncIterator[Job]:
    job = Job(folder, controller, rootfs, criu_bundle)
    yield job
    job.delete()


@pytest.mark.parametrize(("step", "victim", "wanted"), rows())
async def test_fault(step: str, victim: str, wanted: str, job: Job, controller: FakeController) -> None:
    go = asyncio.Event()
    attempt = await job.attempt()
    await attempt.stepped(10)
    where = 0 if step == "manifest" or (victim == "leader" and step in ("stream", "upload", "fetch")) else 1
    if step in ("fetch", "restore"):
        await controller.command(DEADLINE_S)
        await attempt.until("commit", lambda: controller.commits)
        await attempt.end()
        attempt = await job.attempt({where: step})
    else:
        await ask(step, where, attempt, controller, go, LOST_S if wanted == "back" else DEADLINE_S)
    second = attempt.workers[1]
    if step == "commit":
        await attempt.until("the controller has the commit", lambda: controller.before_commit is None)
    elif step == "acquire":
        await attempt.until("the barrier is reached", attempt.wire.held.is_set)
    else:
        await attempt.until(f"pod {where} stands at {step}", lambda: attempt.workers[where].holds(step))

    before = len(controller.commits) if step != "commit" else 0
    await strike(step, victim, attempt)
    counted[wanted] = counted.get(wanted, 0) + 1
    go.set()
    for worker in attempt.workers:
        worker.release()
    attempt.wire.release()
    if step == "commit":
        await attempt.until("the commit is taken", lambda: len(controller.commits) > before)
        controller.ended = True
    if wanted == "goes on" and victim == "leader":
        controller.commands.clear()  # it has been done
    if victim in ("leader", "follower"):
        attempt.workers[victim == "follower"].start_sidecar()
    attempt.wire.mend()

    if wanted == "goes on":
        await attempt.stepped(20)
        await controller.command(DEADLINE_S)
    if wanted == "back":
        await attempt.until("the pod ends", lambda: not second.pod.alive())
        assert attempt.judged()[1] in ("Ignore", "Count"), "the attempt is lost, not the job"
        if (step, victim) == ("restore", "rank"):
            await attempt.until("it is told", lambda: controller.damage)
            told = [(d.id, d.tried, d.passes) for report in controller.damage for d in report.damaged]
            assert told == [(controller.commits[0].checkpoint.id, True, False)]
        if step not in ("resume", "fetch", "restore"):
            await attempt.until("the checkpoint is given up", lambda: controller.failures)
        assert len(controller.commits) == before, "nothing is committed of what is broken"
        await attempt.end()  # Kueue suspends the Job: the pods that are left get SIGTERM
    else:
        await attempt.until("a commit", lambda: len(controller.commits) > before)
        await attempt.end()
    await job.complete(await job.attempt())


async def ask(
    step: str, where: int, attempt: Attempt, controller: FakeController, go: asyncio.Event, deadline_s: float
) -> None:
    """A checkpoint is wanted, and is to be held at `step` in pod `where`."""
    if step == "acquire":
        attempt.wire.hold_answer = b'"save"'
    elif step == "commit":

        async def wait() -> None:
            await go.wait()

        controller.before_commit = wait
    else:
        attempt.workers[where].hold(step)
    await controller.command(deadline_s, then="continue" if step == "resume" else "stop")


async def strike(step: str, victim: str, attempt: Attempt) -> None:
    """The fault; returns when it has fired."""
    first, second = attempt.workers
    if victim == "wire":
        attempt.wire.cut()
        await attempt.until("the follower notices", lambda: "cannot be reached" in second.log())
        assert attempt.wire.cuts
    elif victim in ("leader", "follower"):
        sidecar = (first if victim == "leader" else second).sidecar
        kill(sidecar.pid)
        assert sidecar.wait(120) == -9
    elif victim == "launcher":
        kill(second.pod.launcher_pid())
        await attempt.until("the container is gone", lambda: not second.pod.alive())
    else:
        pid = max(second.processes(CRIU if step == "restore" else b"stepper.py"))
        kill(pid)
        await attempt.until("it is gone", lambda: not Path(f"/proc/{pid}").exists())
    if victim in ("rank", "launcher") and step in ("upload", "manifest"):
        await attempt.until("the container is gone", lambda: not second.pod.alive())
        second.sidecar.terminate()  # as the kubelet does once the containers beside it have ended
