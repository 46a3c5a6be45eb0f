"""`reproducible_layout`: processes with the same content share more in the store, and go on from their images."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pod_harness import Pod
from pod_moves import until

from singularity_proxy.launcher.ranks import environment
from singularity_proxy.protocol import messages, names, page
from singularity_proxy.store import Store

Make = Callable[..., Pod]
GENERATION = page.generation(1, 1)
FRESH = messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
RESTORE = messages.Plan("restore", 2, 1, [0], "127.0.0.1", 29500, GENERATION, "c")
JOB = {names.ENV_NAMESPACE: "team", names.ENV_JOB: "digits"}
ON = {**JOB, names.ENV_REPRODUCIBLE_LAYOUT: "1"}
COMMAND = ["python3", "twin.py"]
PROGRAM = """
import json, pathlib, time
def write(name, text):  # a dump, at any moment, finds the whole text
    pathlib.Path(name + ".new").write_text(text)
    pathlib.Path(name + ".new").rename(name)
kept = {f"word {n}": [n, str(n), {n}] for n in range(100_000)}
seen = {"hash": hash("word"), "address": id(kept), "of": len(kept)}
n = 0
while not pathlib.Path("end").exists():
    n += 1
    write("seen", json.dumps({**seen, "now": hash("word"), "personality":
        pathlib.Path("/proc/self/personality").read_text().strip()}))
    write("number", str(n))
    time.sleep(0.01)
"""


@pytest.fixture
def make(make_pod: Make, rootfs: Path, criu_bundle: Path) -> Make:
    return partial(make_pod, rootfs=rootfs, torch=None, criu=criu_bundle)


def test_a_programs_own_seed_counts() -> None:
    made = [environment.environment(env, FRESH, 0, environment.Paths(Path("/s"))) for env in (JOB, ON)]
    assert "PYTHONHASHSEED" not in made[0] and 0 <= int(made[1]["PYTHONHASHSEED"]) < 2**32
    own = {**ON, "PYTHONHASHSEED": "7"}
    assert environment.environment(own, FRESH, 0, environment.Paths(Path("/s")))["PYTHONHASHSEED"] == "7"


def twins(make: Make, env: dict[str, str], folder: Path) -> tuple[list[dict[str, object]], list[int], Pod]:
    """Two pods with the same program: what each has seen, the bytes that each adds to one store, and the second one."""
    seen, added = [], []
    for number in (1, 2):
        pod = make(f"{folder.name}-{number}", plan=FRESH, command=COMMAND, env=env)
        (pod.volumes / "source/twin.py").write_text(PROGRAM)
        pod.start()
        cwd = pod.work(0) / "cwd"
        until(lambda at=cwd: (at / "number").exists(), "it runs", pod, 120)  # type: ignore[misc]
        pod.sidecar.command("dump", generation=GENERATION, checkpoint_id="c", anywhere=True)
        event = pod.wait_event("dumped", "dump_failed")
        assert event.kind == "dumped", pod.log()
        seen.append(json.loads((cwd / "seen").read_text()))
        images = {0: pod.image("c", 0)}
        added.append(Store(f"file://{folder}").put_ranks("team", "digits", f"c{number}", images).bytes_stored)
        if number == 1:
            pod.delete()
    return seen, added, pod


@pytest.mark.criu
def test_a_second_rank_adds_less_and_goes_on(make: Make, tmp_path: Path) -> None:
    one, two = tmp_path / "random", tmp_path / "same"
    seen, random, pod = twins(make, JOB, one)
    pod.delete()
    assert seen[0]["hash"] != seen[1]["hash"] and seen[0]["address"] != seen[1]["address"]
    seen, same, pod = twins(make, ON, two)
    assert seen[0] == seen[1] and int(str(seen[0]["personality"]), 16) & 0x40000
    assert same[1] < random[1] / 3, "6.0 MB and 0.2"
    pod.delete()
    new = make("new", plan=RESTORE, command=COMMAND, env=ON)
    new.bring(pod, "c", 0)
    new.start().wait_event("restored")
    at = int((new.work(0) / "cwd/number").read_text())
    until(lambda: int((new.work(0) / "cwd/number").read_text()) > at + 5, "it goes on", new)
    (new.work(0) / "cwd/end").touch()
    assert new.wait() == 0, new.log()
