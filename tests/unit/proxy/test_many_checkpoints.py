"""Thousands of checkpoints after which the job goes on, in one pod: no process of it grows, and no volume fills up.

Launcher, slots and ranks with their agent are real. In CRIU's place is a script: it is a process of its own, which ends
with each dump, and a real one takes half a second. What it leaves in the image is removed, as the sidecar does.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest
from fake_sidecar import Coordinator
from pod_harness import Pod, stand_in
from pod_moves import free_port

from singularity_proxy.protocol import messages, page

pytestmark = pytest.mark.criu
QUICK, ALL = 40, 5000
LOOKS = 10
WARM = 15
"""Checkpoints after which nothing may grow any more."""

SCRIPT = """
import time
from _singularity.agent import membership
rank = membership.claim()
while True:
    rank.step()
    time.sleep(0.0005)
"""
STANDS_IN = r"""#!/singularity/agent/launcher/busybox sh
case " $* " in *"/launcher/criu "*) ;; *) exec /singularity/agent/launcher/loader "$@";; esac
while [ $# -gt 0 ]; do case "$1" in -D) images=$2;; -W) work=$2;; esac; shift; done
printf '\031\103\126\124\070\061\060\126' > "$images/files.img"
printf '\031\103\126\124\060\060\047\120\004\000\000\000\010\001\040\001' > "$images/pstree.img"
printf '\031\103\126\124\107\070\005\125' > "$images/core-1.img"
{ printf '\044\020'; head -c 30 /dev/zero; } >&3
head -c 4 <&3 >/dev/null
echo done > "$work/dump.log"
"""
"""In the loader's place, which starts all that the launcher runs. It sends no pages: FORCE_CLOSE (`page_stream`) is all
that the page server gets."""


@dataclass(frozen=True)
class Size:
    """Of a process: bytes that no file backs, open descriptors, threads."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Size:
        folder = Path(f"/proc/{pid}")
        lines = (folder / "smaps_rollup").read_text().splitlines()
        # Not what is private: pages that a slot's two processes share since the fork part when one of them writes.
        memory = sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Anonymous:", "Swap:")))
        return cls(memory, len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir())))

    @classmethod
    def least(cls, pid: int) -> Size:
        """Over some time: a request to the sidecar comes and goes."""
        found = []
        for _ in range(LOOKS):
            found.append(cls.of(pid))
            time.sleep(0.02)
        return cls(*(min(size[n] for size in map(astuple, found)) for n in range(3)))


def processes(pid: int) -> dict[int, str]:
    """PID -> command line, of `pid` and all below it."""
    found = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-60:]}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found |= processes(int(child))
    return found


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("checkpoints", [QUICK, pytest.param(ALL, marks=[pytest.mark.full, pytest.mark.timeout(7200)])])
def test_no_process_of_the_pod_grows(
    make_pod: Callable[..., Pod], rootfs: Path, criu_bundle: Path, tmp_path: Path, checkpoints: int
) -> None:
    plan = messages.Plan("fresh", 1, 2, [0, 1], "127.0.0.1", free_port())
    agent = shutil.copytree(criu_bundle, tmp_path / "agent")
    stand_in(agent, STANDS_IN)
    pod = make_pod("pod", rootfs=rootfs, torch=None, plan=plan, command=["python3", "loop.py"], criu=agent, small=True)
    (pod.volumes / "source/loop.py").write_text(SCRIPT)
    pod.start()
    coordinator = Coordinator({0: pod.sidecar, 1: pod.sidecar})
    coordinator.wait_count(5, alive=pod.alive)
    first: dict[int, Size] = {}
    left: list[str] = []
    for number in range(1, checkpoints + 1):
        generation = page.generation(1, number)
        step = coordinator.acquire(generation)
        skip = len(pod.sidecar.events)
        pod.sidecar.command("dump", generation=generation, checkpoint_id=f"c{number}")
        event = pod.wait_event("dumped", "dump_failed", skip=skip)
        assert event.kind == "dumped", f"{event.message}\n{pod.log()}"
        pod.sidecar.page.publish(0, 0, generation)
        pod.sidecar.command("resume", generation=generation, master_addr="127.0.0.1", master_port=29501)
        coordinator.wait_count(step + 2, alive=pod.alive)
        shutil.rmtree(pod.volumes / f"images/c{number}")
        if number == WARM:
            first = {pid: Size.least(pid) for pid in processes(pod.launcher_pid())}
            left = files(pod.volumes)
    names = processes(pod.launcher_pid())
    assert set(names) == set(first), "other processes than before"
    assert len(names) == 7, f"launcher, and for each rank its slot, init and rank: {names}"
    for pid, name in names.items():
        before, now = first[pid], Size.least(pid)
        assert now.descriptors <= before.descriptors and now.threads <= before.threads, f"{name}: {before} -> {now}"
        assert now.memory < before.memory + (1 << 20), f"{name}: {before} -> {now}"
        print(f"{name}: {before} -> {now}")
    assert files(pod.volumes) == left
