"""`logs`: what the ranks print, from every pod of the job, and with --follow across its attempts."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterator

import click

from proxy.protocol import names

from .. import status as library
from ..errors import Invalid, KubeError, NotFound
from ..kube import Kube
from ..resources import JOB, POD, Object, selector
from .common import cluster_options, open_cluster

_LOOK_S = 1.0
_RANK = re.compile(r"\[rank (\d+)\] ")


@click.command()
@click.argument("name")
@cluster_options
@click.option("--rank", type=int, help="Only lines of this rank.")
@click.option("-f", "--follow", is_flag=True, help="Go on through all attempts until the job has ended.")
@click.option("--container", default=names.CONTAINER_TRAIN, show_default=True, help="Container of the pods.")
def logs(
    name: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    rank: int | None,
    follow: bool,
    container: str,
) -> None:
    """Print what the ranks print. Pods of earlier attempts are gone; follow from the start to see all of it.

    \b
    Examples:
      singularityctl logs digits --rank 0
      singularityctl logs digits --follow
    """
    kube = open_cluster(kubeconfig, context)
    library.describe(kube, namespace, name)  # a sentence if there is no such job
    lines = _follow(kube, namespace, name, container) if follow else _once(kube, namespace, name, container)
    for line in lines:
        if wanted(line, rank):
            click.echo(line)


def wanted(line: str, rank: int | None) -> bool:
    """Whether a line is of `rank`; lines without a rank are the launcher's and belong to nobody."""
    found = _RANK.match(line)
    return rank is None or (found is not None and int(found.group(1)) == rank)


def _pods(kube: Kube, namespace: str, name: str) -> list[Object]:
    pods = kube.list(POD, namespace, selector({names.LABEL_JOB: name}))
    return sorted(pods, key=lambda pod: (str(pod["metadata"]["creationTimestamp"]), str(pod["metadata"]["name"])))


def _once(kube: Kube, namespace: str, name: str, container: str) -> Iterator[str]:
    for pod in _pods(kube, namespace, name):
        try:
            yield from kube.pod_logs(namespace, pod["metadata"]["name"], container)
        except (NotFound, Invalid):  # it has just gone, or has not started
            continue


def _follow(kube: Kube, namespace: str, name: str, container: str) -> Iterator[str]:
    """Lines of all pods as they come, one thread per pod, until the job is final and every stream has ended."""
    lines: queue.Queue[str] = queue.Queue()
    readers: dict[str, threading.Thread] = {}

    def read(pod: str) -> None:
        try:
            for line in kube.pod_logs(namespace, pod, container, follow=True):
                lines.put(line)
        except KubeError as error:
            if error.transient:
                lines.put(f"singularityctl: log of pod {pod} broke off: {error}")

    next_look, final = 0.0, False
    while True:
        if time.monotonic() >= next_look and not final:
            next_look = time.monotonic() + _LOOK_S
            final = _is_final(kube, namespace, name)  # before the pods: what it started must still be read
            for pod in _pods(kube, namespace, name):
                if pod["metadata"]["uid"] not in readers and _started(pod, container):
                    thread = threading.Thread(target=read, args=(pod["metadata"]["name"],), daemon=True)
                    readers[pod["metadata"]["uid"]] = thread
                    thread.start()
        try:
            yield lines.get(timeout=_LOOK_S)
        except queue.Empty:
            if final and not any(thread.is_alive() for thread in readers.values()):
                return


def _is_final(kube: Kube, namespace: str, name: str) -> bool:
    job = kube.find(JOB, namespace, name)
    return job is None or library.summarise(job, None, []).final


def _started(pod: Object, container: str) -> bool:
    status = pod.get("status") or {}
    found = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    return any(c["name"] == container and "waiting" not in (c.get("state") or {"waiting": {}}) for c in found)
