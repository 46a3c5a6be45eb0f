"""`python -m kueue_integration.controller`: wires the parts, serves until SIGTERM, gives the Lease up, exits 0."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from ..errors import SingularityError
from ..k8s import connect
from ..multikueue.courier import Courier
from . import clock, config, logs
from .api import Api, Hub, health_app
from .lease import LeaseKeeper
from .metrics import Metrics
from .reconciler import Reconciler

log = logging.getLogger("controller")

STUCK_S = 60.0
"""A worker that is silent for longer makes the liveness probe fail."""


async def serve(settings: config.Config) -> None:
    """Run until SIGTERM or SIGINT."""
    kube = connect(settings.kubeconfig)
    metrics, hub = Metrics(), Hub()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(16, thread_name_prefix="api"))
    hub.attach(loop)
    server = clock.ServerClock()
    reconciler = Reconciler(kube, settings.settings, metrics, hub.notify, server.now)

    def lead(leads: bool) -> None:
        metrics.set("singularity_leader", float(leads))
        if leads:
            reconciler.everything()

    # Leading without seeing the objects would hold preemptions back and do nothing about it.
    keeper = LeaseKeeper(
        kube,
        settings.namespace,
        settings.lease_name,
        settings.identity,
        settings.lease_duration_s,
        settings.lease_renew_s,
        alive=lambda: reconciler.silent_for() < settings.lease_duration_s and reconciler.world.fresh,
        on_change=lead,
        on_repair=lambda: metrics.add("singularity_repairs_total", "lease"),
        server=server,
    )
    reconciler.leads = lambda: keeper.leads
    courier = None
    if settings.multikueue_namespace:
        courier = Courier(
            kube,
            settings.multikueue_namespace,
            settings.settings.check_name,
            metrics,
            leads=lambda: keeper.leads,
            now=server.now,
        )
    api = Api(kube, reconciler.world, hub, (settings.secret_dir / "peer-key").read_bytes(), metrics, server)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(settings.secret_dir / "tls.crt", settings.secret_dir / "tls.key")

    runners = [
        web.AppRunner(api.app(), access_log=None, shutdown_timeout=2),
        web.AppRunner(
            health_app(
                ready=lambda: reconciler.world.unlisted,
                alive=lambda: "" if reconciler.silent_for() < STUCK_S else "the worker is stuck",
                metrics=metrics,
            ),
            access_log=None,
        ),
    ]
    for runner in runners:
        await runner.setup()
    await web.TCPSite(runners[1], port=settings.health_port).start()
    reconciler.start()
    await web.TCPSite(runners[0], port=settings.api_port, ssl_context=tls).start()
    await asyncio.to_thread(reconciler.world.wait_synced, 60)
    keeper.start()
    if courier is not None:
        courier.start()
    log.info("serving", extra={"api_port": settings.api_port, "identity": settings.identity})

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    log.info("stopping")
    await asyncio.to_thread(keeper.stop)
    if courier is not None:
        await asyncio.to_thread(courier.stop)
    await asyncio.to_thread(reconciler.stop)
    for runner in runners:
        await runner.cleanup()


def main() -> int:
    try:
        settings = config.load(sys.argv[1:], os.environ)
        logs.setup(settings.log_level)
        asyncio.run(serve(settings))
    except (SingularityError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
