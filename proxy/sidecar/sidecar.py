"""One sidecar from its start to SIGTERM: page, socket, hello, then leader or follower, then an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from ..errors import ProxyError, StaleAttemptError
from ..protocol import names
from ..protocol.messages import HelloReply, LauncherCommand, LauncherEvent, MessageError, Plan, from_json, to_json
from ..store import Store
from . import restore
from .barrier_page import BarrierPage
from .config import Config
from .controller import Controller
from .launcher_api import LauncherApi
from .leader import Leader
from .mesh import Follower, MeshServer
from .pod import Pod, beside_ranks
from .progress import Reporter

HELLO_S: Final = 300.0
"""How long the controller may be unreachable, or know no leader, before this sidecar gives up."""
REFUSAL_S: Final = 10.0
"""How long a sidecar that cannot take part stays, so that its launcher can fetch the reason."""
END_S: Final = 4.0
"""After SIGTERM with no checkpoint under way: for the last counters, and for followers to hear the last word."""
FLUSH_S: Final = 1.0
log = logging.getLogger(__name__)


async def run(config: Config, stop: asyncio.Event) -> None:
    """Serve until `stop` is set (SIGTERM).

    Raises ConfigError, StoreError, StaleAttemptError or ControllerError when this pod cannot take part at all. A
    checkpoint that cannot be restored is not raised: the launcher gets the sentence as the answer to its question.
    """
    barrier = BarrierPage(config.run_dir, config.world_size)
    try:
        await _serve(config, barrier, stop)
    finally:
        barrier.close()


async def _serve(config: Config, barrier: BarrierPage, stop: asyncio.Event) -> None:
    async with contextlib.AsyncExitStack() as stack:
        early: list[LauncherEvent] = []
        deliver: list[Pod] = []
        api = LauncherApi(config.run_dir, lambda e: deliver[0].on_event(e) if deliver else early.append(e))
        await api.start()
        stack.push_async_callback(api.close)
        try:
            store = Store(config.store)
            await asyncio.to_thread(store.probe)
            controller = await stack.enter_async_context(Controller(config))
            restarted = beside_ranks(config, barrier)
            reply = await _unless_stopped(stop, controller.hello(time.time() + HELLO_S, restarted))
        except ProxyError as error:
            if isinstance(error, StaleAttemptError) and beside_ranks(config, barrier):
                await _dismiss(api, error, stop)
                return
            api.refuse_plan(error)
            await api.refused(REFUSAL_S)
            raise
        if reply is None:
            return
        first_step = reply.checkpoint.step if reply.checkpoint else 0
        pod = Pod(config, barrier, store, api.send, reply.leader_ip, first_step)
        deliver.append(pod)
        for event in early:
            pod.on_event(event)
        background = [pod.watch()]
        if not pod.started:  # else this sidecar was restarted beside running ranks
            background.append(_plan(config, api, reply))
        leader: Leader | None = None
        reporter: Reporter | None = None
        if config.leader:
            leader = Leader(config, controller, store, pod)
            leader.continue_after(max(barrier.request, barrier.acquired), barrier.acquired >= barrier.request)
            reporter = Reporter(config, controller, leader, pod, first_step, reply.checkpoint is not None)
            mesh = MeshServer(reply.peer_key, config.workers, leader.exchange)
            await mesh.start(config.mesh_port)
            stack.push_async_callback(mesh.close)
            background += [leader.drive(), leader.listen(), reporter.run()]
            if not pod.started:
                background.append(leader.retain(reply.checkpoint.id if reply.checkpoint else "", fresh=True))
        else:
            background.append(Follower(pod, reply.leader_ip, config.mesh_port, reply.peer_key).run())
        await _until_ended(background, stop, leader, reporter, pod)


async def _dismiss(api: LauncherApi, error: StaleAttemptError, stop: asyncio.Event) -> None:
    """These ranks are not needed any more: their launcher need not wait until its grace period is over."""
    log.warning("%s: the ranks of this pod end", error)
    await api.send(LauncherCommand(seq=0, op="exit", exit_code=names.EXIT_PREEMPTED))
    await stop.wait()


def _given_plan(config: Config) -> Plan | None:
    """The plan that a sidecar before this one has given; images that are being restored must not be fetched anew."""
    try:
        plan = from_json(Plan, config.plan_file.read_text())
    except (OSError, MessageError):
        return None
    return plan if plan.attempt == config.attempt else None


def _publish(config: Config, api: LauncherApi, plan: Plan) -> None:
    new = config.plan_file.with_suffix(".new")
    new.write_text(to_json(plan))
    new.replace(config.plan_file)
    api.publish_plan(plan)


async def _plan(config: Config, api: LauncherApi, reply: HelloReply) -> None:
    given = _given_plan(config)
    if given is not None:
        log.info("a sidecar before this one gave a plan already: %s", given.mode)
        api.publish_plan(given)
        return
    ref = reply.checkpoint
    if (ref.id if ref else "") != config.checkpoint:
        log.warning(
            "pod annotation says checkpoint %r, the controller %r: the controller counts", config.checkpoint, ref
        )
    if ref is None:
        _publish(config, api, restore.fresh_plan(config, reply.leader_ip))
        return
    log.info("restoring %s, step %d, from %s", ref.id, ref.step, ref.url)
    try:
        _publish(config, api, await restore.restore_plan(config, reply.leader_ip, ref))
    except (ProxyError, OSError) as error:
        log.error("cannot restore: %s", error)
        api.refuse_plan(error)


async def _until_ended(
    background: list[Coroutine[Any, Any, None]],
    stop: asyncio.Event,
    leader: Leader | None,
    reporter: Reporter | None,
    pod: Pod,
) -> None:
    """Run `background` until `stop`, then end in order. A task that fails ends the sidecar with its error."""
    tasks = [asyncio.ensure_future(work) for work in background]
    stopping = asyncio.ensure_future(stop.wait())
    try:
        pending: set[asyncio.Future[Any]] = {*tasks, stopping}
        while not stopping.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        await _wind_up(pod, leader, reporter)
    finally:
        await _cancel([*tasks, stopping])


async def _wind_up(pod: Pod, leader: Leader | None, reporter: Reporter | None) -> None:
    started = time.time()
    await pod.saved()  # its ranks may be dead, their images are whole
    await pod.flush(FLUSH_S)
    if leader is None or reporter is None:
        return
    while not leader.settled() and time.time() < max(started + END_S, leader.deadline()):
        await asyncio.sleep(0.05)
    with contextlib.suppress(ProxyError):
        await reporter.flush(force=True)


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, HelloReply]) -> HelloReply | None:
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await _cancel([task, stopping])


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel until all have ended: up to Python 3.11 `wait_for` can swallow a cancellation that meets its result."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.5)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # fetched: it was raised already, or nobody waits for it any more
