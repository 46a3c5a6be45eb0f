"""One error at each call of the agent, in a real rank of two: the script ends with the right weights all the same.

`fault_nursery.py` finds the calls and puts the errors in; each is raised where the call is reached first, through two
stops. Exempt is what the script itself has asked for (its collectives, its groups), where an error is the script's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pod_harness import REPOSITORY, install_agent
from program_runs import PROGRAMS
from rank_world import ENTER

pytestmark = [pytest.mark.criu, pytest.mark.timeout(3600)]
HERE = Path(__file__).parent
KINDS = ("OSError", "RuntimeError", "MemoryError")
QUICK = 6
PARTS = 4
ENOUGH = 5
"""Scripts that were harmed: a rank that hangs takes `LIMIT_S`, and hundreds of them would take hours."""
Site = tuple[str, str, int, str]
"""File, function, offset, what is called."""

OPERATIONS = {
    "_collective.<locals>.method", "_point_to_point.<locals>.method", "_forward.<locals>.method",
    "_read.<locals>.value", "make_work_class.<locals>.SwapWork.wait", "make_work_class.<locals>.SwapWork.get_future",
    "_wrap_registration.<locals>.wrap.<locals>.creator.<locals>.make",
    "_wrap_registration.<locals>.wrap.<locals>.creator.<locals>.made", "make", "wanted", "rendezvous",
}  # fmt: skip
"""Functions that do what the script has asked for, between calls of the agent that never raise."""
NEVER_RAISE = {
    "gate.enter", "gate.leave", "gate.begin", "gate.enter_store", "gate.leave_store", "fork.seen", "fork.communication",
    "guard.report", "work.handle", "swap_backend._message", "comm._place", "comm._with_ours", "store._wait_beside",
    "hooks._failed",
}  # fmt: skip
"""Calls of these are exempt, for they catch what goes wrong in them; the calls in them are not."""


def exempt(site: Site) -> bool:
    file, function, _, callee = site
    name = callee.rpartition(".")[2]
    if name in ("__enter__", "__exit__") and "Lock" in callee:
        return True  # taking and releasing a lock of the process cannot fail
    if any(callee == f"_singularity.agent.{each}" for each in NEVER_RAISE):
        return True
    if function.endswith("SwapWork.settle") and name == "wait":
        return True  # an error of it is the operation's, and kept for the script
    if function.rpartition(".")[2] == "creator" and callee.endswith("creator.<locals>.make"):
        return True
    if function.endswith((".rendezvous", ".register_backend")) and not callee.startswith("_singularity"):
        return True
    return function in OPERATIONS and file in ("comm.py", "swap_backend.py", "store.py", "work.py", "shared_device.py")


def test_what_is_exempt() -> None:
    assert exempt(("swap_backend.py", "_collective.<locals>.method", 8, "torch.allreduce"))
    assert exempt(("gate.py", "enter", 8, ".RLock.__enter__"))
    assert exempt(("work.py", "make_work_class.<locals>.SwapWork.settle", 8, "torch._C.wait"))
    assert not exempt(("work.py", "make_work_class.<locals>.SwapWork.settle", 8, "SwapWork._let_go"))
    assert not exempt(("gate.py", "enter", 8, "_singularity.agent.gate.side"))
    assert not exempt(("store.py", "drop", 8, "_singularity.agent.store.content"))


class Nursery:
    def __init__(self, folder: Path, rootfs: Path, torch: Path) -> None:
        self._folder = folder
        self._env = {
            "PATH": os.environ["PATH"], "ROOTFS": str(rootfs), "TORCH": str(torch), "FOLDER": str(folder),
            "PYTHONPATH": "/opt/torch", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        install_agent(folder / "lib")
        if not (folder / "lib/_singularity/launcher").exists():  # ranks have none of it: the nursery plays its part
            shutil.copytree(REPOSITORY / "proxy/singularity_proxy/launcher", folder / "lib/_singularity/launcher")
        for script in (HERE / "fault_nursery.py", PROGRAMS / "small_world.py"):
            shutil.copy(script, folder)

    def run(self, mode: str, plan: Sequence[Any] = ()) -> Generator[dict[str, Any]]:
        argv = ["unshare", "--mount", "sh", "-ec", ENTER, "sh", str(self._folder / "fault_nursery.py")]
        with (self._folder / f"{mode}.err").open("wb") as err, (self._folder / "plan").open("w+") as lines:
            lines.writelines(f"{json.dumps(entry)}\n" for entry in plan)
            lines.seek(0)
            with subprocess.Popen(
                [*argv, str(self._folder), mode], env=self._env, cwd=self._folder, stdin=lines, stdout=subprocess.PIPE,
                stderr=err, text=True,
            ) as process:  # fmt: skip
                assert process.stdout is not None
                yield from map(json.loads, process.stdout)  # closed early: it ends with the run it is at
        assert process.returncode == 0, (self._folder / f"{mode}.err").read_text()


def plan_of(sites: Sequence[Sequence[Site]]) -> list[tuple[int, Site, str]]:
    """(rank, site, kind of error): each site once, in one of the ranks that come to it."""
    found: dict[Site, list[int]] = {}
    for rank, theirs in enumerate(sites):
        for site in theirs:
            found.setdefault(tuple(site), []).append(rank)  # type: ignore[arg-type]
    known = [site for site in sorted(found) if not exempt(site)]
    return [(found[s][n % len(found[s])], s, KINDS[n % len(KINDS)]) for n, s in enumerate(known)]


def parts() -> list[Any]:
    full = [pytest.param(n, PARTS, id=f"part {n + 1} of {PARTS}", marks=pytest.mark.full) for n in range(PARTS)]
    return [pytest.param(0, 0, id=f"{QUICK} of all"), *full]


@pytest.mark.parametrize(("first", "every"), parts())
def test_an_error_at_any_call_of_the_agent_leaves_the_script_alone(
    tmp_path: Path, rootfs: Path, torch_env: Path, first: int, every: int
) -> None:
    nursery = Nursery(tmp_path, rootfs, torch_env)
    (whole,) = nursery.run("record")
    assert whole["codes"] == [0, 0] and whole["notes"] == ["frozen", "frozen"], whole
    plan = plan_of(whole["sites"])
    assert len(plan) > 200
    plan = plan[first :: every or len(plan) // QUICK]
    wrong = []
    lost = reached = 0
    results = nursery.run("inject", [(rank, site[:3], kind) for rank, site, kind in plan])
    for rank, site, kind in plan:
        if len(wrong) == ENOUGH:
            break
        result = next(results)
        reached += bool(result["hit"][rank])
        if result["codes"] == [0, 0] and result["weights"] == whole["weights"]:
            continue
        stack = json.loads(result["hit"][rank] or "[]")
        if "_meet" in stack and kind == "RuntimeError" and result["lost"][rank] and result["codes"][rank] == 1:
            # The attempt is lost: communication could not be made again. The other rank may wait for this one, which
            # its launcher ends.
            lost += 1
            continue
        wrong.append(
            f"{kind} in rank {rank} at {site}: {result['codes']} {result['notes']}\n" + "\n".join(result["log"])
        )
    results.close()
    print(f"{len(plan)} errors, {reached} of them reached, {lost} attempts lost")
    assert not wrong, "\n\n".join([f"{len(wrong)} of {len(plan)}", *wrong])
    assert reached > 0.8 * len(plan)
