"""`python -m kueue_integration.serve`: wires the controller, serves until SIGTERM, gives the Lease up, exits 0."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from aiohttp import web

from singularity_proxy.protocol.listener import Listener, Protocols

from .controller import config, logs, vitals
from .controller.flavor_levels import FlavorLevels
from .controller.key_keeper import KeyKeeper, Terms, server_names
from .controller.lease import LeaseKeeper
from .controller.metrics import Metrics
from .controller.published import Publisher
from .controller.reconciler import Reconciler
from .controller.sidecar_api.adoption import Adoption
from .controller.sidecar_api.http import Api
from .controller.sidecar_api.hub import Hub
from .controller.sidecar_api.probes import health_app
from .errors import SingularityError
from .job import states
from .kube import server_time
from .kube.credentials import connect
from .kube.resources import finished
from .multikueue import access
from .multikueue.reconciler import MultiKueueReconciler
from .spec import outputs_place

log = logging.getLogger("controller")

PART = "singularity-controller"
"""How the API server knows this program: in its audit log, and in `managedFields` of what it writes."""
EXTRA_THREADS = 4
"""For what is not a call of the pods: the keys, the end."""
M_ARENA_MAX, HEAPS = -8, 2
"""As malloc.h names it. glibc's own choice is eight heaps for each processor."""
SWITCH_S = 0.001
"""For so long a thread keeps the interpreter while others want it. Beside nine threads that reckon, who has to wait
forty times, as a commit or a request for the Lease does, waits 1.5 s with Python's own 5 ms, and 0.2 s with this."""
STUCK_S = 60.0
"""Workers that take no task for longer make the liveness probe fail."""
IDLE_S = 60.0
"""A longer time without any acting replica does, too, if the API server answers: a new process may help."""


def unhealthy(silent_s: float, listed: bool, idle_s: float) -> str:
    """The problem that only a new process can solve, "" if there is none.

    `listed`: every kind has been listed once. Before that the readiness probe says what is missing.
    """
    if silent_s >= STUCK_S:
        return f"no worker has taken a task for {silent_s:.0f} s"
    if listed and idle_s >= IDLE_S:
        return f"for {idle_s:.0f} s this replica has neither acted nor seen another one act"
    return ""


def share_heaps() -> None:
    """Let all threads take memory from few heaps: what one of them has freed is of use to the others."""
    with contextlib.suppress(OSError, AttributeError):  # another C library has nothing of the kind
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS)


async def serve(settings: config.Config) -> None:
    """Run until SIGTERM or SIGINT."""
    metrics, hub = Metrics(), Hub()
    told = vitals.of_requests(metrics)
    kube = connect(settings.kubeconfig, timeout_s=settings.request_timeout_s, part=PART, told=told)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(EXTRA_THREADS, thread_name_prefix="extra"))
    hub.attach(loop)
    server = server_time.ServerClock()
    reconciler = Reconciler(
        kube, settings.settings, metrics, hub.notify, server.now, settings.namespace, settings.agent_images,
        settings.namespaces,
    )  # fmt: skip

    def lead(leads: bool) -> None:
        metrics.set("singularity_leader", float(leads))
        if leads:
            reconciler.look_again()
            keys.look_again()

    # A leader that does not see the objects would hold preemptions back and do nothing about them.
    # A client of its own: an answer that never comes is given up while the Lease lasts, and waits for no connection.
    keeper = LeaseKeeper(
        connect(settings.kubeconfig, timeout_s=settings.lease_timeout_s, part=PART, told=told),
        settings.namespace,
        settings.lease_name,
        settings.identity,
        settings.lease_duration_s,
        settings.lease_renew_s,
        alive=lambda: reconciler.silent_for() < settings.lease_duration_s and reconciler.world.fresh,
        on_change=lead,
        on_repair=lambda: metrics.add("singularity_repairs_total", "lease"),
        server=server,
        overdue=reconciler.overdue.entries,
    )
    reconciler.leads = lambda: keeper.leads
    metrics.compute(vitals.of_lease(keeper.age, settings.lease_duration_s))

    multikueue = None
    if settings.multikueue_namespace:
        multikueue = MultiKueueReconciler(
            kube,
            reconciler.world,
            settings.multikueue_namespace,
            settings.settings.check_name,
            metrics,
            leads=lambda: keeper.leads,
            now=server.now,
            providers=access.providers(settings.access_providers),
            noted=reconciler.world.notes.take,
        )

    def oldest_job() -> float | None:
        live = (job for job in reconciler.world.all_jobs() if finished(job) is None)
        return min(map(states.created, live), default=None)

    published = settings.published
    levels = FlavorLevels(kube, reconciler.world.nodes, reconciler.world.cluster_queues.all)
    publisher = published and Publisher(
        kube, settings.namespace, published, lambda: keeper.leads, levels.known, lambda: reconciler.guarded.problem
    )
    keys = KeyKeeper(
        kube,
        Terms(settings.namespace, server_names(settings.namespace), settings.certificate_days, settings.secret_dir),
        metrics,
        oldest_job,
        leads=lambda: keeper.leads,
        now=server.now,
        changed=publisher.publish if publisher else lambda found: None,
    )

    def may_store(namespace: str, url: str) -> str:
        return outputs_place.problem(url, published.platform, namespace) if published else ""

    parts = kube, reconciler.world, hub, keys.peer, metrics, server
    api = Api(*parts, trial_after_s=settings.trial_after_s, may_store=may_store)

    pods = api.app()
    Adoption(lambda: publisher.adopts if publisher else None).attach(pods)
    probes = Listener()
    runners = [
        web.AppRunner(pods, access_log=None, shutdown_timeout=2),
        web.AppRunner(
            health_app(
                ready=lambda: reconciler.world.unlisted or ("" if keys.known.is_set() else "keys"),
                alive=lambda: unhealthy(reconciler.silent_for(), reconciler.world.synced, keeper.idle_for()),
                metrics=metrics,
                listener=probes,
                token=keys.scrapes,
            ),
            access_log=None,
        ),
    ]
    for runner in runners:
        await runner.setup()
    await probes.start(cast(Protocols, runners[1].server), settings.health_port)
    reconciler.start()
    keys.start()
    keeper.start()  # it takes nothing over before all objects are known
    if multikueue is not None:
        multikueue.start()

    async def answer_pods() -> None:
        """Fenced queues start other people's jobs also while there are no keys."""
        while not await asyncio.to_thread(keys.known.wait, 1.0):
            pass
        await api.listener.start(cast(Protocols, runners[0].server), settings.api_port, tls=keys.server_context())
        log.info("serving", extra={"api_port": settings.api_port, "identity": settings.identity})

    answering, stop = asyncio.create_task(answer_pods()), asyncio.Event()
    # A controller that no pod reaches must not lead: it ends, and is started again.
    answering.add_done_callback(lambda task: None if task.cancelled() or task.exception() is None else stop.set())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    log.info("stopping")
    answering.cancel()
    await asyncio.to_thread(keeper.stop)  # first: the next leader waits for nothing else of this one
    await asyncio.to_thread(keys.stop)
    if multikueue is not None:
        await asyncio.to_thread(multikueue.stop)
    await asyncio.to_thread(reconciler.stop)
    for listener, runner in zip((api.listener, probes), runners, strict=True):
        listener.close()
        await runner.cleanup()
    if answering.done() and not answering.cancelled():
        answering.result()


def main() -> int:
    try:
        settings = config.load(sys.argv[1:], os.environ)
        logs.setup(settings.log_level)
        share_heaps()
        sys.setswitchinterval(SWITCH_S)
        asyncio.run(serve(settings))
    except (SingularityError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
