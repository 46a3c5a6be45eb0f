"""Ranks that share a device: which do, what their collectives give, and a layout that changes while the job lives."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from pod_harness import Pod
from pod_moves import end, free_port, fresh, restored, spread, stop_and_dump
from rank_world import Ranks

from singularity_proxy.agent import gpu_names, shared_device
from singularity_proxy.protocol import messages, names, page

PROGRAMS = Path(__file__).parent / "programs"
Start = Callable[..., Ranks]


@pytest.mark.parametrize(
    ("devices", "sets"),
    [
        (["GPU-1", "GPU-2"], [[0], [1]]),
        ("abcd", [[0], [1], [2], [3]]),
        ("aabb", [[0, 1], [2, 3]]),
        ("abab", [[0, 2], [1, 3]]),
        ("baaa", [[0], [1, 2, 3]]),
        ("aaaa", [[0, 1, 2, 3]]),
    ],
)
def test_ranks_by_device(devices: Sequence[str], sets: list[list[int]]) -> None:
    assert shared_device.sharing(devices) == sets


@pytest.mark.usefixtures("whole_gloo")
@pytest.mark.criu
def test_every_collective_gives_what_the_stock_group_gives(start_ranks: Start) -> None:
    layouts = ["0011", "0101", "1000", "0000"]
    ranks = start_ranks("world", "shared_collectives.py", *layouts)
    ranks.wait()
    for rank in range(4):
        lines = ranks.output(rank).read_text().splitlines()
        assert [line.split()[0] for line in lines if line.endswith("alike")] == layouts
        assert all(int(line.split()[1]) > 100 for line in lines if line.endswith("alike"))
    for told in (
        "ranks 0, 1 share 0: what they exchange",
        "ranks 1, 3 share 1",
        "ranks 1, 2, 3 share 0",
        "0, 1, 2, 3 share",
    ):
        assert told in ranks.log()


@pytest.mark.usefixtures("whole_gloo")
@pytest.mark.criu
@pytest.mark.parametrize(
    ("alone", "shared", "tolerance"),
    [("01", "00", "0"), pytest.param("0123", "0011", "1e-9", marks=pytest.mark.full)],
)
def test_training_goes_on_with_half_the_devices_and_back(
    start_ranks: Start, alone: str, shared: str, tolerance: str
) -> None:
    """Sums of two have one order only: with two ranks every bit is the same."""
    steps, world = 60, len(alone)
    ranks = start_ranks("world", "shared_training.py", str(steps), tolerance, world=world)
    for number, layout in enumerate((shared, alone), 1):
        generation = page.generation(1, number)
        frozen = ranks.stop(generation, 2 * (steps + 20 * number))
        assert [report["sockets"] for report in frozen] == [[]] * world
        ranks.go_on(generation, {names.ENV_DEVICE: layout})
    ranks.wait()
    assert ranks.log().count("share 0: what they exchange") == 1
    assert ranks.log().count("apart at most") == world


@pytest.mark.usefixtures("whole_gloo")
@pytest.mark.criu
@pytest.mark.full
def test_two_pods_with_a_device_each_become_one_and_two_again(
    make_pod: Callable[..., Pod], rootfs: Path, torch_env: Path, criu_bundle: Path
) -> None:
    """With real images: what a rank has on its side of a shared device is in none of them."""
    steps = 100

    def pod(name: str, plan: messages.Plan) -> Pod:
        env = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", names.ENV_DEVICE: f"gpu-of-{name}"}
        command = ["python3", "shared_training.py", str(steps), "0"]
        made = make_pod(name, rootfs=rootfs, torch=torch_env, criu=criu_bundle, plan=plan, command=command, env=env)
        shutil.copy(PROGRAMS / "shared_training.py", made.volumes / "source/shared_training.py")
        return made

    port = free_port()
    first = {rank: pod(f"first-{rank}", fresh([rank], port)).start() for rank in (0, 1)}
    generation = page.generation(1, 1)
    step = stop_and_dump(first, generation, "c1", 2 * steps + 20)
    end(list(first.values()))

    one = pod("second", restored([0, 1], free_port(), generation, "c1", 2))
    for rank in (0, 1):
        one.bring(first[rank], "c1", rank)
    one.start().wait_event("restored")
    second = page.generation(2, 1)
    assert stop_and_dump({0: one, 1: one}, second, "c2", step + 40) < 4 * steps
    assert "ranks 0, 1 share gpu-of-second" in one.log()
    end([one])

    last = spread(pod, free_port(), one, second, "c2", 3)
    for target in last.values():
        assert target.wait() == 0, target.log()
        assert "apart at most 0.0" in target.log() and "share" not in target.log()


@pytest.mark.usefixtures("whole_gloo")
@pytest.mark.criu
@pytest.mark.full
def test_checked_collectives_of_debug_level_detail(start_ranks: Start) -> None:
    ranks = start_ranks(
        "world", "shared_training.py", "10", "0", world=2, SINGULARITY_DEVICE="gpu", TORCH_DISTRIBUTED_DEBUG="DETAIL"
    )
    ranks.stop(page.generation(1, 1), 30)
    ranks.go_on(page.generation(1, 1), {})
    ranks.wait()
    assert "ranks 0, 1 share gpu" in ranks.log()


@pytest.mark.usefixtures("whole_gloo")
@pytest.mark.criu
@pytest.mark.full
def test_a_rank_whose_neighbour_is_killed_ends_as_one_that_lost_a_peer(start_ranks: Start) -> None:
    ranks = start_ranks("world", "shared_training.py", "100000", "0", world=2, SINGULARITY_DEVICE="gpu")
    ranks.coordinator.wait_count(10, alive=ranks.alive)
    ranks.kill(1)
    assert ranks.end(0) == 1, ranks.log()
    assert " by peer" in (ranks.control(0) / names.LOST_PEER_FILE).read_text()  # closed, or reset


@pytest.mark.usefixtures("whole_gloo")
@pytest.mark.criu
@pytest.mark.full
def test_messages_that_are_issued_as_one(start_ranks: Start) -> None:
    """NCCL's way of a batch, with a stop in between; here gloo's messages are held back until the batch ends."""
    ranks = start_ranks("world", "coalescing.py", "3000", world=2)
    ranks.stop(page.generation(1, 1), 100)
    ranks.go_on(page.generation(1, 1), {})
    ranks.wait()
    assert ranks.log().count("all came") == 2


@pytest.mark.gpu
def test_two_ranks_on_one_gpu_train_with_nccl(tmp_path: Path) -> None:
    """Against gloo, which does not mind. Run by an interpreter that has torch."""
    script = PROGRAMS / "shared_gpu.py"
    ranks = Ranks(tmp_path, [str(script), "20"], 2, {"LOCAL_RANK": "0"})
    try:
        ranks.wait(200)
        assert ranks.log().count("alike") == 2 and "share GPU-" in ranks.log()
    finally:
        ranks.close()


# --- which device a rank is on --------------------------------------------------------------------------------------
class Group:
    """torch's _DistributedBackendOptions."""

    def __init__(self, rank: int, ranks: list[int], bound: int | None = None) -> None:
        self.group_rank, self.group_size, self.global_ranks_in_group = rank, len(ranks) or 2, ranks
        self.process_group = SimpleNamespace(bound_device_id=None if bound is None else SimpleNamespace(index=bound))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    cuda = SimpleNamespace(device_count=lambda: 2, get_device_properties=lambda n: SimpleNamespace(uuid=f"{n}"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    for name in ("LOCAL_RANK", names.ENV_DEVICE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpu_names, "_moves", {})
    return cuda


def test_the_gpu_is_the_one_that_torch_takes_for_nccl(gpus: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_device.own_device(Group(1, [4, 7])) == "GPU-1"  # rank 7 of the world
    assert shared_device.own_device(Group(1, [])) == "GPU-1"
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert shared_device.own_device(Group(1, [4, 7])) == "GPU-0"
    assert shared_device.own_device(Group(1, [4, 7], bound=1)) == "GPU-1"
    gpus.device_count = lambda: 0
    assert shared_device.own_device(Group(1, [4, 7])) == ""


def test_a_gpu_is_known_by_the_name_of_the_one_in_its_place(
    gpus: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two moves: torch goes on to say what it read first."""
    for devices in ({"GPU-0": "GPU-8", "GPU-1": "GPU-9"}, {"GPU-9": "GPU-8", "GPU-8": "GPU-7"}):
        gpu_names.moved(devices)
    assert [gpu_names.uuid(gpus, n) for n in (0, 1)] == ["GPU-7", "GPU-8"]


class Table(dict[str, bytes]):
    """A store in which the other ranks have written already."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def test_where_nobody_shares_the_backend_is_the_stock_one(gpus: SimpleNamespace) -> None:
    store = Table({f"{shared_device.PREFIX}/0": b"GPU-0"})
    options = Group(1, [0, 1])
    options.store = store  # type: ignore[attr-defined]
    assert shared_device.make("NCCL", options, lambda: "stock") == "stock"
    assert store[f"{shared_device.PREFIX}/1"] == b"GPU-1"
    store.clear()
    assert shared_device.make("GLOO", options, lambda: "stock") == "stock"
    assert not store, "gloo has no use for the question"


def test_ranks_without_a_known_device_share_none(gpus: SimpleNamespace) -> None:
    gpus.device_count = lambda: 0
    options = Group(1, [0, 1])
    options.store = Table({f"{shared_device.PREFIX}/0": b"rank 0"})  # type: ignore[attr-defined]
    assert shared_device.make("NCCL", options, lambda: "stock") == "stock"
