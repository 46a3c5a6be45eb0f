"""Communication below an unmodified script is dropped and rebuilt many times; the script does not notice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_sidecar import Coordinator
from pod_harness import Pod
from pod_moves import free_port

from singularity_proxy.protocol import messages, page

pytestmark = [pytest.mark.criu, pytest.mark.usefixtures("whole_gloo")]
HERE = Path(__file__).parent
STEPS = 80
ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def start(make_pod: Callable[..., Pod], rootfs: Path, torch_env: Path, criu_bundle: Path) -> Callable[..., Pod]:
    def make(name: str, steps: int = STEPS) -> Pod:
        plan = messages.Plan("fresh", 1, 2, [0, 1], "127.0.0.1", free_port())
        command = ["python3", "train_features.py", str(steps), "0.02", str(free_port())]
        pod = make_pod(name, rootfs=rootfs, torch=torch_env, plan=plan, command=command, env=ENV, criu=criu_bundle)
        shutil.copy(HERE / "train_features.py", pod.volumes / "source/train_features.py")
        return pod.start()

    return make


def results(pod: Pod) -> list[str]:
    return [(pod.work(rank) / "cwd/losses").read_text() for rank in (0, 1)]


def test_groups_fsdp_async_works_and_forked_workers_survive_stops(start: Callable[..., Pod]) -> None:
    reference = start("reference")
    assert reference.wait() == 0, reference.log()
    pod = start("stopped")
    coordinator = Coordinator({0: pod.sidecar, 1: pod.sidecar})
    port = 0
    for sequence, boundary in enumerate((15, 40, 101), 1):  # odd: between the steps of the two optimizers
        coordinator.wait_count(boundary, alive=pod.alive)
        generation = page.generation(1, sequence)
        coordinator.acquire(generation)
        port = free_port()
        skip = len(pod.sidecar.events)
        pod.sidecar.command("dump", generation=generation, checkpoint_id=f"c{sequence}")
        event = pod.wait_event("dumped", "dump_failed", skip=skip)
        assert event.kind == "dumped", f"{event.message}\n{pod.log()}"
        pod.sidecar.page.publish(0, 0, generation)
        pod.sidecar.command("resume", generation=generation, master_addr="127.0.0.1", master_port=port)
    assert pod.wait() == 0, pod.log()
    assert f"[rank 0] stops {port}" in pod.log()
    assert [text.count("\n") for text in results(pod)] == [2 * STEPS - 1] * 2
    assert results(pod) == results(reference)
    assert pod.sidecar.page.rank(0) == coordinator.views()[0]
    assert [view.count for view in coordinator.views()] == [2 * STEPS, 2 * STEPS]
    assert [view.state for view in coordinator.views()] == [page.STATE_ENDED] * 2
