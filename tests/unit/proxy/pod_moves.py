"""Several pods of one job, from attempt to attempt: plans, barrier and dump everywhere, the pods' end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

import pytest
import waits
from fake_sidecar import Coordinator
from pod_harness import Pod

from singularity_proxy.protocol import messages, phases


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fresh(ranks: list[int], port: int, world: int = 2) -> messages.Plan:
    return messages.Plan("fresh", 1, world, ranks, "127.0.0.1", port)


def restored(ranks: list[int], port: int, generation: int, checkpoint: str, attempt: int) -> messages.Plan:
    return messages.Plan("restore", attempt, 2, ranks, "127.0.0.1", port, generation, checkpoint)


def spread(
    make: Callable[[str, messages.Plan], Pod], port: int, source: Pod, generation: int, checkpoint: str, attempt: int
) -> dict[int, Pod]:
    """Two ranks of `source`, each in a pod of its own that is started from the checkpoint: rank -> its pod."""
    found = {}
    for rank in (0, 1):
        target = make(f"attempt-{attempt}-{rank}", restored([rank], port, generation, checkpoint, attempt))
        target.bring(source, checkpoint, rank)
        found[rank] = target.start()
    return found


def until(condition: Callable[[], object], what: str, pod: Pod, limit_s: float = waits.LIMIT_S) -> None:
    """Wait for something that a pod does: it must not end before."""
    waits.until(condition, what, limit_s=limit_s, alive=pod.alive, progress=pod.cpu_s, detail=pod.log)


def dump_anywhere(pod: Pod, generation: int, **more: object) -> messages.LauncherEvent:
    """Dump ranks that nobody has asked to stop, as checkpoint `c`. What the launcher says of it."""
    pod.wait_event("started", "restored")
    skip = len(pod.sidecar.events)
    fields = {"remaining_s": 60, "anywhere": True, **more}
    pod.sidecar.command("dump", generation=generation, checkpoint_id="c", **fields)
    return pod.wait_event("dumped", "dump_failed", skip=skip)


def everyone_alive(pods: list[Pod]) -> Callable[[], bool]:
    return lambda: all(pod.alive() for pod in pods)


def stop_and_dump(
    pods: Mapping[int, Pod],
    generation: int,
    checkpoint: str,
    step: int,
    timeout: float = waits.LIMIT_S,
    trial: bool = False,
) -> int:
    """Barrier after at least `step` steps, dump everywhere; the step is returned. `pods`: rank -> its pod."""
    coordinator = Coordinator({rank: pod.sidecar for rank, pod in pods.items()})
    everyone = list(dict.fromkeys(pods.values()))
    try:
        coordinator.wait_count(step, timeout, everyone_alive(everyone))
        stopped = coordinator.acquire(generation, timeout)
    except AssertionError as error:
        raise AssertionError(f"{error}\n" + "\n".join(f"--- {p.name}\n{p.log()}" for p in everyone)) from None
    skip = {pod.name: len(pod.sidecar.events) for pod in everyone}
    for pod in everyone:
        pod.sidecar.command("dump", generation=generation, checkpoint_id=checkpoint, trial=trial)
    for pod in everyone:
        event = pod.wait_event("dumped", "dump_failed", skip=skip[pod.name], timeout=timeout)
        assert event.kind == "dumped", f"{event.message}\n{pod.log()}"
        assert event.save is not None and event.save.dump > 0
        assert phases.total(event.save) == pytest.approx(event.seconds, abs=0.5), "no second is missing"
    return stopped


def end(pods: list[Pod]) -> None:
    """The pods are deleted after the commit."""
    for pod in pods:
        pod.terminate()
        pod.wait_event("terminating")
        pod.sidecar.command("exit")
        assert pod.wait() == 143, pod.log()
