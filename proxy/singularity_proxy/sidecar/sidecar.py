"""One sidecar from its start to SIGTERM: page, socket, hello, then leader or follower, then an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from ..errors import DamageError, ProxyError, RestoreRefusedError, StaleAttemptError
from ..protocol import exit_codes, names
from ..protocol.messages import (
    CheckpointRef,
    DamageReport,
    HelloReply,
    LauncherCommand,
    LauncherEvent,
    MessageError,
    Plan,
    from_json,
    to_json,
)
from ..store import Store
from ..store.outputs import Outputs
from ..store.trust import of_attempt
from . import inputs, outputs, restore, trial
from .barrier_page import BarrierPage
from .config import Config
from .controller_client import Controller
from .launcher_api import LauncherApi
from .leader import Leader
from .mesh import Follower, MeshServer
from .pod import Pod, beside_ranks
from .pod_phases import PodPhases
from .progress import Reporter
from .result import LAST_S, ResultBringer
from .state_parts import PartsServer

HELLO_S: Final = 300.0
"""How long the controller may be unreachable, or know no leader, before the launcher hears that there is no plan."""
AGAIN_S: Final = 1.0
"""Pause before the next try at what was away for as long as was waited, while no launcher waits for a plan."""
END_S: Final = 4.0
"""After SIGTERM with no checkpoint under way: time for the last counters, and for followers to receive the last
directive."""
FLUSH_S: Final = 1.0
TELL_S: Final = 60.0
"""How long a sidecar tries to tell the controller that a checkpoint was not restored."""
log = logging.getLogger(__name__)
T = TypeVar("T")


async def run(config: Config, stop: asyncio.Event) -> None:
    """Serve until `stop` is set (SIGTERM).

    Raises ConfigError, StoreError, StaleAttemptError or ControllerError when this pod cannot take part at all, after
    the launcher has received the reason. A checkpoint that cannot be restored raises nothing: the launcher gets the
    sentence as the answer to its question. While the launcher does not ask yet (its image is being pulled), this waits
    for temporary failures to end.
    """
    barrier = BarrierPage(config.run_dir, config.world_size)
    try:
        await _serve(config, barrier, stop)
    finally:
        barrier.close()


async def _serve(config: Config, barrier: BarrierPage, stop: asyncio.Event) -> None:
    phases = PodPhases()
    async with contextlib.AsyncExitStack() as stack:
        early: list[LauncherEvent] = []
        deliver: list[Pod] = []
        api = LauncherApi(config.run_dir, lambda e: deliver[0].on_event(e) if deliver else early.append(e))
        await api.start()
        stack.push_async_callback(api.close)
        try:
            store = restore.store_of(config)
            controller = await stack.enter_async_context(Controller(config))
            joining = _join(config, api, store, controller, restarted=beside_ranks(config, barrier))
            joined = await _unless_stopped(stop, joining)
        except ProxyError as error:
            if isinstance(error, StaleAttemptError) and beside_ranks(config, barrier):
                await _dismiss(api, error, stop)
                return
            api.refuse_plan(error)
            await _unless_stopped(stop, api.refused())
            raise
        if joined is None:
            return
        phases.joined()
        reply, ended = joined
        if reply.finished:
            await _complete(config, api, beside_ranks(config, barrier), stop)
            return
        url = reply.outputs
        first_step = reply.checkpoint.step if reply.checkpoint else 0
        failures = _Failures(config, controller, reply.checkpoint)
        trust = of_attempt(reply.peer_key, restore.own(config, reply))
        pod = Pod(config, barrier, store, api.send, reply.leader_ip, first_step, phases, failures.tell, trust, url)
        if pod.outputs is not None:
            stack.push_async_callback(pod.outputs.close)
        deliver.append(pod)
        for event in early:
            pod.on_event(event)
        given = _given_plan(config)
        if given is not None:
            pod.can_go_on(given.through, given.why)  # the others may still wait for the word
        background = [pod.watch()]
        server = _parts_server(config, api, controller, reply)
        if server is not None:
            await server.start()
            stack.push_async_callback(server.close)
        if not pod.started:  # else this sidecar was restarted beside running ranks
            background.append(_plan(config, api, controller, reply, phases, pod, server))
        leader: Leader | None = None
        reporter: Reporter | None = None
        result: ResultBringer | None = None
        if config.leader:
            leader = Leader(config, controller, store, pod, _nonce(config, reply), reply.committed, reply.origin, url)
            if leader.outputs is not None:
                stack.push_async_callback(leader.outputs.close)
            newest, reached = max(barrier.request, barrier.acquired), barrier.acquired >= barrier.request
            leader.continue_after(newest, reached, barrier.ended(config.world_size))
            reporter = Reporter(config, controller, leader, pod, first_step, reply.checkpoint is not None)
            mesh = MeshServer(reply.peer_key, config.workers, leader.exchange)
            await mesh.start(config.mesh_port)
            stack.push_async_callback(mesh.close)
            result = ResultBringer(config, controller)
            background += [leader.drive(), leader.listen(), reporter.run(), result.run()]
            if not pod.started:
                background.append(leader.retain(ended))
            if reply.trial_after_s is not None:
                background.append(trial.run(leader, config.engine, reply.trial_after_s))
        else:
            background.append(Follower(pod, reply.leader_ip, config.mesh_port, reply.peer_key).run())
        await _until_ended(background, stop, leader, reporter, result, pod, failures)


async def _join(
    config: Config, api: LauncherApi, store: Store, controller: Controller, restarted: bool
) -> tuple[HelloReply, list[str]]:
    """Wait for store and controller. Returns the controller's answer, and for the leader the uploads that have ended.

    Raises ProxyError: the failure is permanent, or the launcher waits for an answer.
    """
    while True:
        try:
            await asyncio.to_thread(store.probe, config.namespace, config.job)
            # Read before the controller confirms that this attempt is the current one. So these uploads are of earlier
            # attempts, which cannot commit any more. Uploads that come later are of this attempt, or of a later one.
            ended = await asyncio.to_thread(store.uploads, config.namespace, config.job) if config.leader else []
            reply = await controller.hello(time.monotonic() + HELLO_S, restarted)
            url = outputs.place_of(reply)
            inputs.refused(reply)
            if url and config.leader and not restarted:
                await asyncio.to_thread(Outputs(url).probe)
            return reply, ended
        except ProxyError as error:
            if not error.passes or api.asked:
                raise
            log.warning("%s; no launcher waits for a plan yet: trying again", error)
        await asyncio.sleep(AGAIN_S)


def _nonce(config: Config, reply: HelloReply) -> str:
    """A value that is unique to this Job, attempt and pod, even among those of the same name. A sidecar restarted in
    this pod has the same value."""
    return hmac.new(reply.peer_key.encode(), f"ids of {config.pod}".encode(), "sha256").hexdigest()[:8]


async def _dismiss(api: LauncherApi, error: StaleAttemptError, stop: asyncio.Event) -> None:
    """These ranks are not needed any more, so their launcher need not wait until its grace period is over."""
    log.warning("%s: the ranks of this pod end", error)
    await api.send(LauncherCommand(seq=0, op="exit", exit_code=exit_codes.STOPPED))
    await stop.wait()


async def _complete(config: Config, api: LauncherApi, beside: bool, stop: asyncio.Event) -> None:
    """Every rank of the job has ended with 0, and some pods are complete: so is this one."""
    log.info("every rank of the job has ended well: nothing is left to do")
    if beside:
        await api.send(LauncherCommand(seq=0, op="finish"))
    else:
        api.publish_plan(Plan("finished", config.attempt, config.world_size, [], "", 0))
    await stop.wait()


def _given_plan(config: Config) -> Plan | None:
    """The plan that a sidecar before this one has given; images that are being restored must not be fetched again."""
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


def _parts_server(config: Config, api: LauncherApi, controller: Controller, reply: HelloReply) -> PartsServer | None:
    """None: the ranks begin with nothing that they could ask for."""
    ref = reply.checkpoint
    if ref is None or config.engine != names.ENGINE_STATE or ref.engine != names.ENGINE_STATE:
        return None

    async def give_up(error: ProxyError) -> None:
        """The pod ends as it would if this had come up before its plan."""
        log.error("cannot restore: %s", error)
        if isinstance(error, DamageError):
            await _passed_over(config, controller, reply, ref, error)
        elif isinstance(error, RestoreRefusedError):
            await _tell(controller, restore.failed(config, ref, str(error)))
        await api.send(LauncherCommand(seq=0, op="exit", exit_code=error.exit_code))

    return PartsServer(config.run_dir, lambda: restore.parts_of(config, ref, reply.origin), give_up)


async def _plan(
    config: Config,
    api: LauncherApi,
    controller: Controller,
    reply: HelloReply,
    phases: PodPhases,
    pod: Pod,
    server: PartsServer | None,
) -> None:
    given = _given_plan(config)
    if given is not None:
        log.info("a sidecar before this one gave a plan already: %s", given.mode)
        api.publish_plan(given)
        return
    try:
        await inputs.fetch(config, reply)
    except ProxyError as error:
        log.error("the inputs cannot be fetched: %s", error)
        api.refuse_plan(error)
        return
    ref = reply.checkpoint
    if (ref.id if ref else "") != config.checkpoint:
        log.warning(
            "pod annotation says checkpoint %r, the controller %r: the controller counts", config.checkpoint, ref
        )
    if ref is None:
        phases.planned()
        _publish(config, api, restore.fresh_plan(config, reply.leader_ip, bool(reply.outputs)))
        return
    log.info("restoring %s, step %d, from %s", ref.id, ref.step, ref.url)
    while True:
        try:
            place = reply.leader_ip, ref, reply.origin
            plan = await restore.restore_plan(config, *place, pod.agree, server, pod.meeting_place, bool(reply.outputs))
            phases.planned()
            _publish(config, api, plan)
            return
        except DamageError as error:
            api.refuse_plan(await _passed_over(config, controller, reply, ref, error))
            return
        except RestoreRefusedError as error:
            log.error("cannot restore: %s", error)
            await _tell(controller, restore.failed(config, ref, str(error)))
            api.refuse_plan(error)
            return
        except (ProxyError, OSError) as error:
            if api.asked or not isinstance(error, ProxyError) or not error.passes:
                log.error("cannot restore: %s", error)
                api.refuse_plan(error)
                return
            log.warning("%s; no launcher waits for a plan yet: trying again", error)
        await asyncio.sleep(AGAIN_S)


async def _passed_over(
    config: Config, controller: Controller, reply: HelloReply, ref: CheckpointRef, error: DamageError
) -> DamageError:
    """Report a damaged checkpoint to the controller. Returns the sentence for the launcher.

    This pod restores no other checkpoint: pods that see no damage restore the damaged one. The attempt ends, and the
    next one is let in with an older checkpoint for all of its pods.
    """
    report, after = await restore.damage(config, ref, error, reply)
    for found in report.damaged:
        log.error("checkpoint %s cannot be restored: %s", found.id, found.problem)
    if not await _tell(controller, report):
        return error
    log.warning("%s", after)
    return DamageError(f"{error}; {after}")


async def _tell(controller: Controller, report: DamageReport) -> bool:
    """Whether the controller has heard it."""
    try:
        await controller.damage(report, time.monotonic() + TELL_S)
    except ProxyError as problem:
        log.error("the controller does not know it, so the next attempt finds it again: %s", problem)
        return False
    return True


class _Failures:
    """Tells the controller, once, that the launcher has not restored the checkpoint of this attempt."""

    def __init__(self, config: Config, controller: Controller, ref: CheckpointRef | None) -> None:
        self._config, self._controller, self._ref = config, controller, ref
        self._task: asyncio.Task[bool] | None = None

    def tell(self, why: str, passes: bool) -> None:
        if self._ref is not None and self._task is None:
            report = restore.failed(self._config, self._ref, why, passes)
            self._task = asyncio.ensure_future(_tell(self._controller, report))

    async def told(self) -> None:
        """Wait until that has ended."""
        if self._task is not None:
            await self._task


async def _until_ended(
    background: list[Coroutine[Any, Any, None]],
    stop: asyncio.Event,
    leader: Leader | None,
    reporter: Reporter | None,
    result: ResultBringer | None,
    pod: Pod,
    failures: _Failures,
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
        await failures.told()  # the launcher has ended for it, and the kubelet ends this pod
        await _wind_up(pod, leader, reporter)
        if result is not None:
            await result.bring(LAST_S)
    finally:
        await _cancel([*tasks, stopping])


async def _wind_up(pod: Pod, leader: Leader | None, reporter: Reporter | None) -> None:
    started = time.monotonic()
    await pod.saved()  # its ranks may be dead, their images are whole
    await pod.flush(FLUSH_S)
    if leader is None or reporter is None:
        return
    while not leader.settled() and time.monotonic() < max(started + END_S, leader.deadline()):
        await asyncio.sleep(0.05)
    with contextlib.suppress(ProxyError):
        await reporter.flush(force=True)


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
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
